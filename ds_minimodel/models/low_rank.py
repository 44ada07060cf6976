"""Low-rank updates of a body's linear layers (LoRA, Hu et al. 2022).

The frozen weight W (O, I) of a layer becomes W + 32/R B A, of which lora_A (R, I), drawn, and
lora_B (O, R), zero at first, train as the layer's parameters `down` and `up`. They are put on a
built model from outside: the blocks don't know of it, and names of parameters stay. `updated` gives
weights with the update.
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

# It is divided by the rank, so that a learning rate is good at every rank (LoRA Without Regret,
# 2025).
ALPHA = 32.0
# Names of lora_A and lora_B as parameters, and so on disk.
LORA_A = "down"
LORA_B = "up"
# Whether bodies compute with their updates; see `switched_off`.
_is_on = True


def add_low_rank(body: Body, rank: int, seed: int) -> None:
    """Give every linear layer of the body's layers an update, which at first changes nothing.

    Args:
        body: whose weights are set before.
        rank: R.
        seed: of what is drawn.
    """
    draw = torch.Generator().manual_seed(seed)
    for layer in body.layers:
        for linear in layer.modules():
            if not isinstance(linear, Linear):
                continue
            device = linear.weight.device
            normal = torch.randn(rank, linear.in_features, generator=draw, device="cpu")
            lora_A = normal / linear.in_features**0.5
            lora_B = torch.zeros(linear.out_features, rank, device=device)
            linear.register_parameter(LORA_A, nn.Parameter(lora_A.to(device)))
            linear.register_parameter(LORA_B, nn.Parameter(lora_B))
            forward: Callable = _forward
            if isinstance(linear, GeluLinear):
                forward = _forward_with_gelu
            elif isinstance(linear, Projection):
                forward = _project
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
    """Return the count of numbers in the updates of a body."""
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
    lora_A: Tensor,
    lora_B: Tensor,
    outputs: slice = ops.ALL,
) -> Tensor:
    """Return x W' + b, where W' are the updated weight's rows `outputs`; lora_B has these alone."""
    if not _is_on:
        return ops.linear(x, weight[outputs], bias)
    return ops.low_rank_linear(
        x,
        weight,
        bias,
        lora_A=lora_A,
        lora_B=lora_B,
        scale=ALPHA / len(lora_A),
        outputs=outputs,
    )


def _forward(linear: Any, x: Tensor) -> Tensor:
    return _product(x, linear.weight, linear.bias, lora_A=linear.down, lora_B=linear.up)


def _forward_with_gelu(linear: Any, x: Tensor) -> Tensor:
    inner = _product(x, linear.weight, None, lora_A=linear.down, lora_B=linear.up)
    return ops.bias_gelu(inner, linear.bias)


def _project(
    linear: Any, x_BSH: Tensor, x_BQH: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    if x_BQH is None:
        return _forward(linear, x_BSH), None
    sizes = [linear.blocks[0], sum(linear.blocks[1:])]
    query_B, key_value_B = linear.up.split(sizes)
    query_bias = None
    key_value_bias = None
    if linear.bias is not None:
        query_bias, key_value_bias = linear.bias.split(sizes)
    queries = _product(
        x_BQH,
        linear.weight,
        query_bias,
        lora_A=linear.down,
        lora_B=query_B,
        outputs=slice(sizes[0]),
    )
    keys_values = _product(
        x_BSH,
        linear.weight,
        key_value_bias,
        lora_A=linear.down,
        lora_B=key_value_B,
        outputs=slice(sizes[0], None),
    )
    return keys_values, queries


def is_low_rank(name: str) -> bool:
    """Return whether this is the name of a parameter of an update."""
    return name.rpartition(".")[2] in (LORA_A, LORA_B)


def changed_name(name: str) -> str:
    """Return the name of the body's tensor that an entry of an update changes.

    It is the layer's weight where the update is low-rank, else the entry's name.
    """
    return f"{name.rpartition('.')[0]}.weight" if is_low_rank(name) else name


def updated(
    frozen: Mapping[str, Tensor], update: Mapping[str, Tensor], strength: float = 1.0
) -> Iterator[tuple[str, Tensor]]:
    """Apply an update to a body.

    Args:
        frozen: the body's tensors.
        update: tensors that replace some of them, or low-rank updates of them.
        strength: share of their change from `frozen` that they keep (WiSE-FT, Wortsman et al.,
            CVPR 2022).

    Yields:
        Name and tensor of each of the body's tensors that changes, in the type of `frozen`.
    """
    for name in sorted({*map(changed_name, update)}):
        weight = frozen[name]
        layer = name.rpartition(".")[0]
        # A strength of 1 has branches of its own, which round nothing more.
        if name in update:
            changed = update[name].float()
            if strength != 1:
                changed = torch.lerp(weight.float(), changed, strength)
        else:
            lora_A = update[f"{layer}.{LORA_A}"].float()
            lora_B = update[f"{layer}.{LORA_B}"].float()
            change = ALPHA / len(lora_A) * lora_B @ lora_A
            if strength != 1:
                change = strength * change
            changed = weight.float() + change
        yield name, changed.to(weight.dtype)
