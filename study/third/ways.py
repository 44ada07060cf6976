"""Ways to train the new rows of a language over a frozen body, and what a step of each costs.

A way says through which layers the forward pass of training goes and through which its gradient, whether the rows learn
as input rows, as output rows or as both, and what else trains. All are scored in the whole body.

Shapes: B batch, S sequence, H hidden, V vocabulary, N new rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops
from ds_minimodel.models.body import NO_DROPOUT, Linear
from ds_minimodel.models.flops import Workload, executed_layer, lm_head_flops, output_gradient_flops

RIDGE = 1e-3
FIT_BLOCKS = 96  # sequences that a map is fitted on


@dataclass(frozen=True)
class Way:
    """A candidate.

    bottom, top: layers that training runs, or that the gradient goes through; the rest of the body is left out, or
    runs without gradient (`runs_all`). fitted: between them is an affine map by least squares, else the residual path
    alone. inputs, outputs: whether the rows learn from what they are there. apart: each has moments of its own; untied:
    the output rows are others. old: the base's pieces. rank: of LoRA in the linear layers that the gradient goes
    through; full: all weights train. drawn: so many of the middle layers run, others each step. share: of the FLOPs for
    a first stretch by the way `first`.
    """

    name: str
    bottom: int = 15
    top: int = 15
    fitted: bool = False
    runs_all: bool = True
    inputs: bool = True
    outputs: bool = True
    apart: bool = False
    untied: bool = False
    old: bool = False
    rank: int = 0
    full: bool = False
    drawn: int = 0
    first: str = ""
    share: float = 0.0

    @property
    def caches(self) -> bool:
        """Whether nothing before the output rows trains, so that the body runs over a text once."""
        return self.untied and not self.inputs


WAYS = {
    way.name: way
    for way in (
        Way("whole"),
        Way("apart", apart=True),
        Way("forward", 0, 0, inputs=False),
        Way("short-0", 0, 0),
        Way("short-2", 0, 2),
        Way("short-4+2", 4, 2),
        Way("short-fit-4+2", 4, 2, fitted=True),
        Way("mini-4+2", 4, 2, fitted=True, runs_all=False),
        Way("mini-forward-4+2", 4, 2, fitted=True, runs_all=False, inputs=False),
        Way("mini-8+4", 8, 4, fitted=True, runs_all=False),
        Way("drawn", 3, 3, runs_all=False, drawn=4),
        Way("tail", first="forward", share=0.9),
        Way("head", 0, 0, inputs=False, first="whole", share=0.25),
        Way("teacher", 0, 0, inputs=False, first="teach", share=0.2),
        Way("untied", 0, 0, inputs=False, untied=True),
        Way("whole-untied", untied=True),
        Way("lora", rank=16, old=True),
        Way("full", full=True, old=True),
        Way("full-rows", full=True),
        Way("lora-rows", rank=16),
        Way("lora-rows-untied", rank=16, untied=True),
        Way("lora-top-10", 0, 10, rank=16, inputs=False),
        Way("lora-short-4+6", 4, 6, rank=16),
    )
}
TEACH = Way("teach", 6, 0)  # input rows alone, by what the old pieces of the same text make of the lowest layers


@dataclass
class Model:
    """A frozen body with the base's rows, and the new rows.

    kept: (K, H). rows, extra: fp32, what trains; with `apart` the rows are their sum, of which `rows` learns from the
    input and `extra` from the output; with `untied`, `extra` are the output rows. adapters: of LoRA.
    """

    body: Any
    kept: Tensor
    rows: nn.Parameter
    way: Way
    extra: nn.Parameter | None = None
    adapters: list[nn.Parameter] = field(default_factory=list)
    map: tuple[Tensor, Tensor, Tensor] | None = None

    def tables(self, way: Way) -> tuple[Tensor, Tensor]:
        """The input table and the output table, (V, H), each with the gradient that the way gives it."""
        rows, extra, dtype = self.rows, self.extra, self.kept.dtype
        if self.way.untied:
            assert extra is not None
            of_inputs = rows if way.inputs else rows.detach()
            return self._table(of_inputs.to(dtype)), self._table(extra.to(dtype))
        if extra is not None:
            return self._table((rows + extra.detach()).to(dtype)), self._table((rows.detach() + extra).to(dtype))
        if way.inputs and way.outputs:
            table = self._table(rows.to(dtype))
            return table, table
        of_inputs, of_outputs = (rows if learns else rows.detach() for learns in (way.inputs, way.outputs))
        return self._table(of_inputs.to(dtype)), self._table(of_outputs.to(dtype))

    def _table(self, rows: Tensor) -> Tensor:
        return torch.cat((self.kept, rows)) if len(rows) else self.kept

    @property
    def trained(self) -> list[nn.Parameter]:
        parameters = [] if self.way.old or self.way.caches else [self.rows]
        parameters += [] if self.extra is None else [self.extra]
        return parameters + self.adapters

    def loss(self, tokens_BS: Tensor, way: Way, draw: random.Random) -> Tensor:
        """Mean cross-entropy of the next tokens."""
        of_inputs, of_outputs = self.tables(way)
        if of_inputs is of_outputs:
            embedded_BSH, of_outputs = ops.embedding(tokens_BS, of_outputs)
        else:
            embedded_BSH, _ = ops.embedding(tokens_BS, of_inputs)
        with torch.set_grad_enabled(way.inputs or way.rank > 0 or way.full):
            hidden_BSH = self.head(self.hidden(self.body.embed(embedded_BSH, None, None), way, draw))
        return self.cross_entropy(hidden_BSH, of_outputs, tokens_BS) / tokens_BS[:, 1:].numel()

    def hidden(self, x_BSH: Tensor, way: Way, draw: random.Random) -> Tensor:
        layers = self.body.layers
        middle = range(way.bottom, len(layers) - way.top)
        x_BSH = run(layers[: way.bottom], x_BSH)
        if way.drawn:
            x_BSH = run([layers[place] for place in sorted(draw.sample(middle, way.drawn))], x_BSH)
        elif len(middle):
            through_BSH = x_BSH
            if way.fitted:
                assert self.map is not None
                weight, bias, first = self.map
                through_BSH = x_BSH + F.linear(x_BSH, weight, bias)
            if way.runs_all:
                with torch.no_grad():
                    correction = run([layers[place] for place in middle], x_BSH) - through_BSH
                through_BSH = through_BSH + correction
            elif way.fitted:
                through_BSH = torch.cat((first.expand(len(x_BSH), 1, -1), through_BSH[:, 1:]), 1)
            x_BSH = through_BSH
        return run(layers[len(layers) - way.top :], x_BSH) if way.top else x_BSH

    def head(self, x_BSH: Tensor) -> Tensor:
        (head,) = self.body.heads.values()
        return head(x_BSH.flatten(0, 1)).view_as(x_BSH)

    def cross_entropy(self, hidden_BSH: Tensor, table: Tensor, tokens_BS: Tensor) -> Tensor:
        """Sum over the next tokens."""
        kept = len(self.kept) if len(self.rows) and not self.way.full else 0
        own, base = (table[kept:], table[:kept].detach()) if kept else (table, None)
        return ops.linear_cross_entropy(
            hidden_BSH[:, :-1].flatten(0, 1), own, table.new_zeros(len(table)), tokens_BS[:, 1:].flatten(), base
        )

    @torch.no_grad()
    def token_losses(self, tokens_BS: Tensor) -> Tensor:
        """Of the next tokens by the whole body, (B, S - 1)."""
        of_inputs, of_outputs = self.tables(self.way)
        x_BSH = self.head(run(self.body.layers, self.body.embed(F.embedding(tokens_BS, of_inputs), None, None)))
        targets = tokens_BS[:, 1:]
        bias = of_outputs.new_zeros(len(of_outputs))
        return ops.token_losses(x_BSH[:, :-1].flatten(0, 1), of_outputs, bias, targets.flatten()).view(targets.shape)

    @torch.no_grad()
    def fit(self, blocks_BS: Tensor) -> None:
        """Fit the map from the states after the bottom layers to what the middle ones add, by ridge regression."""
        way, layers = self.way, self.body.layers
        inputs, outputs = [], []
        for tokens_BS in blocks_BS.split(8):
            x_BSH = run(layers[: way.bottom], self.body.embed(F.embedding(tokens_BS, self.tables(way)[0]), None, None))
            inputs.append(x_BSH.float())
            outputs.append(run(layers[way.bottom : len(layers) - way.top], x_BSH).float())
        x, y = torch.cat(inputs), torch.cat(outputs)
        first = y[:, :1].mean(0, keepdim=True)  # a constant: at the first position the states are many times larger
        x, y = x[:, 1:].flatten(0, 1), y[:, 1:].flatten(0, 1)
        x_1 = F.pad(x, (0, 1), value=1.0)
        penalty = RIDGE * len(x) * float(x.var()) * torch.eye(x_1.shape[1])
        solution = torch.linalg.solve(x_1.T @ x_1 + penalty, x_1.T @ (y - x))
        weight, bias = solution[:-1].T.contiguous(), solution[-1]
        dtype = self.kept.dtype
        self.map = weight.to(dtype), bias.to(dtype), first.to(dtype)


def run(layers: Any, x_BSH: Tensor) -> Tensor:
    for layer in layers:
        x_BSH = layer(x_BSH, None, NO_DROPOUT)
    return x_BSH


class LowRank(nn.Module):
    """A frozen linear layer and LoRA's product beside it, of which fp32 masters train."""

    def __init__(self, linear: Linear, rank: int):
        super().__init__()
        self.linear, self.blocks = linear, linear.blocks
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        low = ops.linear(x, self.down.to(x.dtype))
        return self.linear(x) + 2 * ops.linear(low, self.up.to(x.dtype))


def add_adapters(body: Any, way: Way) -> Iterator[nn.Parameter]:
    """LoRA in the linear layers that the way's gradient goes through."""
    for layer in [*body.layers[: way.bottom], *body.layers[len(body.layers) - way.top :]]:
        for name in ("qkv", "attention_out", "ffn_in", "ffn_out"):
            low = LowRank(getattr(layer, name), way.rank)
            if name == "qkv":
                low = LowRankProjection(getattr(layer, name), way.rank)
            setattr(layer, name, low)
            yield from (low.down, low.up)


class LowRankProjection(LowRank):
    """The same of queries, keys and values, which the layer takes in two parts."""

    def __init__(self, linear: Linear, rank: int):
        super().__init__(linear, rank)
        self.sites, self.num_heads, self.num_key_heads = linear.sites, linear.num_heads, linear.num_key_heads
        self.head_width = linear.head_width

    def forward(self, x_BSH: Tensor, x_BQH: Tensor | None = None) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        assert x_BQH is not None
        key_value, query = self.linear(x_BSH, x_BQH)
        low = 2 * ops.linear(ops.linear(x_BSH, self.down.to(x_BSH.dtype)), self.up.to(x_BSH.dtype))
        of_query, of_key_value = low.split([self.blocks[0], sum(self.blocks[1:])], -1)
        return key_value + of_key_value, query + of_query


def step_flops(way: Way, work: Workload, num_layers: int, adapters: int = 0) -> float:
    """FLOPs that a step of a way executes. work: of one step. adapters: elements of LoRA's matrices."""
    (layer, *_) = work.layers(num_layers)
    forward = executed_layer(work, layer, work.seq_length)
    backward = executed_layer(work, layer, work.seq_length, trains=way.full, passes_back=True) - forward
    runs = num_layers if way.runs_all else way.bottom + way.top + way.drawn
    goes_back = way.inputs or way.rank or way.full
    back = 0 if not goes_back else way.bottom + way.top + way.drawn
    output = lm_head_flops(work) * (2 if goes_back else 1)
    output += 0 if way.rank and way.old else output_gradient_flops(work)
    if way.fitted:
        output += 2 * 2 * work.seq_length * work.body.hidden_size**2
    return work.num_sequences * (runs * forward + back * backward + output + 6 * adapters * work.seq_length)


def fit_flops(way: Way, work: Workload, num_layers: int) -> float:
    """FLOPs of fitting a way's map, its regression in it."""
    (layer, *_) = work.layers(num_layers)
    hidden = work.body.hidden_size + 1
    states = FIT_BLOCKS * (num_layers - way.top) * executed_layer(work, layer, work.seq_length)
    return states + 4 * FIT_BLOCKS * work.seq_length * hidden**2 + 2 * hidden**3
