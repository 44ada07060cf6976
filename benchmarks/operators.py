"""How many operators a LoRA step of SmolLM2's sizes calls, as a GPU would have it: python -m benchmarks.operators

Of the model's passes on tensors without memory, by the way that operators go on a GPU; and of DeepSpeed's part of a
step at ZeRO 1, which a narrow model takes on the CPU. Views and allocations do not count.
"""

import os
from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.training import start, take_steps
from benchmarks.workloads import PAPER, make_batch, our_module, workload
from ds_minimodel import ops
from ds_minimodel.jobs import training
from ds_minimodel.recipe.reading import load_recipe

LAUNCH_NOTHING = set(
    "_has_same_storage_numel _local_scalar_dense _resize_output _unsafe_view alias as_strided chunk detach empty "
    "empty_like empty_strided expand is_pinned lift_fresh new_empty new_empty_strided permute resize_ select set_ "
    "slice split split_with_sizes squeeze t transpose unbind unsqueeze view view_as".split()
)


class Called(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, op: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        self.counts[op._schema.name.removeprefix("aten::")] += 1
        return op(*arguments, **(options or {}))

    def found(self) -> Counter[str]:
        """The counts of what launches something."""
        return Counter({name: count for name, count in self.counts.items() if name not in LAUNCH_NOTHING})


def overrides(width: int, vocabulary: int) -> list[str]:
    """Of the paper's recipe: SmolLM2's heads and layers at this width."""
    model = f"num_layers: 30, num_heads: 9, num_kv_heads: 3, hidden_size: {width}, ffn_size: {8 * width // 3}"
    sections = ["pretrain={}", "build_mini={}", "adapt={rank: 16}", "mini={depth: 4, new_layers: 2}"]
    return [f"model={{kind: llama, {model}}}", *sections, f"tokenizer.vocab_size={vocabulary}"]


def of_model(device: str) -> tuple[Counter[str], Counter[str]]:
    """Of the forward and of the backward pass of 32 x 1,024 tokens in bf16, as such a device has them."""
    recipe = load_recipe(PAPER, [*overrides(576, 51_152), "engine.precision=bf16"])
    work = workload(recipe, "adapt-lora", 32_768, 1024)
    module = our_module(work, recipe).bfloat16().to("meta")
    batch = {name: one.to("meta") if torch.is_tensor(one) else one for name, one in make_batch(work, 0).items()}
    with ops.meta_stands_for(device):
        with Called() as forward:
            loss = module(batch).mean()
        with Called() as backward:
            loss.backward()
    return forward.found(), backward.found()


def of_step() -> Counter[str]:
    """Of a whole step at ZeRO 1 on the CPU."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29532"}
    sizes = {"step": "adapt-lora", "tokens": 256, "seq_length": 64, "shortest": None}
    with mock.patch.object(training, "needed_stage", lambda *_: 1):  # a CPU's run would be one of stage 0
        start("ds_minimodel", PAPER, overrides(72, 512), "bf16", 1, **sizes)
    take_steps(2, "wall")
    with Called() as called:
        take_steps(1, "wall")
    return called.found()


def main() -> None:
    """Print the numbers."""
    forward, backward = of_model("cuda")
    engine = of_step().total() - sum(one.total() for one in of_model("cpu"))
    print(f"forward {forward.total():,}, backward {backward.total():,}, DeepSpeed about {engine:,}")
    print(", ".join(f"{name} {count}" for name, count in (forward + backward).most_common(16)))


if __name__ == "__main__":
    main()
