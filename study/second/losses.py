#!/usr/bin/env python3
"""Losses on held-out text at the end of the second study's trainings.

    python study/second/losses.py FOLDER                table of all trainings in a folder of runs
    python study/second/losses.py FOLDER best NAME      of the runs NAME-RATE the rate with the lowest loss
    python study/second/losses.py FOLDER next NAME      the rate to try next, if the best of three stands at an end
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ds_minimodel.common.errors import UserError, exit_code

# Of the whole body where step 2 trains over a part of it.
NATS = ("held_out/body_nats_per_token", "held_out/nats_per_token")


def last_losses(run: Path) -> dict[str, dict[str, float]]:
    """{training: its losses on held-out text after the last step} of a workdir."""
    found = {}
    for path in sorted(run.glob("**/run/metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        losses = {key: value for key, value in lines[-1].items() if key.startswith("held_out/")}
        if losses and path.parent.parent.joinpath("pack").exists() | path.parent.parent.joinpath("mini").exists():
            found[str(path.parents[1].relative_to(run))] = losses
    return found


def rates(folder: Path, name: str) -> dict[float, float]:
    """{rate: loss} of the finished runs NAME-RATE, each of which has one training."""
    found = {}
    for run in sorted(folder.glob(f"{name}-*")):
        losses = next(iter(last_losses(run).values()), None)
        if losses is None:
            raise UserError(f"{run}: no finished training with held-out text")
        found[float(run.name.removeprefix(f"{name}-"))] = next(losses[key] for key in NATS if key in losses)
    if not found:
        raise UserError(f"{folder}/{name}-RATE: no such run")
    return dict(sorted(found.items()))


def best(folder: Path, name: str) -> str:
    losses = rates(folder, name)
    return f"{min(losses, key=losses.__getitem__):g}"


def next_rate(folder: Path, name: str) -> str:
    """Empty where nothing is left to try."""
    tried = list(rates(folder, name))
    chosen = float(best(folder, name))
    if len(tried) > 3 or chosen not in (tried[0], tried[-1]):
        return ""
    return f"{chosen / 2 if chosen == tried[0] else chosen * 2:g}"


def table(folder: Path) -> str:
    rows = ["| run | training | nats a token | bits a byte |", "| --- | --- | ---: | ---: |"]
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        for training, losses in last_losses(run).items():
            for key in sorted(key for key in losses if "nats_per_token" in key):
                bits = losses.get(key.replace("nats_per_token", "bits_per_byte"))
                where = key.removeprefix("held_out/").replace("nats_per_token", "").strip("_/")
                name = f"{training}, {where}" if where else training
                rows.append(f"| {run.name} | {name} | {losses[key]:.3f} | {'' if bits is None else f'{bits:.4f}'} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("question", nargs="?", choices=("best", "next"))
    parser.add_argument("name", nargs="?", metavar="NAME")
    options = parser.parse_args()
    if (options.question is None) != (options.name is None):
        parser.error("a question needs a NAME")
    answers = {"best": best, "next": next_rate}

    def answer() -> None:
        print(answers[options.question](options.folder, options.name) if options.question else table(options.folder))

    return exit_code(answer)


if __name__ == "__main__":
    sys.exit(main())
