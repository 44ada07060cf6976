"""What freezing saves: memory by kind and bytes on the wire of a step, measured on two CPU ranks, against the plan.

    torchrun --nproc_per_node 2 scripts/frozen_costs.py [OUT]

Steps 1, 1b and 2 of a small body at ZeRO 0 to 3, and the same steps with everything trainable. Writes OUT.json and
OUT.md (benchmarks/frozen_costs by default).
"""

import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/engine"))

import deepspeed
import torch
from measure import measure_step

from ds_minimodel.benchmark.peaks import device_name
from ds_minimodel.common.files import atomic_write, write_json
from ds_minimodel.common.vocabulary import NUM_SPECIAL
from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.loop import Batches
from ds_minimodel.engine.ranks.world import World, join_ranks
from ds_minimodel.engine.run import Accounting, Run
from ds_minimodel.engine.schedule import Schedule
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.parameters import train_only
from ds_minimodel.model.transformer import BodyConfig

VOCAB, HIDDEN, SEQUENCES, LENGTH, MASKED = 8000, 256, 16, 64, 10  # sequences a step, on all ranks
# (layers, what trains) of the paper's steps at N = 2 of 6 layers, with 2 new ones in step 1b.
STEPS = {
    "1 pretrain": (6, lambda name: True),
    "1b build-mini": (4, lambda name: name.startswith(("body.layers.2.", "body.layers.3."))),
    "2 adapt": (2, lambda name: name.startswith("pack.")),
}
KINDS = ("weights", "optimizer", "activations", "rest", "total")


def batches(world: World) -> Batches:
    def step(number: int) -> list[dict[str, Any]]:
        generator = torch.Generator().manual_seed(number * world.size + world.rank)
        size = SEQUENCES // world.size
        tokens = torch.randint(NUM_SPECIAL, VOCAB, (size, LENGTH), generator=generator)
        read = torch.stack([torch.randperm(LENGTH, generator=generator)[:MASKED] for _ in range(size)])
        return [
            {
                "tokens": tokens,
                "read": read,
                "targets": tokens.gather(1, read),
                "count": size * MASKED,
                "sample_keys": torch.arange(size, dtype=torch.int32),
            }
        ]

    return step


def measure(world: World, layers: int, trains: Callable[[str], bool], zero_stage: int) -> dict[str, Any]:
    run = Run(
        Schedule(steps=10, lr=1e-3),
        Execution(SEQUENCES, micro_batch_size=SEQUENCES, zero_stage=zero_stage, precision="bf16"),
        Accounting(tokens_per_step=SEQUENCES * LENGTH, phases=((10, 1.0, 1.0),)),
    )
    torch.manual_seed(0)
    module = MaskedLanguageModel(BodyConfig(layers, HIDDEN, 4, 4 * HIDDEN, LENGTH, (layers,)), VOCAB)
    train_only(module, trains)
    return measure_step(module, batches(world), run, world)


def main(out: Path) -> None:
    world = join_ranks()
    rows: list[dict[str, Any]] = []
    for step, (layers, trains) in STEPS.items():
        for stage in range(4):
            frozen = measure(world, layers, trains, stage)
            whole = frozen if step == "1 pretrain" else measure(world, layers, lambda name: True, stage)
            rows.append({"step": step, "zero_stage": stage, **frozen, "all_trainable": whole["measured"]})
            if world.is_main:
                print(step, "ZeRO", stage, file=sys.stderr)
    if world.is_main:
        facts = {
            "command": "torchrun --nproc_per_node 2 scripts/frozen_costs.py",
            "device": device_name(),
            "ranks": world.size,
            "precision": "bf16",
            "torch": torch.__version__,
            "deepspeed": deepspeed.__version__,
            "date": datetime.date.today().isoformat(),
        }
        write_json(out.with_suffix(".json"), {**facts, "rows": rows})
        with atomic_write(out.with_suffix(".md"), "w") as file:
            file.write(page(facts, rows))


def page(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = [
        "# What freezing saves",
        "",
        ", ".join(f"{key}: {value}" for key, value in facts.items()) + ".",
        "",
        f"Bytes on one rank, in MiB, as *measured / planned*. {SEQUENCES} sequences of {LENGTH} tokens a step, "
        f"vocabulary {VOCAB}, width {HIDDEN}; layers: {', '.join(f'{n} in step {s}' for s, (n, _) in STEPS.items())}. "
        "`rest`: gradients, buckets, gathered weights, passing values. `sent`: bytes that a rank sends in a step, "
        "ring algorithm. The last two columns: the same step with everything trainable, measured.",
        "",
        "| step | ZeRO | " + " | ".join(KINDS) + " | sent | total, all trainable | sent, all trainable |",
        "| --- | " + "---: | " * (len(KINDS) + 4),
    ]
    for row in rows:
        measured, planned, whole = row["measured"], row["planned"], row["all_trainable"]
        cells = [f"{mib(measured[kind])} / {mib(planned[kind])}" for kind in KINDS]
        cells += [
            f"{mib(sum(measured['sent'].values()))} / {mib(sum(planned['sent'].values()))}",
            mib(whole["total"]),
            mib(sum(whole["sent"].values())),
        ]
        lines.append(f"| {row['step']} | {row['zero_stage']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def mib(size: float) -> str:
    return f"{size / 2**20:.2f}"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "benchmarks/frozen_costs"))
