#!/usr/bin/env python3
"""Settings by the loss on held-out text after the last step of a training.

python study/second/losses.py FOLDER best NAME      of the runs NAME-NUMBER the number (a rate) with the lowest loss,
                                                    with --to LOSS the one nearest to that
python study/second/losses.py FOLDER next NAME      the rate to try next, if the best of three stands at an end
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ds_minimodel.common.errors import UserError, exit_code

# Of the whole body where step 2 trains over a part of it.
NATS = ("held_out/body_nats_per_token", "held_out/nats_per_token")


def last_losses(run: Path) -> dict[str, dict[str, float]]:
    """{training: its losses on held-out text after the last step} of a workdir's trainings that are finished."""
    found = {}
    for path in sorted(run.glob("*/**/run/metrics.jsonl")):
        training = path.parents[1]
        if (training / "pack").exists() or (training / "mini").exists():
            last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
            losses = {key: value for key, value in last.items() if key.startswith("held_out/")}
            if losses:
                found[str(training.relative_to(run))] = losses
    return found


def chosen_by(trainings: Mapping[str, Mapping[str, float]]) -> float:
    """The loss that chooses a rate: of the training of step 2 where a run has one, else of its one body."""
    losses = trainings[min(trainings)]  # adapt, then pretrain
    return next(losses[key] for key in NATS if key in losses)


def tried(folder: Path, name: str) -> dict[float, float]:
    """{number: loss} of the finished runs NAME-NUMBER."""
    found = {}
    for run in folder.glob(f"{name}-*"):
        trainings = last_losses(run)
        if not trainings:
            raise UserError(f"{run}: no finished training with held-out text")
        found[float(run.name.removeprefix(f"{name}-"))] = chosen_by(trainings)
    if not found:
        raise UserError(f"{folder}/{name}-NUMBER: no such run")
    return dict(sorted(found.items()))


def best(folder: Path, name: str, loss: float = 0) -> str:
    losses = tried(folder, name)
    return f"{min(losses, key=lambda number: abs(losses[number] - loss)):g}"


def next_rate(folder: Path, name: str) -> str:
    """Empty where nothing is left to try."""
    rates = list(tried(folder, name))
    chosen = float(best(folder, name))
    if len(rates) > 3 or chosen not in (rates[0], rates[-1]):
        return ""
    return f"{chosen / 2 if chosen == rates[0] else chosen * 2:g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("question", choices=("best", "next"))
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--to", type=float, default=0, metavar="LOSS")
    options = parser.parse_args()
    folder, name = options.folder, options.name
    return exit_code(
        lambda: print(next_rate(folder, name) if options.question == "next" else best(folder, name, options.to))
    )


if __name__ == "__main__":
    sys.exit(main())
