"""Trainable models: a body with a language and a loss, of which `forward(batch)` gives sums.

A batch is a dict of tensors (shapes as in models/body.py): tokens (B,S), lengths (B),
loss_positions (B,M), targets, sample_keys (B), second (B) where rows hold two texts, replayed (B)
where some rows are of another text, and token_index (T) where the padding is to be left out
(models/body.py). The sums are divided by the global count of loss terms in the training loop, so
that the result does not depend on how a batch is split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import FILLER, IGNORED
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.body import (
    Body,
    LanguagePack,
    Linear,
    Rows,
    Table,
    Unpadding,
    init_weights,
)
from ds_minimodel.models.low_rank import switched_off
from ds_minimodel.ops.parallel import own_part

Batch = Mapping[str, Any]


def encode(
    pack: LanguagePack, body: Body, batch: Batch, *, pads_back: bool = True
) -> tuple[tuple[Tensor, ...], Table]:
    """Run a body on a batch.

    Args:
        pack: the language of the batch.
        body: what runs.
        batch: see the top of this file.
        pads_back: as of a body's forward pass.

    Returns:
        Hidden states at the positions that `batch` reads, one tensor for each head's depth, and the
        output projection.
    """
    tokens_BS = batch["tokens"]
    unpadding = None
    if "token_index" in batch:
        token_index_T = batch["token_index"]
        num_rows = ops.rows_for_few_shapes(len(token_index_T), pack.tokens)
        batch_size, width = tokens_BS.shape
        unpadding = Unpadding(token_index_T, batch_size, width=width, num_rows=num_rows)
        # These are (R, 1): the real tokens alone.
        tokens_BS = unpadding.extend(tokens_BS.flatten()[token_index_T], FILLER)[:, None]
    embedded_BSH, table = pack(tokens_BS)
    dropout = body.dropout(batch.get("sample_keys"))
    hidden = body(
        embedded_BSH,
        lengths_B=batch.get("lengths"),
        dropout=dropout,
        read_BM=batch.get("loss_positions"),
        unpadding=unpadding,
        second_B=batch.get("second"),
        pads_back=pads_back,
    )
    return hidden, table


def to_tensors(batch: Batch, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Return a batch of numpy arrays as tensors.

    It is without "lengths" where no row is padded, so that no mask is needed, and without
    "replayed" where no row is.
    """
    tensors: dict[str, Any] = {
        name: value if isinstance(value, int) else torch.from_numpy(value).to(device)
        for name, value in batch.items()
    }
    # The numpy array is asked, not the tensor, so that nothing waits for a device.
    if (batch["lengths"] == tensors["tokens"].shape[1]).all():
        del tensors["lengths"]
    if "replayed" in batch and not batch["replayed"].any():
        del tensors["replayed"]
    return tensors


def at_padding(x: Tensor, value: float, batch: Batch) -> Tensor:
    """Return `x` (B, S, …) with `value` where the rows of a batch have ended."""
    if batch.get("lengths") is None:
        return x
    positions_S = torch.arange(x.shape[1], device=x.device)
    is_padding = positions_S >= batch["lengths"][:, None]
    while is_padding.dim() < x.dim():
        is_padding = is_padding[..., None]
    return x.masked_fill(is_padding, value)


class Model(nn.Module):
    """A language pack and a body."""

    def __init__(
        self,
        config: BodyConfig,
        vocab_size: int,
        head_depths: Sequence[int] = (),
        num_base: int = 0,
    ):
        """Make a body and a language pack.

        Args:
            config: of the body.
            vocab_size: ids of the language.
            head_depths: layers after which the body has a head.
            num_base: first ids that do not train.
        """
        super().__init__()
        self.pack = LanguagePack(vocab_size, config, num_base)
        self.body = config.make_body(head_depths)


class NewTokenPenalty(NamedTuple):
    """The penalty for new rows of an added language that take probability in the source's text.

    The rows of the source do not train, nor does the body: what its text loses by new pieces hangs
    on its states alone, which are computed once.

    Attributes:
        states: (N, H), a head's outputs after source text.
        log_sums: (N,) float32, of the scores of the source's ids there.
        weight: of a state against a trained token.
        width: how many states each sample takes.
    """

    states: Tensor
    log_sums: Tensor
    weight: float
    width: int

    def loss(self, pack: LanguagePack, table: Table, batch: Batch) -> Tensor:
        """Return `weight` times the nats by which new pieces make source tokens less likely.

        It is a sum over the batch, () fp32. A sample stands for as many source tokens as it has
        targets, by `width` states from where its key says.
        """
        offsets_W = torch.arange(self.width, device=self.states.device)
        index_BW = batch["sample_keys"][:, None].long() + offsets_W
        index_P = index_BW.flatten().remainder(len(self.states))
        new_log_sums_P = pack.log_sums(self.states[index_P], table)
        # log(1 + new / source): the nats that the new pieces' share costs each source token.
        taken_P = F.softplus(new_log_sums_P - self.log_sums[index_P])
        num_targets_B = (batch["targets"] != IGNORED).sum(1)
        return self.weight * (taken_P.view(-1, self.width).mean(1) * num_targets_B).sum()


class LanguageModel(Model):
    """Body and language pack under the cross-entropy of an objective's targets, at every head.

    Attributes:
        new_token_penalty: of an added language while it trains, or None.
        replay_kl: weight, relative to a trained token's loss, of the KL divergence from the body
            without its low-rank updates in replayed rows; 0: none.
        replays_in_every_batch: whether that pass runs for batches without replayed rows, too, as it
            must where ranks gather weights together (ZeRO 3).
    """

    new_token_penalty: NewTokenPenalty | None = None
    replay_kl: float = 0.0
    replays_in_every_batch = False

    def __init__(
        self, config: BodyConfig, vocab_size: int, head_depths: Sequence[int], num_base: int = 0
    ):
        super().__init__(config, vocab_size, head_depths=head_depths, num_base=num_base)
        self.loss_names = [f"depth_{depth}" for depth in head_depths]

    def forward(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of the batch for each head, (heads,) fp32."""
        replays = (
            self.replay_kl > 0
            and torch.is_grad_enabled()
            and ("replayed" in batch or self.replays_in_every_batch)
        )
        # The teacher comes first: ZeRO 3 forgets what an earlier pass has gathered.
        teacher = self._teacher(batch) if replays else None
        hidden, table = encode(self.pack, self.body, batch)
        if "replayed" in batch and replays:
            learned = batch["targets"].masked_fill(batch["replayed"][:, None], IGNORED)
            batch = {**batch, "targets": learned}
        targets = batch["targets"].flatten()
        # A generator makes the heads' outputs one after the other, so that no two are held.
        outputs = (
            head(x_BMH.flatten(0, 1))
            for head, x_BMH in zip(self.body.heads.values(), hidden, strict=True)
        )
        losses = torch.stack([self.pack.cross_entropy(x_PH, table, targets) for x_PH in outputs])
        if teacher is not None:
            divergence = self._divergence(*teacher, hidden[-1], table)
            # Its value is reported as it is, and its gradient is weighted.
            weighted = self.replay_kl * (divergence - divergence.detach())
            losses = losses + divergence.detach() + weighted
        if self.new_token_penalty is None or not torch.is_grad_enabled():
            return losses
        penalty = self.new_token_penalty.loss(self.pack, table, batch)
        # The penalty has a gradient, but what is reported is the loss of the text.
        return losses + (penalty - penalty.detach())

    def _teacher(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Run the body without its updates on the rows that are replayed.

        Returns:
            rows (R,) int64, those that are replayed, or a single other one where none is;
            is_target (R, S) bool, where they have targets that are learned from;
            the head's outputs there, (P, H).
        """
        is_replayed_B = batch.get("replayed")
        if is_replayed_B is None:
            is_replayed_B = torch.zeros_like(batch["targets"][:, 0], dtype=torch.bool)
        rows = is_replayed_B.nonzero()[:, 0]
        if len(rows) == 0:
            rows = rows.new_zeros(1)
        replayed = {
            name: batch[name][rows]
            for name in ("tokens", "lengths", "sample_keys", "targets")
            if name in batch
        }
        is_target = (replayed["targets"] != IGNORED) & is_replayed_B[rows, None]
        head = self.body.heads[str(self.body.head_depths[-1])]
        with torch.no_grad(), switched_off():
            (x_BSH,), _ = encode(self.pack, self.body, replayed)
            return rows, is_target, head(x_BSH[is_target])

    def _divergence(
        self, rows: Tensor, is_target: Tensor, teacher_PH: Tensor, x_BSH: Tensor, table: Table
    ) -> Tensor:
        """Return the KL divergence from the body without its updates, in nats over the base's ids.

        Args:
            rows: as of `_teacher`, like the next two.
            is_target: where they have targets that are learned from.
            teacher_PH: outputs of the head without the updates.
            x_BSH: what the head reads with them.
            table: the output projection.

        Returns:
            A sum over the targets of the replayed rows, () fp32.
        """
        head = self.body.heads[str(self.body.head_depths[-1])]
        assert table.base is not None
        student_PH = head(x_BSH[rows][is_target])
        return ops.linear_divergence(student_PH, teacher_PH, weight=table.rows, base=table.base)


class TaskModel(Model):
    """Body and language pack under a task's head; its loss is a sum over what has a target.

    A subclass has `logits` and, where it trains, `loss`.
    """

    loss_names = ["loss"]

    def __init__(
        self,
        config: BodyConfig,
        vocab_size: int,
        head_depths: Sequence[int] | None = None,
        num_base: int = 0,
    ):
        """Make a body and a language pack.

        Args:
            config: of the body.
            vocab_size: ids of the language.
            head_depths: layers after which the body has a head; by default the configuration's
                task_depths.
            num_base: first ids that do not train.
        """
        if head_depths is None:
            head_depths = config.task_depths
        super().__init__(config, vocab_size, head_depths=head_depths, num_base=num_base)

    def forward(self, batch: Batch) -> Tensor:
        """Return the sum of the batch's losses, (1,) fp32; without targets the head's scores."""
        logits = self.logits(batch)
        if "targets" not in batch:
            return logits
        return self.loss(logits, batch["targets"])[None]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over what has a target, () fp32."""
        raise NotImplementedError

    def logits(self, batch: Batch) -> Tensor:
        """Return the scores of the head, (B, labels) or (B, S, outputs)."""
        raise NotImplementedError

    def read(self, batch: Batch) -> Tensor:
        """Return the states that the scores are computed from, (B, M, H).

        They are hidden states, or the outputs of the body's head where tasks read that.
        """
        (x_BMH,), _ = encode(self.pack, self.body, batch)
        for depth in self.body.head_depths:
            x_BMH = self.body.heads[str(depth)](x_BMH)
        return x_BMH


class HiddenLikelihoods(TaskModel):
    """How likely hidden tokens of a text are, by the body's last head; nothing trains."""

    def __init__(self, config: BodyConfig, vocab_size: int):
        super().__init__(config, vocab_size, (config.num_layers,))

    def logits(self, batch: Batch) -> Tensor:
        """Return the logarithm of each target's probability, (B, S) fp32; 0 where there is none."""
        (x_BSH,), table = encode(self.pack, self.body, batch)
        (head,) = self.body.heads.values()
        targets_BS = batch["targets"]
        likelihoods_BS = x_BSH.new_zeros(targets_BS.shape, dtype=torch.float32)
        is_target = targets_BS != IGNORED
        losses_P = self.pack.token_losses(head(x_BSH[is_target]), table, targets_BS[is_target])
        likelihoods_BS[is_target] = -losses_P
        return likelihoods_BS


class TokenLikelihoods(TaskModel):
    """How likely each token is after those before it, by the body's last head; nothing trains."""

    def logits(self, batch: Batch) -> Tensor:
        """Return the logarithm of each token's probability, (B, S) fp32.

        It is 0 for the first token of a row and for padding.
        """
        targets_BS = at_padding(batch["tokens"], IGNORED, batch).roll(-1, 1)
        targets_BS[:, -1] = IGNORED
        (x_BSH,), table = encode(self.pack, self.body, batch)
        (head,) = self.body.heads.values()
        losses_P = self.pack.token_losses(head(x_BSH.flatten(0, 1)), table, targets_BS.flatten())
        return -losses_P.view(targets_BS.shape).roll(1, 1)


class SequenceClassifier(TaskModel):
    """Classification of a sentence or a pair from `<s>` or, over a causal body, the last token.

    A dense layer and scores, as RoBERTa and EuroBERT have, or scores of what the body's own head
    makes.
    """

    def __init__(self, config: BodyConfig, vocab_size: int, num_labels: int):
        super().__init__(config, vocab_size)
        self.dense = (
            Linear(config.hidden_size, config.hidden_size) if config.task_activation else None
        )
        self.out = Linear(config.hidden_size, num_labels)
        self.apply(init_weights)

    def logits(self, batch: Batch) -> Tensor:
        """Return the scores of the labels, (B, labels)."""
        if self.body.config.causal:
            batch = {**batch, "loss_positions": _last_positions(batch)}
        x_B1H = self.read(batch)
        rows = Rows(batch["loss_positions"], self.body.dropout(batch.get("sample_keys")))
        sites = self.body.config.dropout_sites.task_head
        if self.dense is not None:
            x_B1H = rows.drop(x_B1H, sites[0])
            x_B1H = getattr(F, self.body.config.task_activation)(self.dense(x_B1H))
        return self.out(rows.drop(x_B1H, sites[1]))[:, 0]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of cross-entropy over the examples."""
        return F.cross_entropy(logits.float(), targets[:, 0], ignore_index=IGNORED, reduction="sum")


def _last_positions(batch: Batch) -> Tensor:
    """Return the position of the last token of each row, (B, 1), the one that sees all others."""
    tokens_BS = batch["tokens"]
    lengths_B = batch.get("lengths")
    if lengths_B is None:
        lengths_B = tokens_BS.new_full((len(tokens_BS),), tokens_BS.shape[1])
    return lengths_B.long()[:, None] - 1


class SpanExtractor(TaskModel):
    """Extractive question answering: a start and an end score for every token."""

    def __init__(self, config: BodyConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.out = nn.Linear(config.hidden_size, 2)
        self.apply(init_weights)

    def logits(self, batch: Batch) -> Tensor:
        """Return the scores, (B, S, 2); tokens past a row's length are -inf."""
        x_BSH = self.read(batch)
        # In fp32: in bf16 near-by scores would tie, and the first of them win.
        logits_BS2 = F.linear(x_BSH.float(), self.out.weight.float(), self.out.bias.float())
        return at_padding(logits_BS2, -torch.inf, batch)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over the examples of the mean of the start and the end cross-entropy."""
        cross_entropy = partial(F.cross_entropy, ignore_index=IGNORED, reduction="sum")
        start = cross_entropy(logits[..., 0], targets[:, 0])
        end = cross_entropy(logits[..., 1], targets[:, 1])
        return (start + end) / 2


Tensors = dict[str, Tensor]


def train_only(module: nn.Module, trains: Callable[[str], bool]) -> None:
    """Freeze every parameter of `module` but those for whose name `trains(name)` holds."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trains(name))


def materialise(
    module: nn.Module,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    defer_frozen: bool = False,
) -> None:
    """Give memory to the parameters of a module on the meta device; nothing is drawn.

    Args:
        module: on the meta device; its numbers are to be put in by `load_into`.
        dtype: of what does not train; what trains is fp32.
        device: of the memory.
        defer_frozen: whether what does not train gets memory only by `ops.parallel.fill`; load_into
            then notes where its numbers are.
    """
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            shape = parameter.shape
            if parameter.requires_grad:
                memory = torch.empty(shape, dtype=torch.float32, device=device)
                part._parameters[name] = nn.Parameter(memory)
            elif not defer_frozen:
                memory = torch.empty(shape, dtype=dtype, device=device)
                part._parameters[name] = nn.Parameter(memory, requires_grad=False)
            else:
                # What waits is one number, seen as a tensor of the shape.
                memory = torch.empty((), dtype=dtype, device=device).expand(shape)
                waiting = nn.Parameter(memory, requires_grad=False)
                waiting.source = None  # type: ignore[attr-defined]
                part._parameters[name] = waiting


def load_into(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copy tensors, or this rank's parts of them, into parameters one after the other.

    Args:
        module: whose parameters are filled; what `materialise` deferred is read later.
        tensors: by name; a parameter of each name must exist.
        prefix: stands before the names in `module`.
    """
    parameters = dict(module.named_parameters())
    for name in tensors:
        parameter = parameters[prefix + name]
        if hasattr(parameter, "source"):
            parameter.source = partial(tensors.__getitem__, name)  # type: ignore[assignment]
        else:
            parameter.data.copy_(own_part(parameter, tensors[name]))


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> Tensors:
    """Return the tensors whose names start with `prefix`, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
