"""Low-rank updates of a body's linear layers (LoRA, Hu et al. 2022), put on a built model from outside.

The frozen weight W (O, I) of a layer becomes W + 2 B A, of which A (R, I), drawn, and B (O, R), zero at first, train as
parameters `down` and `up` of the layer. The blocks don't know of it, and names of parameters stay; `merged` gives
weights without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ds_minimodel import ops
from ds_minimodel.models import BodyConfig, make_body
from ds_minimodel.models.body import Body, GeluLinear, Linear, Projection
from ds_minimodel.models.trainable import Tensors

_SCALE = 2.0  # alpha over rank, as is usual
DOWN, UP = "down", "up"


def add_low_rank(body: Body, rank: int, seed: int) -> None:
    """Give every linear layer of the body's layers a low-rank update, which changes nothing as it begins."""
    draw = torch.Generator().manual_seed(seed)
    for layer in body.layers:
        for linear in layer.modules():
            if isinstance(linear, Linear):
                down = torch.randn(rank, linear.in_features, generator=draw, device="cpu") / linear.in_features**0.5
                linear.register_parameter(DOWN, nn.Parameter(down.to(linear.weight.device)))
                linear.register_parameter(UP, nn.Parameter(linear.weight.new_zeros(linear.out_features, rank)))
                ways: dict[type, Callable] = {GeluLinear: _forward_with_gelu, Projection: _project, Linear: _forward}
                forward = next(way for kind, way in ways.items() if isinstance(linear, kind))
                linear.forward = MethodType(forward, linear)  # type: ignore[method-assign]


def low_rank_size(config: BodyConfig, rank: int) -> int:
    """Numbers in the updates of a body."""
    with torch.device("meta"):
        body = make_body(config)
        add_low_rank(body, rank, 0)
    return sum(parameter.numel() for name, parameter in body.named_parameters() if is_low_rank(name))


def _forward(linear: Any, x: Tensor) -> Tensor:
    return ops.low_rank_linear(x, linear.weight, linear.bias, linear.down, linear.up, _SCALE)


def _forward_with_gelu(linear: Any, x: Tensor) -> Tensor:
    return ops.bias_gelu(ops.low_rank_linear(x, linear.weight, None, linear.down, linear.up, _SCALE), linear.bias)


def _project(linear: Any, x_BSH: Tensor, x_BQH: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    if x_BQH is None:
        return _forward(linear, x_BSH), None
    sizes = [linear.blocks[0], sum(linear.blocks[1:])]
    biases = (None, None) if linear.bias is None else linear.bias.split(sizes)
    queries, rest = (
        ops.low_rank_linear(x, weight, bias, linear.down, up, _SCALE)
        for x, weight, bias, up in zip(
            (x_BQH, x_BSH), linear.weight.split(sizes), biases, linear.up.split(sizes), strict=True
        )
    )
    return rest, queries


def replaced(module: nn.Module) -> set[str]:
    """Names of the body's tensors, as the body has them, that are other ones when what trains in `module` has."""
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    of_body = [name.removeprefix("body.") for name in trained if name.startswith("body.")]
    return {f"{name.rpartition('.')[0]}.weight" if is_low_rank(name) else name for name in of_body}


def is_low_rank(name: str) -> bool:
    """Whether this is the name of a parameter of an update."""
    return name.rpartition(".")[2] in (DOWN, UP)


def merged(weights: Mapping[str, Tensor], frozen: Mapping[str, Tensor], strength: float = 1.0) -> Tensors:
    """`weights` with each update added to its layer's weight, which `frozen` has under the same name less "body.".

    strength: share of their change from `frozen` that the body's weights keep (WiSE-FT, Wortsman et al., CVPR 2022).
    """
    found = {name: tensor for name, tensor in weights.items() if not is_low_rank(name)}
    for name, up in weights.items():
        if name.endswith(f".{UP}"):
            layer = name.removesuffix(UP)
            weight = frozen[f"{layer}weight".removeprefix("body.")]
            found[f"{layer}weight"] = weight + _SCALE * up.float() @ weights[layer + DOWN].float()
    if strength != 1:
        of_body = {name: tensor.float() for name, tensor in found.items() if name.startswith("body.")}
        for name, tensor in of_body.items():
            found[name] = torch.lerp(frozen[name.removeprefix("body.")].float(), tensor, strength)
    return found
