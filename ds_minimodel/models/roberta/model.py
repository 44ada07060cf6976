"""RoBERTa's and BERT's modules. Shapes as in models/body.py.

Numerics follow fairseq's RoBERTa: LayerNorm after the embeddings, exact GELU, learned positions of
which the first real one is row 2, weights N(0, 0.02), biases 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops
from ds_minimodel.models import body
from ds_minimodel.models.roberta import RobertaConfig
from ds_minimodel.models.sentence import fresh_heads

# Row of the first token in the table of positions; fairseq's rows 0 and 1 are no token's.
FIRST_POSITION = 2


class RobertaLayer(body.Layer):
    """One post-LN transformer layer."""

    def __init__(self, config: RobertaConfig, index: int):
        super().__init__(config, index)
        hidden = config.hidden_size
        self.qkv = body.Projection(config, self.sites.heads)
        self.attention_out = body.Linear(hidden, hidden)
        self.attention_norm = body.Norm(hidden, config.norm_eps)
        self.ffn_in = body.GeluLinear(hidden, config.ffn_size)
        self.ffn_out = body.Linear(config.ffn_size, hidden)
        self.ffn_norm = body.Norm(hidden, config.norm_eps)

    def attend(self, given: body.AttentionInputs) -> Tensor:
        """Return the context of the queries, (B, Q, N*D)."""
        return ops.attention(
            given.projected,
            num_heads=self.qkv.num_heads,
            lengths=given.lengths,
            p=given.p,
            row_keys=given.row_keys,
            queries=given.queries,
        )

    def join(self, x_BQH: Tensor, attended_BQH: Tensor, rows: body.Rows) -> Tensor:
        """Return the norm after each of the two sums."""
        attention_keys = rows.keys(self.sites.attention_out)
        x_BQH = self.attention_norm(attended_BQH, x_BQH, p=rows.p, row_keys=attention_keys)
        ffn_keys = rows.keys(self.sites.ffn_out)
        return self.ffn_norm(self.feed_forward(x_BQH), x_BQH, p=rows.p, row_keys=ffn_keys)


class Head(nn.Module):
    """dense -> GELU -> LayerNorm; the output projection is the language's embedding matrix."""

    cuts: ClassVar[Mapping[str, str]] = {"dense": "gathered"}

    def __init__(self, config: RobertaConfig):
        super().__init__()
        self.dense = body.GeluLinear(config.hidden_size, config.hidden_size)
        self.norm = body.Norm(config.hidden_size, config.norm_eps)

    def forward(self, x_PH: Tensor) -> Tensor:
        """Return what the output projection is applied to, (P, H)."""
        return self.norm(self.dense(x_PH))


class RobertaBody(body.Body):
    """Learned positions, in BERT token types, the norm of the sum, layers and heads."""

    config: RobertaConfig

    def __init__(self, config: RobertaConfig, head_depths: Sequence[int] = ()):
        super().__init__(config, head_depths)
        self.positions = nn.Parameter(
            torch.empty(config.max_positions + FIRST_POSITION, config.hidden_size)
        )
        self.embedding_norm = body.Norm(config.hidden_size, config.norm_eps)
        self.layers = nn.ModuleList(
            RobertaLayer(config, index) for index in range(config.num_layers)
        )
        self.heads = fresh_heads(self)
        self.apply(body.init_weights)
        with torch.no_grad():
            self.positions.normal_(0, body.INIT_STD)
            # fairseq's row for padding.
            self.positions[FIRST_POSITION - 1] = 0
        self.types: nn.Parameter | None = None
        if config.token_types > 1:
            self.types = nn.Parameter(
                torch.empty(config.token_types, config.hidden_size).normal_(0, body.INIT_STD)
            )

    def language_head(self) -> nn.Module:
        """Return a fresh head of a language model."""
        return Head(self.config)

    def embed(self, embedded_BSH: Tensor, positions: Tensor, second: Tensor | None) -> Tensor:
        """Return the norm of the sum of embeddings, positions and token types."""
        if positions.dim() == 1:
            added_SH = self.positions[FIRST_POSITION : FIRST_POSITION + len(positions)]
            added_BSH = added_SH[None].expand_as(embedded_BSH)
        else:
            added_BSH, _ = ops.embedding(FIRST_POSITION + positions, self.positions)
        if self.types is not None:
            types = self.types[0]
            if second is not None:
                types = F.embedding((positions >= second).long(), self.types)
            added_BSH = added_BSH + types
        return self.embedding_norm(embedded_BSH, added_BSH)
