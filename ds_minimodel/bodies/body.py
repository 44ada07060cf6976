"""What the bodies of every kind are made of: the stack of layers, dropout without state, and how a part is split.

Each part has a `group` of ranks over which it is split, by default one of this rank alone; `shard` splits it. Sizes
below are then those of this rank's part.

Shapes: B batch, S sequence, M positions read, Q queries, H hidden, N heads, D = H/N, F feed-forward,
V vocabulary, P rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ds_minimodel import ops, parallel
from ds_minimodel.bodies.config import BodyConfig
from ds_minimodel.bodies.packing import Packing

INIT_STD = 0.02


class Dropout:
    """Dropout of one forward pass: every bit is a function of (sample key, site, position, element).

    sample_keys_B: int32, a key for each sample; None without dropout. So the bits do not depend on how a batch is
    split over ranks and micro-batches, nor on which positions a layer computes. p, attention_p: rates.
    """

    def __init__(self, sample_keys_B: Tensor | None, p: float = 0.0, attention_p: float = 0.0):
        self.sample_keys_B, self.p, self.attention_p = sample_keys_B, p, attention_p

    def row_keys(self, site: int, positions: Tensor) -> Tensor | None:
        """Row keys (B, S) of dropout `site` at `positions` (S,) or (B, M); None without dropout."""
        return self._row_keys(self.p, site, positions)

    def attention_row_keys(self, sites: range, positions: Tensor) -> Tensor | None:
        """Row keys (B, N, Q) of the attention probabilities, one of `sites` for each head; None without dropout."""
        return self._row_keys(self.attention_p, sites, positions)

    def _row_keys(self, p: float, site: int | range, positions: Tensor) -> Tensor | None:
        if not p:
            return None
        assert self.sample_keys_B is not None, "a batch that trains with dropout needs sample_keys"
        return ops.row_keys(self.sample_keys_B, site, positions)

    def of_tokens(self, row_T: Tensor) -> Dropout:
        """The same dropout for tokens that are rows of their own; `row_T` is the sample of each."""
        if self.sample_keys_B is None:
            return self
        return Dropout(self.sample_keys_B[row_T], self.p, self.attention_p)


NO_DROPOUT = Dropout(None)  # evaluation


def gather_rows(x_BSH: Tensor, read_BM: Tensor) -> Tensor:
    """Rows of each sequence at the positions `read_BM` -> (B, M, H)."""
    return x_BSH.gather(1, read_BM[..., None].expand(-1, -1, x_BSH.shape[-1]))


def same(x: Tensor) -> Tensor:
    """`x`: what pads a batch that is not packed."""
    return x


def init_weights(module: nn.Module) -> None:
    """fairseq's initialisation of linear layers: N(0, 0.02), biases 0."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0, INIT_STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Linear(nn.Linear):
    """nn.Linear by ops.linear, which is fast in bf16 on every CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class Part(nn.Module, ABC):
    """A module that can be split over the ranks of a tensor-parallel group."""

    group = parallel.SOLO

    @abstractmethod
    def split(self, group: parallel.Group) -> None:
        """Cut the parameters, in place, to what this rank of `group` holds."""


def shard(module: nn.Module, group: parallel.Group) -> None:
    """Cut `module`, in place, to the part that this rank of `group` computes; set weights and requires_grad before.

    Whole on every rank, with the same values and gradients, stays what no Part cuts: norms, positions, biases that are
    added after a sum over ranks, and the heads of tasks, which read one vector a sample or have few outputs. The sizes
    that BodyConfig.split_sizes names must be divisible by the group's; the vocabulary need not be.
    """
    if group.size == 1:
        return
    for part in module.modules():
        if isinstance(part, Part):
            part.split(group)
            part.group = group


class Layer(Part):
    """A layer of self-attention and a feed-forward block, whose four products a subclass sets."""

    ffn_in_sections: ClassVar[int] = 1  # of how many blocks, each with a row for every inner unit, ffn_in is made
    qkv: Linear
    attention_out: Linear
    ffn_in: Linear
    ffn_out: Linear

    def __init__(self, config: BodyConfig, index: int):
        super().__init__()
        self.num_heads, self.num_key_heads, self.head_width = config.num_heads, config.num_key_heads, config.head_width
        self.sites = config.dropout_sites.layer(index)

    @property
    def qkv_sizes(self) -> list[int]:
        """Rows of `qkv` for queries, keys and values, in that order."""
        return [heads * self.head_width for heads in (self.num_heads, self.num_key_heads, self.num_key_heads)]

    def split(self, group: parallel.Group) -> None:
        """Attention by heads, feed-forward by inner units."""
        assert self.num_heads % group.size == self.num_key_heads % group.size == 0
        assert self.ffn_out.in_features % group.size == 0
        inner = [self.ffn_out.in_features] * self.ffn_in_sections
        for linear, lengths in ((self.qkv, self.qkv_sizes), (self.ffn_in, inner)):
            for name, _ in list(linear.named_parameters()):
                parallel.shard_parameter(linear, name, group, dim=0, lengths=lengths)
        heads = group.share(self.num_heads)
        self.num_heads, self.num_key_heads = len(heads), self.num_key_heads // group.size
        self.sites = self.sites._replace(heads=self.sites.heads[heads.start : heads.stop])
        for linear in (self.attention_out, self.ffn_out):
            parallel.shard_parameter(linear, "weight", group, dim=1)

    @abstractmethod
    def forward(
        self,
        x_BSH: Tensor,
        lengths_B: Tensor | None,
        dropout: Dropout,
        read_BM: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Hidden states after the layer: (B, S, H), or (B, M, H) at the positions `read_BM` alone.

        Keys and values are computed everywhere; with `read_BM`, queries and all that follows only there.
        With `packing`, hidden states in and out are packed, (T, 1, H); at `read_BM` still (B, M, H).
        """


class LanguagePack(Part):
    """A language: token embeddings, `tokens`, and an output projection: the same table or `output`, and `bias` or none.

    config: of the body, which says what a language has.
    """

    tokens: nn.Parameter
    output: nn.Parameter

    def __init__(self, vocab_size: int, config: BodyConfig):
        super().__init__()
        for name in config.language_tensors:
            shape = (vocab_size,) if name == "bias" else (vocab_size, config.hidden_size)
            start = torch.zeros(shape) if name == "bias" else torch.empty(shape).normal_(0, INIT_STD)
            self.register_parameter(name, nn.Parameter(start))
        self.tied, self.rows = config.tied, range(vocab_size)

    def split(self, group: parallel.Group) -> None:
        self.rows = group.share(len(self.rows))
        for name, _ in list(self.named_parameters()):
            parallel.shard_parameter(self, name, group, dim=0)

    def forward(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the tokens -> (B, S, H); and the output projection, for `logits` and `cross_entropy`."""
        if self.group.size == 1:
            embedded_BSH, table = ops.embedding(tokens_BS, self.tokens)
        else:
            embedded_BSH, table = parallel.embedding(tokens_BS, self.tokens, self.rows, self.group), self.tokens
        # A view: at ZeRO 3 it keeps what was gathered of the matrix until the backward pass, as that of the embeddings.
        return embedded_BSH, table if self.tied else self.output.view_as(self.output)

    def logits(self, x_PH: Tensor, table: Tensor) -> Tensor:
        """Scores (P, V) of all tokens, from a head's outputs; not of a pack that is split."""
        return ops.linear(x_PH, table, getattr(self, "bias", None))

    def cross_entropy(self, x_PH: Tensor, table: Tensor, targets_P: Tensor) -> Tensor:
        """Sum of the cross-entropies of predicting the targets from a head's outputs, a float32 scalar."""
        if self.group.size == 1:
            return ops.linear_cross_entropy(x_PH, table, self._bias(table), targets_P)
        return parallel.linear_cross_entropy(x_PH, table, self._bias(table), targets_P, self.rows, self.group)

    def token_losses(self, x_PH: Tensor, table: Tensor, targets_P: Tensor) -> Tensor:
        """The cross-entropy of each target, (P,) float32, without a gradient."""
        return parallel.token_losses(x_PH, table, self._bias(table), targets_P, self.rows, self.group)

    def _bias(self, table: Tensor) -> Tensor:
        bias_V = getattr(self, "bias", None)
        return table.new_zeros(len(table)) if bias_V is None else bias_V


class Body(nn.Module, ABC):
    """All of a model but its language pack: what turns embeddings into hidden states, and the heads that read them.

    A kind's body sets `layers`, each a Layer, and `heads`, modules by depth that map hidden states (P, H) to what
    the output projection of a pack is applied to, (P, H).
    """

    layers: nn.ModuleList
    heads: nn.ModuleDict

    def __init__(self, config: BodyConfig, head_depths: Sequence[int] = ()):
        super().__init__()
        self.config, self.head_depths = config, tuple(head_depths)

    @abstractmethod
    def embed(self, embedded_BSH: Tensor, dropout: Dropout, packing: Packing | None, second_B: Tensor | None) -> Tensor:
        """What the lowest layer reads, of token embeddings; arguments as of `forward`."""

    def finish(self, x_BSH: Tensor) -> Tensor:
        """The hidden states of the last layer as those of the whole body, such as normalised ones."""
        return x_BSH

    def dropout(self, sample_keys_B: Tensor | None) -> Dropout:
        """Dropout for one forward pass in the module's present mode (training or evaluation)."""
        if not self.training:
            return NO_DROPOUT
        return Dropout(sample_keys_B, self.config.dropout, self.config.attention_dropout)

    def forward(
        self,
        embedded_BSH: Tensor,
        lengths_B: Tensor | None,
        dropout: Dropout,
        read_BM: Tensor | None = None,
        depths: Sequence[int] | None = None,
        packing: Packing | None = None,
        second_B: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Hidden states at the positions read, a tuple of (B, M, H) for each of `depths`.

        embedded_BSH: token embeddings. lengths_B: real tokens of each row, None where no row is padded.
        read_BM: positions wanted, None for all (then (B, S, H)). depths: rising; None: the last layer.
        Layers above the deepest are not run, and that one only at the positions read. packing: then
        embedded_BSH is (T, 1, H), the real tokens alone (packing.py); what is returned is the same, but zero
        at padding. second_B: position from which on a row has token type 1; None where all have type 0.
        """
        depths = depths or (len(self.layers),)
        x_BSH = self.embed(embedded_BSH, dropout, packing, second_B)
        pad = packing.pad if packing else same
        hidden = []
        for depth, layer in enumerate(self.layers[: depths[-1] - 1], 1):
            x_BSH = layer(x_BSH, lengths_B, dropout, None, packing)
            if depth in depths:
                hidden.append(pad(x_BSH) if read_BM is None else gather_rows(pad(x_BSH), read_BM))
        x_BSH = self.layers[depths[-1] - 1](x_BSH, lengths_B, dropout, read_BM, packing)
        return (*hidden, pad(x_BSH) if read_BM is None else x_BSH)
