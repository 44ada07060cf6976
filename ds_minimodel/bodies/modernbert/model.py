"""ModernBERT's modules. Shapes as in bodies/body.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops, parallel
from ds_minimodel.bodies.body import INIT_STD, Body, Dropout, Layer, Linear, Part, gather_rows, same
from ds_minimodel.bodies.modernbert import ModernBertConfig
from ds_minimodel.bodies.packing import Packing


def _norm(config: ModernBertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)


def _linear(inputs: int, outputs: int, std: float = INIT_STD) -> Linear:
    linear = Linear(inputs, outputs, bias=False)
    nn.init.trunc_normal_(linear.weight, 0, std, -2 * std, 2 * std)
    return linear


class ModernBertLayer(Layer):
    """One pre-norm layer: attention with rotary positions, a gated feed-forward block."""

    ffn_in_sections = 2  # what GELU is applied to, and what multiplies it

    def __init__(self, config: ModernBertConfig, index: int):
        super().__init__(config, index)
        hidden = config.hidden_size
        self.reach = None if config.is_global(index) else config.window
        self.base = config.global_base if config.is_global(index) else config.local_base
        narrow = INIT_STD / math.sqrt(2 * config.num_layers)
        self.attention_norm = _norm(config) if index else None  # the first layer's input has just been normalised
        self.qkv = _linear(hidden, 3 * hidden)
        self.attention_out = _linear(hidden, hidden, narrow)
        self.ffn_norm = _norm(config)
        self.ffn_in = _linear(hidden, 2 * config.ffn_size)
        self.ffn_out = _linear(config.ffn_size, hidden, narrow)

    def forward(
        self,
        x_BSH: Tensor,
        lengths_B: Tensor | None,
        dropout: Dropout,
        read_BM: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        group, pad = self.group, packing.pad if packing else same
        normed_BSH = parallel.copy(x_BSH if self.attention_norm is None else self.attention_norm(x_BSH), group)
        query, key_value = self.qkv.weight.split([len(self.qkv.weight) // 3, 2 * len(self.qkv.weight) // 3])
        keys_values = pad(ops.linear(normed_BSH, key_value))
        positions_S = torch.arange(keys_values.shape[1], device=x_BSH.device)
        if read_BM is None:
            queries, positions = pad(ops.linear(normed_BSH, query)), positions_S
        else:
            x_BSH, positions = gather_rows(pad(x_BSH), read_BM), read_BM
            queries = ops.linear(gather_rows(pad(normed_BSH), read_BM), query)
        context_BQH = self._attention(keys_values, queries, positions_S, positions, lengths_B, dropout)
        if packing and read_BM is None:
            context_BQH = packing.pack(context_BQH)
            dropout, positions = dropout.of_tokens(packing.row_R), packing.position_R1
        x_BQH = x_BSH + self._dropped(
            parallel.row_linear(self.attention_out, context_BQH, group), dropout, self.sites.attention_out, positions
        )
        inner = ops.gated(self.ffn_in(parallel.copy(self.ffn_norm(x_BQH), group)), "gelu")
        outer_BQH = parallel.row_linear(self.ffn_out, inner, group)
        return x_BQH + self._dropped(outer_BQH, dropout, self.sites.ffn_out, positions)

    def _attention(
        self,
        keys_values: Tensor,
        queries: Tensor,
        positions_S: Tensor,
        positions: Tensor,
        lengths_B: Tensor | None,
        dropout: Dropout,
    ) -> Tensor:
        width = queries.shape[-1] // self.num_heads
        # As its published code has it: of base ** -x the last bits differ, which thousands of positions multiply.
        waves = 1.0 / self.base ** (torch.arange(0, width, 2, device=queries.device, dtype=torch.float32) / width)
        table = ops.rotary_table(waves, len(positions_S))
        keys_values = ops.rotary(keys_values, self.num_heads, table)
        queries = ops.rotary(queries, self.num_heads, table, positions)
        row_keys, p = dropout.attention_row_keys(self.sites.heads, positions), dropout.attention_p
        window = (self.reach, self.reach)
        return ops.window_attention(keys_values, queries, self.num_heads, positions, window, lengths_B, p, row_keys)

    @staticmethod
    def _dropped(x: Tensor, dropout: Dropout, site: int, positions: Tensor) -> Tensor:
        return ops.dropout(x, dropout.p, dropout.row_keys(site, positions))


class Head(Part):
    """norm -> dense -> GELU -> norm. The first is the body's final norm: heads share layers, not norms."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.final_norm = _norm(config)
        self.dense = _linear(config.hidden_size, config.hidden_size, INIT_STD / math.sqrt(2 * config.num_layers))
        self.norm = _norm(config)

    def split(self, group: parallel.Group) -> None:
        """The dense layer by outputs."""
        parallel.shard_parameter(self.dense, "weight", group, dim=0)

    def forward(self, x_PH: Tensor) -> Tensor:
        inner = F.gelu(self.dense(parallel.copy(self.final_norm(x_PH), self.group)))
        return self.norm(parallel.gather(inner, self.group))


class ModernBertBody(Body):
    """The norm of the embeddings, layers and heads; positions are in the layers."""

    def __init__(self, config: ModernBertConfig, head_depths: Sequence[int] = ()):
        super().__init__(config, head_depths)
        self.embedding_norm = _norm(config)
        self.layers = nn.ModuleList(ModernBertLayer(config, index) for index in range(config.num_layers))
        self.heads = nn.ModuleDict({str(depth): Head(config) for depth in head_depths})

    def finish(self, x_BSH: Tensor) -> Tensor:
        return cast(Head, self.heads[str(self.head_depths[-1])]).final_norm(x_BSH)

    def embed(self, embedded_BSH: Tensor, dropout: Dropout, packing: Packing | None, second_B: Tensor | None) -> Tensor:
        if packing:
            positions, dropout = packing.position_R1, dropout.of_tokens(packing.row_R)
        else:
            positions = torch.arange(embedded_BSH.shape[1], device=embedded_BSH.device)
        row_keys = dropout.row_keys(self.config.dropout_sites.embeddings, positions)
        return ops.dropout(self.embedding_norm(embedded_BSH), dropout.p, row_keys)
