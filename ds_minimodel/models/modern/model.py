"""Modules of today's bodies. Shapes as in models/body.py, and K heads of keys and values."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops
from ds_minimodel.models.body import (
    INIT_STD,
    AttentionInputs,
    Body,
    Layer,
    Linear,
    Norm,
    Projection,
    Rows,
)
from ds_minimodel.models.modern import ModernConfig, Rotation
from ds_minimodel.models.sentence import fresh_heads

AnyLinear = TypeVar("AnyLinear", bound=Linear)

# Positions of the smallest table of angles.
_MIN_TABLE = 256


def _norm(config: ModernConfig, size: int | None = None) -> Norm:
    return Norm(size or config.hidden_size, config.norm_eps, bias=False, rms=config.rms)


class ModernLayer(Layer):
    """Attention with rotary positions and a gated feed-forward block, between a family's norms."""

    cuts = {**Layer.cuts, "query_norm": "shared", "key_norm": "shared"}

    def __init__(self, config: ModernConfig, index: int):
        super().__init__(config, index)
        self.window, self.rotation = config.layer(index)
        self.activation = config.activation
        self.score_scale = config.score_scale
        hidden = config.hidden_size
        std = INIT_STD / math.sqrt(2 * config.num_layers)
        has_norm = config.norms_before and (index > 0 or config.first_norm)
        self.attention_norm = _norm(config) if has_norm else None
        self.qkv = _drawn(Projection(config, self.sites.heads, bias=config.projection_bias))
        queries, keys, _ = self.qkv.blocks
        self.query_norm = None
        self.key_norm = None
        if config.query_norm == "head":
            self.query_norm = _norm(config, config.head_width)
            self.key_norm = _norm(config, config.head_width)
        elif config.query_norm == "whole":
            self.query_norm = _norm(config, queries)
            self.key_norm = _norm(config, keys)
        self.attention_out = _drawn(Linear(queries, hidden, bias=False), std)
        self.attention_post_norm = _norm(config) if config.norms_after else None
        self.ffn_norm = _norm(config) if config.norms_before else None
        self.ffn_in = _drawn(Linear(hidden, config.ffn_size, config.ffn_size, bias=False))
        self.ffn_out = _drawn(Linear(config.ffn_size, hidden, bias=False), std)
        self.ffn_post_norm = _norm(config) if config.norms_after else None

    def before_attention(self, x_BSH: Tensor) -> Tensor:
        """Return the normalised input, where the layer has a norm before attention."""
        return x_BSH if self.attention_norm is None else self.attention_norm(x_BSH)

    def queries_apart(self, x_BSH: Tensor) -> bool:
        """Return whether queries are normalised, or this is a CPU."""
        # Together they take one product and one rotation less on a GPU, but a CPU's attention would
        # copy the parts out of their rows.
        return self.query_norm is not None or ops.device_type(x_BSH.device) == "cpu"

    def attend(self, given: AttentionInputs) -> Tensor:
        """Return the context of the queries in the layer's window, (B, Q, N*D)."""
        projected, queries, positions, lengths, p, row_keys = given
        if queries is not None and self.query_norm is not None and self.key_norm is not None:
            keys, values = projected.chunk(2, -1)
            queries = _normed(self.query_norm, queries)
            keys = _normed(self.key_norm, keys)
            projected = torch.cat((keys, values), -1)
        qkv = self.qkv
        length = max(projected.shape[1], _MIN_TABLE)
        # The next power of two, so that few tables are made.
        table_length = 1 << (length - 1).bit_length()
        table = _table(self.rotation, qkv.head_width, table_length, projected.device)
        if queries is None:
            turned = ops.rotary(projected, qkv.num_heads + qkv.num_key_heads, table)
            queries, projected = turned.split([qkv.blocks[0], sum(qkv.blocks[1:])], -1)
        else:
            projected = ops.rotary(projected, qkv.num_key_heads, table)
            read = None if positions.dim() == 1 else positions
            queries = ops.rotary(queries, qkv.num_heads, table, read)
        # Of a causal layer, padding lies behind all that a real position sees.
        if self.window[1] == 0:
            lengths = None
        return ops.window_attention(
            projected,
            queries,
            num_heads=qkv.num_heads,
            positions=positions,
            window=self.window,
            lengths=lengths,
            p=p,
            row_keys=row_keys,
            scale=self.score_scale,
        )

    def join(self, x_BQH: Tensor, attended_BQH: Tensor, rows: Rows) -> Tensor:
        """Return x + what attention gives + what the feed-forward block makes of that sum."""
        if self.attention_post_norm is not None:
            attended_BQH = self.attention_post_norm(attended_BQH)
        if self.ffn_norm is not None:
            keys = rows.keys(self.sites.attention_out)
            normed_BQH, x_BQH = self.ffn_norm.and_sum(attended_BQH, x_BQH, p=rows.p, row_keys=keys)
            # With dropout another kernel makes the norm, with other bits, so it is kept.
            with nullcontext() if rows.p else self.recomputing(normed_BQH, self.ffn_norm, x_BQH):
                outer_BQH = self.feed_forward(normed_BQH)
        else:
            x_BQH = x_BQH + rows.drop(attended_BQH, self.sites.attention_out)
            outer_BQH = self.feed_forward(x_BQH)
        if self.ffn_post_norm is not None:
            outer_BQH = self.ffn_post_norm(outer_BQH)
        return x_BQH + rows.drop(outer_BQH, self.sites.ffn_out)

    def activate(self, inner: Tensor) -> Tensor:
        """Return the activation of one half of each row times the other half."""
        return ops.gated(inner, self.activation)


def _normed(norm: Norm, x: Tensor) -> Tensor:
    """Return x (…, columns), normalised by pieces as wide as the norm."""
    return norm(x.unflatten(-1, (-1, len(norm.weight)))).flatten(-2)


class Head(nn.Module):
    """The final norm, which heads do not share, and in some families dense, GELU and a norm."""

    cuts: ClassVar[Mapping[str, str]] = {"dense": "gathered"}

    def __init__(self, config: ModernConfig):
        super().__init__()
        hidden = config.hidden_size
        self.final_norm = _norm(config)
        self.dense = None
        self.norm = None
        if config.dense_head:
            std = INIT_STD / math.sqrt(2 * config.num_layers)
            self.dense = _drawn(Linear(hidden, hidden, bias=False), std)
            self.norm = _norm(config)

    def forward(self, x_PH: Tensor) -> Tensor:
        """Return what the output projection is applied to, (P, H)."""
        x_PH = self.final_norm(x_PH)
        if self.dense is None or self.norm is None:
            return x_PH
        return self.norm(F.gelu(self.dense(x_PH)))


class ModernBody(Body):
    """Layers and heads, below them in some families a norm; positions are in the layers."""

    config: ModernConfig

    def __init__(self, config: ModernConfig, head_depths: Sequence[int] = ()):
        super().__init__(config, head_depths)
        self.embedding_norm = _norm(config) if config.embedding_norm else None
        self.embedding_scale = math.sqrt(config.hidden_size) if config.scaled_embeddings else 1.0
        self.layers = nn.ModuleList(
            ModernLayer(config, index) for index in range(config.num_layers)
        )
        self.heads = fresh_heads(self)

    def language_head(self) -> nn.Module:
        """Return a fresh head of a language model."""
        return Head(self.config)

    def final_norm(self) -> Norm | None:
        """Return a fresh norm of the last states."""
        return _norm(self.config)

    def embed(self, embedded_BSH: Tensor, positions: Tensor, second: Tensor | None) -> Tensor:
        """Return the embeddings, scaled and normalised where the family does that."""
        if self.embedding_scale != 1:
            embedded_BSH = embedded_BSH * self.embedding_scale
        return embedded_BSH if self.embedding_norm is None else self.embedding_norm(embedded_BSH)


def _drawn(linear: AnyLinear, std: float = INIT_STD) -> AnyLinear:
    """Draw fresh weights for a linear layer; return it."""
    nn.init.trunc_normal_(linear.weight, mean=0, std=std, a=-2 * std, b=2 * std)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def waves(rotation: Rotation, head_width: int, device: torch.device) -> Tensor:
    """Return the angle between two positions in each plane of a head, (D/2,) fp32."""
    powers = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    # This is how published code computes it: the last bits of base ** -x differ, and thousands of
    # positions multiply them.
    speeds = 1.0 / rotation.base**powers
    if rotation.factor == 1:
        return speeds
    lengths = 2 * math.pi / speeds
    # The share of its speed that a wave keeps: 0 is slowed down by the factor, 1 as it was.
    share = (rotation.original / lengths - rotation.low) / (rotation.high - rotation.low)
    share = share.clamp(0, 1)
    return (1 - share) * speeds / rotation.factor + share * speeds


@functools.lru_cache(maxsize=32)
def _table(rotation: Rotation, head_width: int, length: int, device: torch.device) -> Tensor:
    """Return cosines and sines of the positions below `length`, made once for all passes."""
    # What is made in inference mode could not be used in training.
    with torch.inference_mode(mode=False):
        return ops.rotary_table(waves(rotation, head_width, device), length)
