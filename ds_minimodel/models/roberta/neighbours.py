"""A body whose attention starts at the tokens beside each token (`model.initialisation: neighbours`).

A masked-language model learns little but how frequent pieces are until some of its heads look at the tokens beside
the masked one. With positions and weights that start at N(0, 0.02) it takes small models thousands of steps to find
that; here some heads of the lowest layer do so from the first step on. Nothing but starting values differs.
"""

import math
from typing import cast

import torch

from ds_minimodel.models.body import Body
from ds_minimodel.models.roberta.model import FIRST_POSITION, RobertaBody, RobertaLayer

OFFSETS = (-1, 1, -2, 2)  # where the first heads look, in tokens; heads beyond these start as all others
POSITION_STD = 0.04  # twice that of pieces, so that position decides where a head looks
LONGEST_WAVE = 200  # tokens; the shortest has 2
SHARPNESS = 16  # score of a query with the key that it looks for, so that most of the attention goes there


def start_at_neighbours(body: Body) -> None:
    """Set the positions to sinusoids, and queries and keys of the lowest layer's first heads to look at OFFSETS.

    Of a position p the sinusoids hold sin(w p) and cos(w p) for each frequency w. A rotation by w o turns those of p
    into those of p + o, so keys that are queries turned by it score highest at offset o. Draws from torch's default
    generator.
    """
    assert isinstance(body, RobertaBody)
    layer, hidden = cast(RobertaLayer, body.layers[0]), body.config.hidden_size
    waves = torch.logspace(math.log10(2), math.log10(LONGEST_WAVE), (hidden + 1) // 2)
    angles = torch.outer(torch.arange(body.config.max_positions), 2 * math.pi / waves)
    size = layer.qkv.head_width
    std = math.sqrt(SHARPNESS / (hidden * math.sqrt(size)))
    with torch.no_grad():
        body.positions[FIRST_POSITION:] = math.sqrt(2) * POSITION_STD * _pairs(angles.sin(), angles.cos())[:, :hidden]
        queries, keys, _ = layer.qkv.weight.chunk(3)
        for head, offset in enumerate(OFFSETS[: layer.qkv.num_heads]):
            query = torch.empty(size, len(waves), 2).normal_(0, std)
            turn = 2 * math.pi * offset / waves
            sine, cosine = query[..., 0], query[..., 1]
            key = _pairs(sine * turn.cos() + cosine * turn.sin(), cosine * turn.cos() - sine * turn.sin())
            rows = slice(head * size, (head + 1) * size)
            queries[rows] = query.flatten(1)[:, :hidden]
            keys[rows] = key[:, :hidden]


def _pairs(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Columns of both by turns, (rows, 2 x columns)."""
    return torch.stack((first, second), dim=-1).flatten(1)
