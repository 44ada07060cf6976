"""The parts that the bodies of all kinds are made of: layers, their stack, dropout without state.

Parts that may be cut for tensor parallelism say how in `cuts`: {name of a submodule: way}. The
ways, and what cuts, are in models/tensor_parallel.py; nothing here knows whether it is a whole or a
part.

Shapes: B batch, S sequence, M positions read, Q queries, H hidden, N heads, D = H/N, F
feed-forward, V vocabulary, P rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ds_minimodel import ops
from ds_minimodel.models.kind import BodyConfig


class Unpadding:
    """The real tokens of a padded batch, and conversion between its padded and unpadded layout.

    The rows beyond T are zero wherever they enter, count as position 0 of sample 0, and come out
    nowhere: they make the shapes of products few (ops.rows_for_few_shapes) and change no result.

    Args:
        token_index_T: int64 index of each real token in the batch's B*S positions, rising.
        batch_size: B.
        width: S.
        num_rows: R, at least T.
    """

    def __init__(self, token_index_T: Tensor, batch_size: int, width: int, num_rows: int):
        self.token_index_T = token_index_T
        self.batch_size = batch_size
        self.width = width
        self.num_rows = num_rows
        self.row_R = self.extend(token_index_T // width, 0)
        self.position_R1 = self.extend(token_index_T % width, 0)[:, None]

    def extend(self, values_T: Tensor, filler: int) -> Tensor:
        """Return values (T,) with `filler` behind them, (R,)."""
        extra = self.num_rows - len(values_T)
        return F.pad(values_T, (0, extra), value=filler) if extra else values_T

    def unpad(self, x_BSH: Tensor) -> Tensor:
        """Return the real tokens of x (B, S, H), (R, 1, H)."""
        rows_RH = _MoveRows.apply(
            x_BSH.flatten(0, 1), self.token_index_T, self.num_rows, _gather, _scatter
        )
        return rows_RH[:, None]

    def pad(self, x_R1H: Tensor) -> Tensor:
        """Return x (R, 1, H) in the padded layout, (B, S, H), zero where there is no token."""
        rows_PH = _MoveRows.apply(
            x_R1H[:, 0], self.token_index_T, self.batch_size * self.width, _scatter, _gather
        )
        return rows_PH.unflatten(0, (self.batch_size, self.width))


# A function of rows, an index, and how many rows it shall return.
_Move = Callable[[Tensor, Tensor, int], Tensor]


class _MoveRows(torch.autograd.Function):
    """Rows moved by `move`, `_gather` or `_scatter`, and their gradients by `back`, the other one.

    The index has no duplicates, so that gradients need no atomic additions.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token_index_T: Tensor, size: int, move: _Move, back: _Move
    ) -> Tensor:
        ctx.save_for_backward(token_index_T)
        ctx.size = len(x)
        ctx.back = back
        return move(x, token_index_T, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(grad, *ctx.saved_tensors, ctx.size), None, None, None, None


def _gather(x_PH: Tensor, token_index_T: Tensor, num_rows: int) -> Tensor:
    """Return the rows at an index, (R, H), with rows of zeros behind them."""
    rows_TH = x_PH.index_select(0, token_index_T)
    if num_rows == len(token_index_T):
        return rows_TH
    rows_RH = x_PH.new_zeros(num_rows, x_PH.shape[1])
    rows_RH[: len(token_index_T)] = rows_TH
    return rows_RH


def _scatter(x_RH: Tensor, token_index_T: Tensor, num_positions: int) -> Tensor:
    """Return rows put where an index says, (P, H), zero elsewhere."""
    return x_RH.new_zeros(num_positions, x_RH.shape[1]).index_copy_(
        0, token_index_T, x_RH[: len(token_index_T)]
    )


INIT_STD = 0.02
# This stands before the names of the rows that an extended language has of its base.
BASE_ROWS = "base_"


class Dropout:
    """Dropout of one forward pass.

    Every bit is a function of sample key, site, position and element. So the bits do not depend on
    how a batch is split over ranks and micro-batches, nor on which positions a layer computes.

    Args:
        sample_keys_B: int32, a key for each sample; None without dropout.
        p: rate after embeddings and blocks.
        attention_p: rate of attention probabilities.
    """

    def __init__(self, sample_keys_B: Tensor | None, p: float = 0.0, attention_p: float = 0.0):
        self.sample_keys_B = sample_keys_B
        self.p = p
        self.attention_p = attention_p

    def row_keys(self, site: int | range, positions: Tensor) -> Tensor | None:
        """Return row keys (B, S) of dropout `site` at `positions`; None without dropout.

        `positions` are (S,), or (B, M) with keys (B, M). A range of sites is that of attention
        probabilities, one for each head: (B, N, Q).
        """
        if not (self.attention_p if isinstance(site, range) else self.p):
            return None
        assert self.sample_keys_B is not None, "a batch that trains with dropout needs sample_keys"
        return ops.row_keys(self.sample_keys_B, site, positions)

    def of_tokens(self, row_T: Tensor) -> Dropout:
        """Return the same dropout for unpadded tokens, of which `row_T` is the sample of each."""
        if self.sample_keys_B is None:
            return self
        return Dropout(self.sample_keys_B[row_T], self.p, self.attention_p)


# The dropout of evaluation.
NO_DROPOUT = Dropout(None)


class Rows(NamedTuple):
    """The rows of hidden states that are computed.

    Attributes:
        positions: (S,) of all samples, or (B, M).
        dropout: of the pass.
    """

    positions: Tensor
    dropout: Dropout

    @property
    def p(self) -> float:
        """Rate of the dropout."""
        return self.dropout.p

    def keys(self, site: int) -> Tensor | None:
        """Return the row keys of dropout `site`; None without dropout."""
        return self.dropout.row_keys(site, self.positions)

    def drop(self, x: Tensor, site: int) -> Tensor:
        """Return x after dropout `site`."""
        return ops.dropout(x, self.p, self.keys(site))

    def unpadded(self, unpadding: Unpadding) -> Rows:
        """Return the same rows of an unpadded batch."""
        return Rows(unpadding.position_R1, self.dropout.of_tokens(unpadding.row_R))


def gather_rows(x_BSH: Tensor, read_BM: Tensor) -> Tensor:
    """Return the rows of each sequence at the positions `read_BM`, (B, M, H)."""
    return x_BSH.gather(1, read_BM[..., None].expand(-1, -1, x_BSH.shape[-1]))


def _padded(x: Tensor, unpadding: Unpadding | None) -> Tensor:
    return unpadding.pad(x) if unpadding else x


def init_weights(module: nn.Module) -> None:
    """Initialise a linear layer as fairseq does: N(0, 0.02), biases 0."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0, INIT_STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Linear(nn.Linear):
    """nn.Linear by ops.linear, which is fast in bf16 on every CPU.

    Args:
        inputs: width of what goes in.
        blocks: outputs of each of the matrices that the weight holds below each other.
        bias: whether it has a bias.
    """

    def __init__(self, inputs: int, *blocks: int, bias: bool = True):
        super().__init__(inputs, sum(blocks), bias)
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b, (…, outputs)."""
        return ops.linear(x, self.weight, self.bias)


class GeluLinear(Linear):
    """A linear layer and GELU, which adds the bias too."""

    def forward(self, x: Tensor) -> Tensor:
        """Return gelu(x W^T + b), (…, outputs)."""
        return ops.bias_gelu(ops.linear(x, self.weight), self.bias)


class Projection(Linear):
    """Queries, keys and values of the heads of attention.

    Args:
        config: of the body.
        sites: dropout's sites, one for each head.
        bias: whether it has a bias.
    """

    def __init__(self, config: BodyConfig, sites: range, *, bias: bool = True):
        self.head_width = config.head_width
        self.sites = sites
        queries = config.num_heads * config.head_width
        keys = config.num_key_heads * config.head_width
        super().__init__(config.hidden_size, queries, keys, keys, bias=bias)

    @property
    def num_heads(self) -> int:
        """Heads of queries, on this rank."""
        return self.blocks[0] // self.head_width

    @property
    def num_key_heads(self) -> int:
        """Heads of keys and values, on this rank."""
        return self.blocks[1] // self.head_width

    def forward(  # type: ignore[override]
        self, x_BSH: Tensor, x_BQH: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Project hidden states.

        Returns:
            (keys and values of x_BSH side by side, queries of x_BQH); without x_BQH (all three of
            x_BSH side by side, None).
        """
        if x_BQH is None:
            return super().forward(x_BSH), None
        sizes = [self.blocks[0], sum(self.blocks[1:])]
        query, key_value = self.weight.split(sizes)
        query_bias = None
        key_value_bias = None
        if self.bias is not None:
            query_bias, key_value_bias = self.bias.split(sizes)
        keys_values = ops.linear(x_BSH, key_value, key_value_bias)
        return keys_values, ops.linear(x_BQH, query, query_bias)


class Norm(nn.Module):
    """LayerNorm, with a bias or without, or RMS norm.

    Args:
        size: columns of what it normalises.
        eps: added to the variance.
        bias: whether it has one.
        rms: whether it is an RMS norm.
    """

    def __init__(self, size: int, eps: float, *, bias: bool = True, rms: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None
        self.eps = eps
        self.rms = rms

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        p: float = 0.0,
        row_keys: Tensor | None = None,
    ) -> Tensor:
        """Return the norm of residual + dropout(x)."""
        return self.and_sum(x, residual, p=p, row_keys=row_keys)[0]

    def and_sum(
        self, x: Tensor, residual: Tensor | None, p: float = 0.0, row_keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of residual + dropout(x), and that sum."""
        return ops.residual_norm(
            x,
            residual,
            weight=self.weight,
            bias=self.bias,
            eps=self.eps,
            p=p,
            row_keys=row_keys,
            rms=self.rms,
        )


class AttentionInputs(NamedTuple):
    """What the attention of a layer works on.

    Attributes:
        projected: (B, S, …) queries, keys and values side by side; or, with `queries`, the other
            two.
        queries: (B, Q, N*D), where they were projected apart.
        positions: of the queries, (S,) where these are all, else (B, Q).
        lengths: (B,) real tokens of each row; None where no row is padded.
        p: rate of the dropout of the probabilities.
        row_keys: keys of that dropout, (B, N, Q).
    """

    projected: Tensor
    queries: Tensor | None
    positions: Tensor
    lengths: Tensor | None
    p: float
    row_keys: Tensor | None


class Layer(nn.Module, ABC):
    """A layer of self-attention and a feed-forward block.

    What is the same in every kind is here: unpadding, the rows that are read, dropout's sites. A
    kind sets the four products, and says by `attend` how queries meet keys and by `join` how the
    two branches are added; where it needs to, by `before_attention` and `activate` what stands
    before and between the products. `recomputes` says that its input alone is kept, and that the
    backward pass computes the rest again.
    """

    cuts: ClassVar[Mapping[str, str]] = {
        "qkv": "heads",
        "attention_out": "row",
        "ffn_in": "column",
        "ffn_out": "row",
    }
    recomputes = False
    qkv: Projection
    attention_out: Linear
    ffn_in: Linear
    ffn_out: Linear

    def __init__(self, config: BodyConfig, index: int):
        super().__init__()
        self.sites = config.dropout_sites.layer(index)

    def before_attention(self, x_BSH: Tensor) -> Tensor:
        """Return what attention reads."""
        return x_BSH

    def queries_apart(self, x_BSH: Tensor) -> bool:
        """Return whether queries are a separate product where all positions are read, too."""
        return False

    @abstractmethod
    def attend(self, given: AttentionInputs) -> Tensor:
        """Return the context of the queries, (B, Q, N*D)."""

    @abstractmethod
    def join(self, x_BQH: Tensor, attended_BQH: Tensor, rows: Rows) -> Tensor:
        """Return the layer's output, from its input and what attention gives."""

    def activate(self, inner: Tensor) -> Tensor:
        """Return what ffn_out reads of what ffn_in gives."""
        return inner

    def feed_forward(self, x_BQH: Tensor) -> Tensor:
        """Return the output of the feed-forward block."""
        inner = self.ffn_in(x_BQH)
        active = self.activate(inner)
        with self.recomputing(active, self.activate, inner):
            return self.ffn_out(active)

    def recomputing(
        self, x: Tensor, make: Callable[[Tensor], Tensor], given: Tensor
    ) -> AbstractContextManager:
        """Return a context in which autograd keeps `given` in place of x, which is make(given).

        The backward pass computes x again.

        Args:
            x: what autograd would keep there.
            make: what made it.
            given: what `make` made it of.
        """
        if x is given or self.recomputes:
            return nullcontext()
        return _not_saved(x, partial(make, given))

    def forward(
        self,
        x_BSH: Tensor,
        lengths_B: Tensor | None,
        dropout: Dropout,
        read_BM: Tensor | None = None,
        unpadding: Unpadding | None = None,
    ) -> Tensor:
        """Compute the hidden states after the layer.

        Keys and values are computed everywhere; with `read_BM`, queries and all that follows only
        there.

        Args:
            x_BSH: hidden states before the layer; with `unpadding` (T, 1, H).
            lengths_B: real tokens of each row; None where no row is padded.
            dropout: of the pass.
            read_BM: positions whose states are wanted; None for all.
            unpadding: of the batch, where hidden states are unpadded.

        Returns:
            Hidden states, (B, S, H) or (T, 1, H) like x_BSH; at `read_BM` always (B, M, H).
        """
        input_BSH = self.before_attention(x_BSH)
        if read_BM is None:
            x_BQH = x_BSH
            input_BQH = input_BSH if self.queries_apart(input_BSH) else None
        else:
            x_BQH = gather_rows(_padded(x_BSH, unpadding), read_BM)
            input_BQH = x_BQH
            if input_BSH is not x_BSH:
                input_BQH = gather_rows(_padded(input_BSH, unpadding), read_BM)
        with self.recomputing(input_BSH, self.before_attention, x_BSH):
            projected, queries = self.qkv(input_BSH, input_BQH)
        projected = _padded(projected, unpadding)
        if queries is not None and read_BM is None:
            queries = _padded(queries, unpadding)
        positions = read_BM
        if positions is None:
            positions = torch.arange(projected.shape[1], device=x_BSH.device)
        row_keys = dropout.row_keys(self.qkv.sites, positions)
        given = AttentionInputs(
            projected=projected,
            queries=queries,
            positions=positions,
            lengths=lengths_B,
            p=dropout.attention_p,
            row_keys=row_keys,
        )
        context_BQH = self.attend(given)
        rows = Rows(positions, dropout)
        if unpadding and read_BM is None:
            context_BQH = unpadding.unpad(context_BQH)
            rows = rows.unpadded(unpadding)
        return self.join(x_BQH, self.attention_out(context_BQH), rows)


def _not_saved(x: Tensor, make: Callable[[], Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    """Return a context in which autograd does not keep `x`: its backward pass calls `make`."""
    storage = x.untyped_storage()._cdata
    size = x.numel()

    def pack(saved: Tensor) -> Tensor | torch.Size:
        is_x = (
            saved.untyped_storage()._cdata == storage
            and saved.numel() == size
            and saved.is_contiguous()
        )
        return saved.shape if is_x else saved

    def unpack(packed: Tensor | torch.Size) -> Tensor:
        return make().view(packed) if isinstance(packed, torch.Size) else packed

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class Table(NamedTuple):
    """A table of a language in two parts.

    Attributes:
        rows: (N, H), which may train.
        base: (K, H), the rows before them, of a base that the language extends.
    """

    rows: Tensor
    base: Tensor | None = None


class LanguagePack(nn.Module):
    """A language: its token embeddings and its output projection.

    The embeddings are `tokens`; the output projection is the same table or `output`, with `bias` or
    without.

    Args:
        vocab_size: ids of the language.
        config: of the body, which says what a language has.
        num_base: how many of the first ids are those of a base that the language extends; their
            rows are separate parameters, `base_tokens` and so on, which do not train.
    """

    cuts: ClassVar[Mapping[str, str]] = {"": "vocabulary"}
    tokens: nn.Parameter
    output: nn.Parameter

    def __init__(self, vocab_size: int, config: BodyConfig, num_base: int = 0):
        super().__init__()
        num_rows = vocab_size - num_base
        for name in config.language_tensors:
            row_shape: tuple[int, ...] = ()
            if name != "bias":
                row_shape = (config.hidden_size,)
            rows = torch.zeros(num_rows, *row_shape)
            if name != "bias":
                rows.normal_(0, INIT_STD)
            self.register_parameter(name, nn.Parameter(rows))
            if num_base:
                base = nn.Parameter(torch.zeros(num_base, *row_shape), requires_grad=False)
                self.register_parameter(BASE_ROWS + name, base)
        self.tied = "output" not in config.language_tensors
        self.num_base = num_base

    def table(self, name: str) -> Table:
        """Return the rows of `tokens`, `output` or `bias`.

        They are views: at ZeRO 3 they keep what was gathered of a matrix until the backward pass.
        """
        return Table(*(rows.view_as(rows) for rows in self._rows(name)))

    def _rows(self, name: str) -> list[Tensor]:
        """Return the language's rows of a table, and then those of its base where it has one."""
        names = [name, BASE_ROWS + name] if self.num_base else [name]
        return [getattr(self, part) for part in names]

    def forward(self, tokens_BS: Tensor) -> tuple[Tensor, Table]:
        """Return the tokens' embeddings, (B, S, H), and the output projection as losses take it."""
        embedded_BSH, table = self.embed(tokens_BS)
        return embedded_BSH, table if self.tied else self.table("output")

    def embed(self, tokens_BS: Tensor) -> tuple[Tensor, Table]:
        """Return embeddings of the tokens, and their table as a tied output projection takes it."""
        if not self.num_base:
            embedded_BSH, rows = ops.embedding(tokens_BS, self.tokens)
            return embedded_BSH, Table(rows)
        # Every token is looked up in both parts, and the embedding of the right one is taken.
        rows, base = self._rows("tokens")
        index_BS = tokens_BS - self.num_base
        added_BSH, rows = ops.embedding(index_BS.clamp(min=0), rows)
        known_BSH = F.embedding(tokens_BS.clamp(max=self.num_base - 1), base)
        embedded_BSH = torch.where(index_BS[..., None] < 0, known_BSH, added_BSH)
        return embedded_BSH, Table(rows, base.view_as(base))

    def logits(self, x_PH: Tensor, table: Table) -> Tensor:
        """Return the scores (P, N) of all tokens but a base's, of a pack that is not split.

        Args:
            x_PH: a head's outputs.
            table: the output projection.
        """
        bias = self.table("bias").rows if hasattr(self, "bias") else None
        return ops.linear(x_PH, table.rows, bias)

    def cross_entropy(self, x_PH: Tensor, table: Table, targets_P: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of the targets, () float32.

        Args:
            x_PH: a head's outputs.
            table: the output projection.
            targets_P: ids; IGNORED gives no loss.
        """
        return ops.linear_cross_entropy(
            x_PH, table.rows, bias=self.whole_bias(), targets=targets_P, base=table.base
        )

    def token_losses(self, x_PH: Tensor, table: Table, targets_P: Tensor) -> Tensor:
        """Return the cross-entropy of each target, (P,) float32, without a gradient."""
        return ops.token_losses(
            x_PH, table.rows, bias=self.whole_bias(), targets=targets_P, base=table.base
        )

    def log_sums(self, x_PH: Tensor, table: Table) -> Tensor:
        """Return the logarithms of the sums of the exponentials of `logits`, (P,) float32."""
        return self.logits(x_PH, table).float().logsumexp(-1)

    def whole_bias(self) -> Tensor | None:
        """Return the output projection's bias, where there is one, a base's tokens first."""
        return torch.cat(self._rows("bias")[::-1]) if hasattr(self, "bias") else None


# Dropout's bits are hashes: the second pass has those of the first.
_checkpointed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


class Body(nn.Module, ABC):
    """All of a model but its language pack: layers, and the heads that read their states.

    A kind's body sets `layers`, each a Layer, and `heads`, modules by depth that map hidden states
    (P, H) to what the output projection of a pack is applied to, (P, H).
    """

    layers: nn.ModuleList
    heads: nn.ModuleDict

    def __init__(self, config: BodyConfig, head_depths: Sequence[int] = ()):
        super().__init__()
        self.config = config
        self.head_depths = tuple(head_depths)

    def language_head(self) -> nn.Module:
        """Return a fresh head of a language model."""
        raise NotImplementedError

    def final_norm(self) -> Norm | None:
        """Return a fresh norm of the last states, with which a head begins, where there is one."""
        return None

    @abstractmethod
    def embed(self, embedded_BSH: Tensor, positions: Tensor, second: Tensor | None) -> Tensor:
        """Return what the lowest layer reads, before dropout, of token embeddings.

        Args:
            embedded_BSH: token embeddings.
            positions: of the tokens, (S,) or, unpadded, (T, 1).
            second: position from which on a row has token type 1, (B, 1) or (T, 1); None where all
                have type 0.
        """

    def dropout(self, sample_keys_B: Tensor | None) -> Dropout:
        """Return the dropout of a forward pass in the module's mode, training or evaluation."""
        if not self.training:
            return NO_DROPOUT
        return Dropout(sample_keys_B, self.config.dropout, self.config.attention_dropout)

    def forward(
        self,
        embedded_BSH: Tensor,
        lengths_B: Tensor | None,
        dropout: Dropout,
        read_BM: Tensor | None = None,
        unpadding: Unpadding | None = None,
        second_B: Tensor | None = None,
        *,
        pads_back: bool = True,
    ) -> tuple[Tensor, ...]:
        """Compute the hidden states that the heads read.

        Args:
            embedded_BSH: token embeddings; with `unpadding` (T, 1, H), the real tokens alone.
            lengths_B: real tokens of each row; None where no row is padded.
            dropout: of the pass.
            read_BM: positions wanted, where alone the last layer is run; None for all.
            unpadding: of the batch, where its padding is left out; what is returned is zero there.
            second_B: position from which on a row has token type 1; None where all have type 0.
            pads_back: whether the last layer's states of all positions are padded again, else they
                stay (T, 1, H).

        Returns:
            Hidden states for each head, without heads the last layer's: (B, M, H), or (B, S, H) of
            all positions.
        """
        rows = Rows(torch.arange(embedded_BSH.shape[1], device=embedded_BSH.device), dropout)
        if unpadding:
            rows = rows.unpadded(unpadding)
            second_B = None if second_B is None else second_B[unpadding.row_R]
        second_B1 = None if second_B is None else second_B[:, None]
        x_BSH = self.embed(embedded_BSH, rows.positions, second_B1)
        x_BSH = rows.drop(x_BSH, self.config.dropout_sites.embeddings)
        hidden = []
        *layers, last = self.layers
        recomputes = last.recomputes and torch.is_grad_enabled()
        run: Callable[..., Tensor] = _checkpointed if recomputes else nn.Module.__call__
        for depth, layer in enumerate(layers, 1):
            x_BSH = run(layer, x_BSH, lengths_B, dropout, None, unpadding)
            if depth in self.head_depths:
                padded_BSH = _padded(x_BSH, unpadding)
                hidden.append(padded_BSH if read_BM is None else gather_rows(padded_BSH, read_BM))
        x_BSH = run(last, x_BSH, lengths_B, dropout, read_BM, unpadding)
        if read_BM is None and pads_back:
            x_BSH = _padded(x_BSH, unpadding)
        return (*hidden, x_BSH)
