"""RoBERTa's and BERT's encoder (post-LN) with masked-LM heads at any set of depths.

Numerics follow fairseq's RoBERTa: LayerNorm after the embeddings, exact GELU, learned positions of which the
first real one is row 2, weights N(0, 0.02), biases 0. BERT differs by what BodyConfig says: another epsilon, and token
types, vectors that tell the two texts of a pair apart.

Each part has a `group` of ranks over which it is split, by default one of this rank alone; tensor_parallel.py
splits it. Sizes below are then those of this rank's part.

Shapes: B batch, S sequence, M positions read, Q queries, H hidden, N heads, D = H/N, F feed-forward,
V vocabulary, P rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops, parallel
from ds_minimodel.common.random import DropoutSites
from ds_minimodel.common.vocabulary import PAD
from ds_minimodel.model.packing import Packing

FIRST_POSITION = PAD + 1  # fairseq's positions: row PAD is padding's, the rows before it are not used
LAYER_NORM_EPS = 1e-5
INIT_STD = 0.02


@dataclass(frozen=True)
class BodyConfig:
    """Architecture of a body. `head_depths`: the numbers of layers after which a masked-LM head reads."""

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int
    max_positions: int
    head_depths: tuple[int, ...] = ()
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = LAYER_NORM_EPS
    token_types: int = 1  # vectors for token types; with one there is none, since positions can hold it

    @property
    def separators(self) -> int:
        """How many </s> stand between the two texts of a pair."""
        return separators(self.token_types)

    @property
    def dropout_sites(self) -> DropoutSites:
        """The numbers of the dropouts of this body and of a task's head on it."""
        return DropoutSites(self.num_layers, self.num_heads)


def separators(token_types: int) -> int:
    """How many </s> stand between two texts: RoBERTa's two, or one where token types tell them apart (BERT)."""
    return 2 if token_types == 1 else 1


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


def zero_padding_row(table: Tensor) -> Tensor:
    """Set row <pad> of a table of embeddings or positions (rows, H) to zero, in place; returns the table."""
    with torch.no_grad():
        table[PAD] = 0
    return table


def gather_rows(x_BSH: Tensor, read_BM: Tensor) -> Tensor:
    """Rows of each sequence at the positions `read_BM` -> (B, M, H)."""
    return x_BSH.gather(1, read_BM[..., None].expand(-1, -1, x_BSH.shape[-1]))


def _identity(x: Tensor) -> Tensor:
    return x


class Linear(nn.Linear):
    """nn.Linear by ops.linear, which is fast in bf16 on every CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class Layer(nn.Module):
    """One post-LN transformer layer."""

    def __init__(self, config: BodyConfig, index: int):
        super().__init__()
        hidden, self.num_heads = config.hidden_size, config.num_heads
        self.head_size = hidden // self.num_heads
        self.group = parallel.SOLO
        self.sites = config.dropout_sites.layer(index)
        self.qkv = Linear(hidden, 3 * hidden)
        self.attention_out = Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=config.norm_eps)
        self.ffn_in = Linear(hidden, config.ffn_size)
        self.ffn_out = Linear(config.ffn_size, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, eps=config.norm_eps)

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
        group, pad = self.group, packing.pad if packing else _identity
        width = self.num_heads * self.head_size
        shared_BSH = parallel.copy(x_BSH, group)
        if read_BM is None:
            projected, queries_BQH = pad(self.qkv(shared_BSH)), None
            x_BQH, positions = x_BSH, torch.arange(projected.shape[1], device=x_BSH.device)
        else:
            x_BQH, positions = gather_rows(pad(x_BSH), read_BM), read_BM
            queries_BQH = ops.linear(parallel.copy(x_BQH, group), self.qkv.weight[:width], self.qkv.bias[:width])
            projected = pad(ops.linear(shared_BSH, self.qkv.weight[width:], self.qkv.bias[width:]))
        context_BQH = ops.attention(
            projected,
            self.num_heads,
            lengths_B,
            dropout.attention_p,
            dropout.attention_row_keys(self.sites.heads, positions),
            queries_BQH,
        )
        if packing and read_BM is None:
            context_BQH = packing.pack(context_BQH)
            dropout, positions = dropout.of_tokens(packing.row_R), packing.position_R1
        attended_BQH = parallel.row_linear(self.attention_out, context_BQH, group)
        x_BQH = self._add_and_norm(
            self.attention_norm, attended_BQH, x_BQH, dropout, self.sites.attention_out, positions
        )
        inner_BQF = ops.bias_gelu(ops.linear(parallel.copy(x_BQH, group), self.ffn_in.weight), self.ffn_in.bias)
        outer_BQH = parallel.row_linear(self.ffn_out, inner_BQF, group)
        return self._add_and_norm(self.ffn_norm, outer_BQH, x_BQH, dropout, self.sites.ffn_out, positions)

    @staticmethod
    def _add_and_norm(
        norm: nn.LayerNorm, x: Tensor, residual: Tensor, dropout: Dropout, site: int, positions: Tensor
    ) -> Tensor:
        row_keys = dropout.row_keys(site, positions)
        return ops.residual_layer_norm(x, residual, norm.weight, norm.bias, norm.eps, dropout.p, row_keys)


class MaskedLmHead(nn.Module):
    """dense -> GELU -> LayerNorm; the output projection is the language's embedding matrix."""

    def __init__(self, hidden_size: int, norm_eps: float = LAYER_NORM_EPS):
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=norm_eps)
        self.group = parallel.SOLO

    def forward(self, x_PH: Tensor) -> Tensor:
        inner = ops.bias_gelu(ops.linear(parallel.copy(x_PH, self.group), self.dense.weight), self.dense.bias)
        inner = parallel.gather(inner, self.group)
        return ops.residual_layer_norm(inner, None, self.norm.weight, self.norm.bias, self.norm.eps)


class LanguagePack(nn.Module):
    """A language: token embeddings, tied as output projection, and its own output bias."""

    def __init__(self, vocab_size: int, hidden_size: int):
        super().__init__()
        self.tokens = nn.Parameter(zero_padding_row(torch.empty(vocab_size, hidden_size).normal_(0, INIT_STD)))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.rows, self.group = range(vocab_size), parallel.SOLO

    def forward(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the tokens -> (B, S, H); and the table as output projection, for `cross_entropy`."""
        if self.group.size == 1:
            return ops.embedding(tokens_BS, self.tokens, PAD)
        return parallel.embedding(tokens_BS, self.tokens, self.rows, PAD, self.group), self.tokens

    def cross_entropy(self, x_PH: Tensor, table: Tensor, targets_P: Tensor) -> Tensor:
        """Sum of the cross-entropies of predicting the targets from a head's outputs, a float32 scalar."""
        if self.group.size == 1:
            return ops.linear_cross_entropy(x_PH, table, self.bias, targets_P)
        return parallel.linear_cross_entropy(x_PH, table, self.bias, targets_P, self.rows, self.group)


class Body(nn.Module):
    """Positions, embedding norm, layers and masked-LM heads: all of a model but its language pack."""

    def __init__(self, config: BodyConfig):
        super().__init__()
        self.config = config
        self.positions = nn.Parameter(torch.empty(config.max_positions + FIRST_POSITION, config.hidden_size))
        self.embedding_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_layers))
        self.heads = nn.ModuleDict(
            {str(depth): MaskedLmHead(config.hidden_size, config.norm_eps) for depth in config.head_depths}
        )
        self.apply(init_weights)
        with torch.no_grad():
            zero_padding_row(self.positions.normal_(0, INIT_STD))
        self.types: nn.Parameter | None = None
        if config.token_types > 1:
            self.types = nn.Parameter(torch.empty(config.token_types, config.hidden_size).normal_(0, INIT_STD))

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
        depths = depths or (self.config.num_layers,)
        x_BSH = self._embed(embedded_BSH, dropout, packing, second_B)
        pad = packing.pad if packing else _identity
        hidden = []
        for depth, layer in enumerate(self.layers[: depths[-1] - 1], 1):
            x_BSH = layer(x_BSH, lengths_B, dropout, None, packing)
            if depth in depths:
                hidden.append(pad(x_BSH) if read_BM is None else gather_rows(pad(x_BSH), read_BM))
        x_BSH = self.layers[depths[-1] - 1](x_BSH, lengths_B, dropout, read_BM, packing)
        return (*hidden, pad(x_BSH) if read_BM is None else x_BSH)

    def _embed(
        self, embedded_BSH: Tensor, dropout: Dropout, packing: Packing | None, second_B: Tensor | None
    ) -> Tensor:
        if packing:
            positions, dropout = packing.position_R1, dropout.of_tokens(packing.row_R)
            added_BSH, _ = ops.embedding(FIRST_POSITION + positions, self.positions, PAD)
        else:
            positions = torch.arange(embedded_BSH.shape[1], device=embedded_BSH.device)
            added_SH = self.positions[FIRST_POSITION : FIRST_POSITION + len(positions)]
            added_BSH = added_SH[None].expand_as(embedded_BSH)
        if self.types is not None and second_B is None:
            added_BSH = added_BSH + self.types[0]
        elif self.types is not None and second_B is not None:
            second_B1 = (second_B[packing.row_R] if packing else second_B)[:, None]
            added_BSH = added_BSH + F.embedding((positions >= second_B1).long(), self.types)
        norm = self.embedding_norm
        x_BSH = ops.residual_layer_norm(embedded_BSH, added_BSH, norm.weight, norm.bias, norm.eps)
        row_keys = dropout.row_keys(self.config.dropout_sites.embeddings, positions)
        return ops.dropout(x_BSH, dropout.p, row_keys)


def init_weights(module: nn.Module) -> None:
    """fairseq's initialisation of linear layers: N(0, 0.02), biases 0."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0, INIT_STD)
        nn.init.zeros_(module.bias)
