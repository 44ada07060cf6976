"""How many operators a LoRA step of SmolLM2's layers calls, as a GPU would have it: python -m
benchmarks.operators

A micro-batch of 32 x 1,024 tokens goes through the model on tensors without memory, by the way that
operators go on a GPU (torch's attention counts as its flash kernel, one operator forward and one
backward); DeepSpeed's part of a step, at ZeRO 1 on one rank, is counted on a CPU, at a small width.
Views and allocations do not count.
"""

import contextlib
import os
from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.training import start, take_steps
from benchmarks.workloads import PAPER, make_batch, our_module, workload
from ds_minimodel import ops
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.ops import cross_entropy, window
from ds_minimodel.pipeline import training

LAUNCH_NOTHING = set(
    "_has_same_storage_numel _local_scalar_dense _resize_output _unsafe_view alias as_strided "
    "chunk detach empty "
    "empty_like empty_strided expand is_pinned lift_fresh new_empty new_empty_strided numpy_T "
    "permute promote_types "
    "resize_ select set_ slice split split_with_sizes squeeze t transpose unbind unsqueeze view "
    "view_as "
    "profiler::_record_function_enter_new profiler::_record_function_exit".split()
)


class Called(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(
        self, op: Any, types: Any, arguments: tuple = (), options: dict | None = None
    ) -> Any:
        name = op._schema.name.removeprefix("aten::")
        if name == "dsmm::linear_cross_entropy":  # made of others, chunk by chunk
            with self:
                return cross_entropy._forward_by_chunks(*arguments)
        self.counts[name] += name not in LAUNCH_NOTHING
        return op(*arguments, **(options or {}))


def overrides(layers: int) -> list[str]:
    """Of the paper's recipe: SmolLM2's heads, a small width and vocabulary, on which no count
    depends.
    """
    model = f"num_layers: {layers}, num_heads: 9, num_kv_heads: 3, hidden_size: 72, ffn_size: 192"
    sections = [
        "pretrain={}",
        "build_mini={}",
        "adapt={rank: 16}",
        "mini={depth: 1, new_layers: 1}",
    ]
    return [f"model={{kind: llama, {model}}}", *sections, "tokenizer.vocab_size=512"]


def _flash(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float, enable_gqa: bool
) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scale)[
        0
    ]


def _causal(keys_values: Tensor, queries: Tensor, num_heads: int, *others: Any) -> Tensor:
    return window.torch_window_attention(keys_values, queries, num_heads, None, scale=1.0)


def of_model(
    device: str, layers: int = 30, tokens: int = 32_768, length: int = 1024
) -> tuple[Counter[str], Counter[str]]:
    """Of the forward and of the backward pass of a micro-batch in bf16, as such a device ("cpu",
    "cuda") has them.
    """
    recipe = load_recipe(PAPER, [*overrides(layers), "engine.precision=bf16"])
    work = workload(recipe, "adapt-lora", tokens, length)
    module = our_module(work, recipe).bfloat16().to("meta")
    batch = {
        name: one.to("meta") if torch.is_tensor(one) else one
        for name, one in make_batch(work, 0).items()
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(ops.meta_stands_for(device))
        if device == "cuda":
            stack.enter_context(mock.patch.object(ops, "window_attention", _causal))
            stack.enter_context(
                mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", _flash)
            )
        with Called() as forward:
            loss = module(batch).mean()
        with Called() as backward:
            loss.backward()
    return +forward.counts, +backward.counts


def of_engine(clip: float, layers: int = 30) -> int:
    """Of DeepSpeed, and of what else a step has beside the passes of its micro-batch, at ZeRO 1 on
    one rank.

    clip: the recipe's `optimizer.clip`; 0: gradients are not clipped.
    """
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29532"}
    sizes = {"step": "adapt-lora", "tokens": 256, "seq_length": 64, "shortest": None}
    with mock.patch.object(
        training, "needed_stage", lambda *_: 1
    ):  # a CPU's run would be one of stage 0
        start(
            "ds_minimodel",
            PAPER,
            [*overrides(layers), f"optimizer.clip={clip}"],
            "bf16",
            1,
            **sizes,
        )
    take_steps(2, "wall")
    with Called() as called:
        take_steps(1, "wall")
    return called.counts.total() - sum(one.total() for one in of_model("cpu", layers, 256, 64))


def main() -> None:
    """Print the numbers."""
    forward, backward = of_model("cuda")
    for clip in (0.0, 1.0):
        engine = of_engine(clip)
        total = forward.total() + backward.total() + engine
        parts = f"forward {forward.total():,}, backward {backward.total():,}, DeepSpeed {engine:,}"
        print(f"{'clipped' if clip else 'plain'}: {parts}: {total:,} operators a step")
    print(", ".join(f"{name} {count}" for name, count in (forward + backward).most_common(16)))


if __name__ == "__main__":
    main()
