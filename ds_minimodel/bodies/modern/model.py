"""Modules of today's bodies. Shapes as in bodies/body.py, and K heads of keys and values."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops, parallel
from ds_minimodel.bodies.body import INIT_STD, Body, Dropout, Layer, Linear, Part, gather_rows, same
from ds_minimodel.bodies.modern import ModernConfig, Rotation
from ds_minimodel.bodies.packing import Packing

_LEAST_TABLE = 256  # positions of the smallest table of angles


class Norm(nn.Module):
    """LayerNorm without a bias, or RMS norm."""

    def __init__(self, config: ModernConfig, size: int | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size or config.hidden_size))
        self.eps, self.rms = config.norm_eps, config.rms

    def forward(self, x: Tensor) -> Tensor:
        return self.of_sum(x, None)[0]

    def of_sum(
        self, x: Tensor, residual: Tensor | None, p: float = 0.0, row_keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The norm of residual + dropout(x), and that sum."""
        return ops.residual_norm(x, residual, self.weight, None, self.eps, p, row_keys, self.rms)


class ModernLayer(Layer):
    """Attention with rotary positions and a gated feed-forward block, each between the norms that the family has."""

    ffn_in_sections = 2  # what the activation is applied to, and what multiplies it

    def __init__(self, config: ModernConfig, index: int):
        super().__init__(config, index)
        self.window, self.rotation = config.layer(index)
        self.activation, self.score_scale = config.activation, config.score_scale
        hidden, std = config.hidden_size, INIT_STD / math.sqrt(2 * config.num_layers)
        queries, keys, values = self.qkv_sizes
        self.attention_norm = Norm(config) if config.norms_before and (index or config.first_norm) else None
        self.qkv = _linear(hidden, queries + keys + values, bias=config.projection_bias)
        by_head = config.query_norm == "head"
        self.query_norm, self.key_norm = (
            None if config.query_norm == "none" else Norm(config, self.head_width if by_head else size)
            for size in (queries, keys)
        )
        self.attention_out = _linear(queries, hidden, std)
        self.attention_post_norm = Norm(config) if config.norms_after else None
        self.ffn_norm = Norm(config) if config.norms_before else None
        self.ffn_in = _linear(hidden, 2 * config.ffn_size)
        self.ffn_out = _linear(config.ffn_size, hidden, std)
        self.ffn_post_norm = Norm(config) if config.norms_after else None

    def forward(
        self,
        x_BSH: Tensor,
        lengths_B: Tensor | None,
        dropout: Dropout,
        read_BM: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        group, pad = self.group, packing.pad if packing else same
        normed_BSH = x_BSH if self.attention_norm is None else self.attention_norm(x_BSH)
        normed_BSH = parallel.copy(normed_BSH, group)
        sizes = [self.qkv_sizes[0], sum(self.qkv_sizes[1:])]
        query, key_value = self.qkv.weight.split(sizes)
        query_bias, key_value_bias = (None, None) if self.qkv.bias is None else self.qkv.bias.split(sizes)
        keys_values = pad(ops.linear(normed_BSH, key_value, key_value_bias))
        if read_BM is None:
            queries, positions = pad(ops.linear(normed_BSH, query, query_bias)), None
        else:
            x_BSH, positions = gather_rows(pad(x_BSH), read_BM), read_BM
            queries = ops.linear(gather_rows(pad(normed_BSH), read_BM), query, query_bias)
        context_BQH, positions = self._attention(keys_values, queries, positions, lengths_B, dropout)
        if packing and read_BM is None:
            context_BQH = packing.pack(context_BQH)
            dropout, positions = dropout.of_tokens(packing.row_R), packing.position_R1
        attended = parallel.row_linear(self.attention_out, context_BQH, group)
        p, keys = dropout.p, dropout.row_keys(self.sites.attention_out, positions)
        if self.attention_post_norm is not None:
            attended = self.attention_post_norm(attended)
        if self.ffn_norm is not None:
            normed_BQH, x_BQH = self.ffn_norm.of_sum(attended, x_BSH, p, keys)
        else:
            normed_BQH = x_BQH = x_BSH + ops.dropout(attended, p, keys)
        inner = ops.gated(self.ffn_in(parallel.copy(normed_BQH, group)), self.activation)
        outer_BQH = parallel.row_linear(self.ffn_out, inner, group)
        if self.ffn_post_norm is not None:
            outer_BQH = self.ffn_post_norm(outer_BQH)
        return x_BQH + ops.dropout(outer_BQH, p, dropout.row_keys(self.sites.ffn_out, positions))

    def _attention(
        self, keys_values: Tensor, queries: Tensor, read: Tensor | None, lengths_B: Tensor | None, dropout: Dropout
    ) -> tuple[Tensor, Tensor]:
        """(Context of the queries, their positions); read: these positions, None: all."""
        if self.query_norm is not None and self.key_norm is not None:
            keys, values = keys_values.chunk(2, -1)
            queries, keys = self._normed(self.query_norm, queries), self._normed(self.key_norm, keys)
            keys_values = torch.cat((keys, values), -1)
        length, device = keys_values.shape[1], queries.device
        table = _table(self.rotation, self.head_width, 1 << (max(length, _LEAST_TABLE) - 1).bit_length(), device)
        keys_values = ops.rotary(keys_values, self.num_key_heads, table)
        queries = ops.rotary(queries, self.num_heads, table, read)
        positions = torch.arange(length, device=device) if read is None else read
        row_keys = dropout.attention_row_keys(self.sites.heads, positions)
        if self.window[1] == 0:
            lengths_B = None  # padding lies behind all that a real position sees
        context = ops.window_attention(
            keys_values,
            queries,
            self.num_heads,
            positions,
            self.window,
            lengths_B,
            dropout.attention_p,
            row_keys,
            self.score_scale,
        )
        return context, positions

    def _normed(self, norm: Norm, x: Tensor) -> Tensor:
        weight = parallel.copy(norm.weight, self.group)  # its gradient is the sum of those of all ranks' heads
        rows = x.unflatten(-1, (-1, len(weight)))
        return ops.residual_norm(rows, None, weight, None, norm.eps, rms=norm.rms)[0].flatten(-2)


class Head(Part):
    """The final norm, which heads do not share, and in some families a dense layer, GELU and a norm."""

    def __init__(self, config: ModernConfig):
        super().__init__()
        hidden = config.hidden_size
        self.final_norm = Norm(config)
        self.dense = self.norm = None
        if config.dense_head:
            self.dense, self.norm = _linear(hidden, hidden, INIT_STD / math.sqrt(2 * config.num_layers)), Norm(config)

    def split(self, group: parallel.Group) -> None:
        """The dense layer by outputs."""
        if self.dense is not None:
            parallel.shard_parameter(self.dense, "weight", group, dim=0)

    def forward(self, x_PH: Tensor) -> Tensor:
        x_PH = self.final_norm(x_PH)
        if self.dense is None or self.norm is None:
            return x_PH
        inner = F.gelu(self.dense(parallel.copy(x_PH, self.group)))
        return self.norm(parallel.gather(inner, self.group))


class ModernBody(Body):
    """Layers and heads, below them the norm of the embeddings in a family that has one; positions are in the layers."""

    def __init__(self, config: ModernConfig, head_depths: Sequence[int] = ()):
        super().__init__(config, head_depths)
        self.embedding_norm = Norm(config) if config.embedding_norm else None
        self.embedding_scale = math.sqrt(config.hidden_size) if config.scaled_embeddings else 1.0
        self.layers = nn.ModuleList(ModernLayer(config, index) for index in range(config.num_layers))
        self.heads = nn.ModuleDict({str(depth): Head(config) for depth in head_depths})

    def finish(self, x_BSH: Tensor) -> Tensor:
        return cast(Head, self.heads[str(self.head_depths[-1])]).final_norm(x_BSH)

    def embed(self, embedded_BSH: Tensor, dropout: Dropout, packing: Packing | None, second_B: Tensor | None) -> Tensor:
        if packing:
            positions, dropout = packing.position_R1, dropout.of_tokens(packing.row_R)
        else:
            positions = torch.arange(embedded_BSH.shape[1], device=embedded_BSH.device)
        if self.embedding_scale != 1:
            embedded_BSH = embedded_BSH * self.embedding_scale
        if self.embedding_norm is not None:
            embedded_BSH = self.embedding_norm(embedded_BSH)
        row_keys = dropout.row_keys(self.config.dropout_sites.embeddings, positions)
        return ops.dropout(embedded_BSH, dropout.p, row_keys)


def _linear(inputs: int, outputs: int, std: float = INIT_STD, bias: bool = False) -> Linear:
    linear = Linear(inputs, outputs, bias=bias)
    nn.init.trunc_normal_(linear.weight, 0, std, -2 * std, 2 * std)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def waves(rotation: Rotation, head_width: int, device: torch.device) -> Tensor:
    """The angle between two positions in each plane of a head, (D/2,) fp32."""
    powers = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    # As published code has it: of base ** -x the last bits differ, which thousands of positions multiply.
    found = 1.0 / rotation.base**powers
    if rotation.factor == 1:
        return found
    lengths = 2 * math.pi / found
    between = (rotation.original / lengths - rotation.low) / (rotation.high - rotation.low)
    between = between.clamp(0, 1)  # 0: slowed down, 1: as it was
    return (1 - between) * found / rotation.factor + between * found


@functools.lru_cache(maxsize=32)
def _table(rotation: Rotation, head_width: int, length: int, device: torch.device) -> Tensor:
    """Cosines and sines of the positions below `length`, made once for all layers and passes."""
    with torch.inference_mode(False):  # what is made in that mode could not be used in training
        return ops.rotary_table(waves(rotation, head_width, device), length)
