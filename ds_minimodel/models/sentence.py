"""Models with a finished head: a vector or scores of labels for each text.

The head reads a body's last states.

A batch is one of models/trainable.py; its targets are rows of fp32 numbers, (B, D), that the head
shall give. Shapes: B texts, S positions, T real tokens, H hidden, D numbers that the head gives.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel.models.body import Body, Linear, init_weights
from ds_minimodel.models.heads import LabelHead, SentenceHead
from ds_minimodel.models.trainable import Batch, TaskModel, at_padding, encode

_ACTIVATIONS = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
}


class VectorHead(nn.Module):
    """The modules of a SentenceHead: the final norm of a family that has one, and projections."""

    def __init__(self, body: Body):
        super().__init__()
        head = body.config.head
        assert isinstance(head, SentenceHead)
        self.final_norm = body.final_norm()
        self.projections = nn.ModuleList()
        self.activations = []
        self.normalises = head.normalises
        width = body.config.hidden_size
        for projection in head.projections:
            self.projections.append(Linear(width, projection.outputs, bias=projection.bias))
            self.activations.append(_ACTIVATIONS[projection.activation]())
            width = projection.outputs
        self.apply(init_weights)

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """Vectors (B, D), fp32, of pooled states."""
        x = pooled_BH
        for projection, activation in zip(self.projections, self.activations, strict=True):
            x = activation(_in_fp32(cast(Linear, projection), x))
        return F.normalize(x, dim=-1) if self.normalises else x


class ScoreHead(nn.Module):
    """The modules of a LabelHead.

    A family's final norm, if it has one; a dense layer with what follows it; and scores.
    """

    def __init__(self, body: Body):
        super().__init__()
        config = body.config
        assert isinstance(config.head, LabelHead)
        # Of a family whose tasks read the language model's head it is that one's
        inner: Any = body.language_head() if config.tasks_read_head else None
        self.final_norm: nn.Module | None = getattr(inner, "final_norm", None)
        self.dense: nn.Module | None = getattr(inner, "dense", None)
        self.norm: nn.Module | None = getattr(inner, "norm", None)
        self.activation = _ACTIVATIONS["gelu"]()
        if self.dense is None:
            self.dense = Linear(config.hidden_size, config.hidden_size)
            self.activation = _ACTIVATIONS[config.task_activation]()
        self.out = Linear(config.hidden_size, len(config.head.labels))
        self.apply(init_weights)

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """Scores (B, labels), fp32, of pooled states."""
        x_BH = self.activation(_in_fp32(cast(Linear, self.dense), pooled_BH))
        if self.norm is not None:
            x_BH = self.norm(x_BH.to(self.norm.weight.dtype)).float()
        return _in_fp32(self.out, x_BH)


def _in_fp32(linear: Linear, x: Tensor) -> Tensor:
    bias = linear.bias
    return F.linear(x, linear.weight.float(), None if bias is None else bias.float())


def fresh_heads(body: Body) -> nn.ModuleDict:
    """Make the heads at a body's depths: language models', or the configuration's finished one."""
    heads = nn.ModuleDict()
    for depth in body.head_depths:
        head = body.config.head
        if head is None:
            module = body.language_head()
        else:
            module = VectorHead(body) if isinstance(head, SentenceHead) else ScoreHead(body)
        heads[str(depth)] = module
    return heads


class SentenceEncoder(TaskModel):
    """Body and language pack under a finished head, which learns to give what it is shown.

    The loss of a text is 1 - cosine where vectors are normalised, else the mean squared error of
    its numbers; of a classifier the divergence from the labels' shown probabilities. No text's loss
    depends on another's.
    """

    def logits(self, batch: Batch) -> Tensor:
        """What the head gives for each text of a batch, (B, D) fp32."""
        head = self.body.config.head
        assert head is not None
        module = cast(VectorHead, self.body.heads[str(self.body.head_depths[-1])])
        if head.pooling == "cls":
            first_B1 = batch["tokens"].new_zeros(len(batch["tokens"]), 1)
            (x_B1H,), _ = encode(self.pack, self.body, {**batch, "loss_positions": first_B1})
            return module(self._last_states(x_B1H)[:, 0])
        (x_BSH,), _ = encode(self.pack, self.body, batch, pads_back=False)
        return module(self._mean(self._last_states(x_BSH), batch))

    def _last_states(self, x: Tensor) -> Tensor:
        """What pooling reads of the highest layer's output, fp32."""
        module = cast(VectorHead, self.body.heads[str(self.body.head_depths[-1])])
        return (x if module.final_norm is None else module.final_norm(x)).float()

    def _mean(self, x: Tensor, batch: Batch) -> Tensor:
        """The mean of the states of each text's tokens, (B, H).

        x: (B, S, H), or (T, 1, H) where the batch is unpadded, rows beyond its tokens behind them.
        """
        lengths_B = batch.get("lengths")
        left_out_B = self._left_out(batch)
        if "token_index" not in batch or lengths_B is None:
            x = at_padding(x, 0.0, batch)
            counts_B = x.new_full((len(x),), x.shape[1]) if lengths_B is None else lengths_B
            if left_out_B is not None:
                positions_S = torch.arange(x.shape[1], device=x.device)
                x = x * (positions_S >= left_out_B[:, None])[..., None]
                counts_B = counts_B - left_out_B
            return x.sum(1) / counts_B[:, None]
        tokens_TH = x[: len(batch["token_index"]), 0]
        if left_out_B is None:
            return torch.segment_reduce(tokens_TH, "mean", lengths=lengths_B.long(), axis=0)
        lengths_B = lengths_B.long()
        ends_B = lengths_B.cumsum(0)
        positions_T = torch.arange(len(tokens_TH), device=x.device)
        firsts_B = ends_B - lengths_B + left_out_B
        is_read_T = positions_T >= torch.repeat_interleave(firsts_B, lengths_B)
        sums_BH = torch.segment_reduce(
            tokens_TH * is_read_T[:, None], "sum", lengths=lengths_B, axis=0
        )
        return sums_BH / (lengths_B - left_out_B)[:, None]

    def _left_out(self, batch: Batch) -> Tensor | None:
        """The first tokens of each text that are not pooled, (B,), where there are any."""
        head = self.body.config.head
        if isinstance(head, SentenceHead) and not head.pools_prompt:
            return batch.get("prompts")
        return None

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum the losses of texts, by what the head gives and what it shall give, both (B, D)."""
        return self.losses(logits, targets).sum()

    def losses(self, outputs_BD: Tensor, targets_BD: Tensor) -> Tensor:
        """The loss of each text, (B,) fp32."""
        head = self.body.config.head
        assert head is not None
        if isinstance(head, SentenceHead) and head.normalises:
            return 1 - (outputs_BD * targets_BD).sum(-1)
        if isinstance(head, SentenceHead) or head.applies == "number":
            return (outputs_BD - targets_BD).square().mean(-1)
        if head.applies == "each":
            # Of labels that each apply or not, two of a kind: their scores are log-odds.
            outputs_BD = torch.stack((outputs_BD, torch.zeros_like(outputs_BD)), -1)
            targets_BD = torch.stack((targets_BD, torch.zeros_like(targets_BD)), -1)
        log_shown_BD = targets_BD.log_softmax(-1)
        differ_BD = log_shown_BD - outputs_BD.log_softmax(-1)
        return (log_shown_BD.exp() * differ_BD).flatten(1).sum(-1)
