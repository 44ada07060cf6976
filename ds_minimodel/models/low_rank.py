"""Low-rank updates of a body's linear layers (LoRA, Hu et al. 2022), put on a built model from
outside.

The frozen weight W (O, I) of a layer becomes W + 32/R B A, of which A (R, I), drawn, and B (O, R),
zero at first, train as parameters `down` and `up` of the layer. The blocks don't know of it, and
names of parameters stay; `updated` gives weights with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ds_minimodel import ops
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.body import Body, GeluLinear, Linear, Projection

ALPHA = 32.0  # over the rank, so that a rate is good at every rank (LoRA Without Regret, 2025)
DOWN, UP = "down", "up"
_is_on = True


def add_low_rank(body: Body, rank: int, seed: int) -> None:
    """Give every linear layer of the body's layers a low-rank update, which changes nothing as it
    begins.
    """
    draw = torch.Generator().manual_seed(seed)
    for layer in body.layers:
        for linear in layer.modules():
            if isinstance(linear, Linear):
                down = (
                    torch.randn(rank, linear.in_features, generator=draw, device="cpu")
                    / linear.in_features**0.5
                )
                linear.register_parameter(DOWN, nn.Parameter(down.to(linear.weight.device)))
                up = torch.zeros(linear.out_features, rank, device=linear.weight.device)
                linear.register_parameter(UP, nn.Parameter(up))
                ways: dict[type, Callable] = {
                    GeluLinear: _forward_with_gelu,
                    Projection: _project,
                    Linear: _forward,
                }
                forward = next(way for kind, way in ways.items() if isinstance(linear, kind))
                linear.forward = MethodType(forward, linear)  # type: ignore[method-assign]


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Let all bodies compute without their updates, as they were before."""
    global _is_on
    _is_on = False
    try:
        yield
    finally:
        _is_on = True


def low_rank_size(config: BodyConfig, rank: int) -> int:
    """Numbers in the updates of a body."""
    with torch.device("meta"):
        body = config.make_body()
        add_low_rank(body, rank, 0)
    return sum(
        parameter.numel() for name, parameter in body.named_parameters() if is_low_rank(name)
    )


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    down: Tensor,
    up: Tensor,
    outputs: slice = ops.ALL,
) -> Tensor:
    if not _is_on:
        return ops.linear(x, weight[outputs], bias)
    return ops.low_rank_linear(x, weight, bias, down, up, ALPHA / len(down), outputs)


def _forward(linear: Any, x: Tensor) -> Tensor:
    return _product(x, linear.weight, linear.bias, linear.down, linear.up)


def _forward_with_gelu(linear: Any, x: Tensor) -> Tensor:
    return ops.bias_gelu(_product(x, linear.weight, None, linear.down, linear.up), linear.bias)


def _project(
    linear: Any, x_BSH: Tensor, x_BQH: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    if x_BQH is None:
        return _forward(linear, x_BSH), None
    sizes = [linear.blocks[0], sum(linear.blocks[1:])]
    outputs = slice(linear.blocks[0]), slice(linear.blocks[0], None)
    biases = (None, None) if linear.bias is None else linear.bias.split(sizes)
    queries, rest = (
        _product(x, linear.weight, bias, linear.down, up, own)
        for x, bias, up, own in zip(
            (x_BQH, x_BSH), biases, linear.up.split(sizes), outputs, strict=True
        )
    )
    return rest, queries


def is_low_rank(name: str) -> bool:
    """Whether this is the name of a parameter of an update."""
    return name.rpartition(".")[2] in (DOWN, UP)


def changed_name(name: str) -> str:
    """Of which tensor of the body an entry of an update is: its own, or of a low-rank one its
    layer's weight.
    """
    return f"{name.rpartition('.')[0]}.weight" if is_low_rank(name) else name


def updated(
    frozen: Mapping[str, Tensor], update: Mapping[str, Tensor], strength: float = 1.0
) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of each of a body's tensors that an update changes, in the type that `frozen`
    has it in.

    strength: share of their change from `frozen` that they keep (WiSE-FT, Wortsman et al., CVPR
    2022).
    """
    for name in sorted({*map(changed_name, update)}):
        weight, layer = frozen[name], name.rpartition(".")[0]
        if name in update:
            whole = update[name].float()
            yield (
                name,
                (whole if strength == 1 else torch.lerp(weight.float(), whole, strength)).to(
                    weight.dtype
                ),
            )
        else:
            down, up = (update[f"{layer}.{part}"].float() for part in (DOWN, UP))
            change = ALPHA / len(down) * up @ down
            yield (
                name,
                (weight.float() + (change if strength == 1 else strength * change)).to(
                    weight.dtype
                ),
            )
