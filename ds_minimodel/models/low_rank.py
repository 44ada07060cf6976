"""Low-rank updates of a body's linear layers (LoRA, Hu et al. 2022), put on a built model from outside.

The frozen weight W (O, I) of a layer becomes W + 2 B A, of which A (R, I), drawn, and B (O, R), zero at first, train as
parameters `down` and `up` of the layer. The blocks don't know of it, and names of parameters stay; `merged` gives
weights without it.
"""

from __future__ import annotations

from collections.abc import Mapping
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
                if isinstance(linear, GeluLinear):
                    linear.forward = MethodType(_forward_with_gelu, linear)  # type: ignore[method-assign]
                else:
                    linear.register_forward_hook(_add_to_projection if isinstance(linear, Projection) else _add)


def low_rank_size(config: BodyConfig, rank: int) -> int:
    """Numbers in the updates of a body."""
    with torch.device("meta"):
        body = make_body(config)
        add_low_rank(body, rank, 0)
    return sum(parameter.numel() for name, parameter in body.named_parameters() if is_low_rank(name))


def _low(linear: Any, x: Tensor, up: Tensor) -> Tensor:
    return _SCALE * ops.linear(ops.linear(x, linear.down), up)


def _forward_with_gelu(linear: Any, x: Tensor) -> Tensor:
    return ops.bias_gelu(ops.linear(x, linear.weight) + _low(linear, x, linear.up), linear.bias)


def _add(linear: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output + _low(linear, inputs[0], linear.up)


def _add_to_projection(linear: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor | None]) -> Any:
    """The same of Projection, whose queries may be of other positions than its keys."""
    rest, queries = output
    if queries is None:
        return rest + _low(linear, inputs[0], linear.up), None
    of_queries, of_rest = linear.up.split([linear.blocks[0], sum(linear.blocks[1:])])
    return rest + _low(linear, inputs[0], of_rest), queries + _low(linear, inputs[1], of_queries)


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
