"""Whether a frozen body's forward products may be in int8 while LoRA trains over it: their speed, and what it costs.

    python -m study.third.int8           seconds of a layer's products, in turns with those of the machine's own type
    python -m study.third.int8 FOLDER    and a cell of cells.py, German by an eighth, that trains so; the gradient goes
                                         back through the weights as they are. Adds a row to FOLDER/results.jsonl.

Shapes are SmolLM2-135M's at 8 x 128 positions; oneDNN's dynamic quantisation, weights a channel, activations a tensor.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.device import CLOCKS, device_name, seconds_of
from ds_minimodel import ops
from ds_minimodel.api import load_recipe
from ds_minimodel.ops.cpu import configure_cpu, has_bf16_products
from ds_minimodel.pipeline.registry import STEPS as ALL_STEPS
from ds_minimodel.pipeline.run import run_step_here
from study.third.cells import RECIPE, STEPS, Cell, Study, bits_of, pack_of

POSITIONS, TURNS = 8 * 128, 7
SHAPES = {"qkv": (576, 960), "attention_out": (576, 576), "ffn_in": (576, 3072), "ffn_out": (1536, 576)}
LEAST = 128  # rows and columns of a matrix that is worth it: none of LoRA's is


def packed(weight: Tensor) -> Any:
    weight = weight.float()
    scales = weight.abs().amax(1) / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    return torch.ops.quantized.linear_prepack(torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8), None)


def product(x: Tensor, weight: Any) -> Tensor:
    return torch.ops.quantized.linear_dynamic(x.float(), weight).to(x.dtype)


class Int8(torch.autograd.Function):
    """The product in int8, and the gradient of the one that is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, quantised: Any) -> Tensor:
        ctx.save_for_backward(weight)
        return product(x, quantised)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors
        return ops.linear(gradient, weight.T), None, None


def in_int8(linear: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`linear` with frozen matrices in int8."""
    known: dict[tuple[int, int], Any] = {}

    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.requires_grad or min(weight.shape) < LEAST or bias is not None or not torch.is_grad_enabled():
            return linear(x, weight, bias)
        key = weight.data_ptr(), len(weight)
        if key not in known:
            known[key] = packed(weight.detach())
        return Int8.apply(x, weight, known[key])  # type: ignore[no-any-return, no-untyped-call]

    return forward


def time_products() -> None:
    configure_cpu()
    torch.set_num_threads(1)
    dtype = torch.bfloat16 if has_bf16_products() else torch.float32
    print(f"{device_name()}, torch {torch.__version__}, one thread, {dtype}")
    sums = [0.0, 0.0]
    for name, (inputs, outputs) in SHAPES.items():
        weight, x = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype), torch.randn(POSITIONS, inputs).to(dtype)
        quantised, found = packed(weight), []
        for _ in range(TURNS):
            for way in (lambda: ops.linear(x, weight), lambda: product(x, quantised)):  # noqa: B023
                found.append(seconds_of(way, CLOCKS["cpu"], 20))
        exact = x.float() @ weight.float().T
        off = (product(x, quantised).float() - exact).norm() / exact.norm()
        times = median(found[::2]), median(found[1::2])
        sums = [one + other for one, other in zip(sums, times, strict=True)]
        print(f"{name}: {1e3 * times[0]:.2f} ms, int8 {1e3 * times[1]:.2f} ms, off by {off:.1%}")
    print(f"a layer: {sums[0] / sums[1]:.2f} times as fast")


def train(study: Study) -> None:
    cell = Cell("de", "lora", 1 / 8, 4e-3)
    name, steps = f"{cell.name}-int8", study.steps(cell)
    with study.alone(name) as is_ours:
        if not is_ours:
            return
        workdir = study.folder / "cells" / name
        study.share_text(cell, workdir)
        recipe = load_recipe(RECIPE, [*cell.overrides(steps), f"workdir=cells/{name}"])
        linear, ops.linear = ops.linear, in_int8(ops.linear)  # type: ignore[assignment]
        for step in STEPS:
            if step != "build-mini":
                run_step_here(ALL_STEPS[step], recipe)
        ops.linear = linear
        pack = pack_of(workdir, cell.system, cell.language)
        study.add({"cell": name, "steps": steps, **bits_of(pack, ["de.manual", "de.help", "en.manual"])})
        shutil.rmtree(pack.parent / "snapshots")


if __name__ == "__main__":
    torch.backends.quantized.engine = "onednn"
    time_products()
    if len(sys.argv) > 1:
        os.chdir(sys.argv[1])
        train(Study(Path.cwd(), 512))
