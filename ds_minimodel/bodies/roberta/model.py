"""RoBERTa's and BERT's modules. Shapes as in bodies/body.py.

Numerics follow fairseq's RoBERTa: LayerNorm after the embeddings, exact GELU, learned positions of which the first real
one is row 2, weights N(0, 0.02), biases 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops, parallel
from ds_minimodel.bodies.body import INIT_STD, Body, Dropout, Layer, Linear, Part, gather_rows, init_weights, same
from ds_minimodel.bodies.packing import Packing
from ds_minimodel.bodies.roberta import RobertaConfig

FIRST_POSITION = 2  # row of the table of positions that the first token has: fairseq's rows 0 and 1 are no token's


class RobertaLayer(Layer):
    """One post-LN transformer layer."""

    def __init__(self, config: RobertaConfig, index: int):
        super().__init__(config, index)
        hidden = config.hidden_size
        self.head_size = hidden // self.num_heads
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
        group, pad = self.group, packing.pad if packing else same
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
        return ops.residual_norm(x, residual, norm.weight, norm.bias, norm.eps, dropout.p, row_keys)[0]


class Head(Part):
    """dense -> GELU -> LayerNorm; the output projection is the language's embedding matrix."""

    def __init__(self, config: RobertaConfig):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def split(self, group: parallel.Group) -> None:
        """The dense layer by outputs."""
        for name in ("weight", "bias"):
            parallel.shard_parameter(self.dense, name, group, dim=0)

    def forward(self, x_PH: Tensor) -> Tensor:
        inner = ops.bias_gelu(ops.linear(parallel.copy(x_PH, self.group), self.dense.weight), self.dense.bias)
        inner = parallel.gather(inner, self.group)
        return ops.residual_norm(inner, None, self.norm.weight, self.norm.bias, self.norm.eps)[0]


class RobertaBody(Body):
    """Learned positions, BERT's token types too, the norm of their sum with the embeddings, layers and heads."""

    def __init__(self, config: RobertaConfig, head_depths: Sequence[int] = ()):
        super().__init__(config, head_depths)
        self.positions = nn.Parameter(torch.empty(config.max_positions + FIRST_POSITION, config.hidden_size))
        self.embedding_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.layers = nn.ModuleList(RobertaLayer(config, index) for index in range(config.num_layers))
        self.heads = nn.ModuleDict({str(depth): Head(config) for depth in head_depths})
        self.apply(init_weights)
        with torch.no_grad():
            self.positions.normal_(0, INIT_STD)[FIRST_POSITION - 1] = 0  # fairseq's padding
        self.types: nn.Parameter | None = None
        if config.token_types > 1:
            self.types = nn.Parameter(torch.empty(config.token_types, config.hidden_size).normal_(0, INIT_STD))

    def embed(self, embedded_BSH: Tensor, dropout: Dropout, packing: Packing | None, second_B: Tensor | None) -> Tensor:
        if packing:
            positions, dropout = packing.position_R1, dropout.of_tokens(packing.row_R)
            added_BSH, _ = ops.embedding(FIRST_POSITION + positions, self.positions)
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
        x_BSH, _ = ops.residual_norm(embedded_BSH, added_BSH, norm.weight, norm.bias, norm.eps)
        row_keys = dropout.row_keys(self.config.dropout_sites.embeddings, positions)
        return ops.dropout(x_BSH, dropout.p, row_keys)
