"""Torture: bad inputs and damaged workdirs at random for some minutes, each given to the real command line.

    python -m tests.torture.run MINUTES [--seed N]

Held is right results, or exit code 2 with one line and nothing changed on disk. A fault is printed with its seed.
"""

import argparse
import collections
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ds_minimodel.training.ranks.launch import CPU

from ..forks import run
from ..pipeline.conftest import make_world
from .inputs import CASES, damage, make_files, outcome

DONE_ANEW = "evaluate/minijoint/xx/topic/seed-3"  # so that what it reads is read


def damaged(world: Path, folder: Path, rng: random.Random) -> tuple[int | None, str]:
    """As `outcome`: a file of a copy of the finished `world` is damaged, and a score is to be made again."""
    shutil.copytree(world.parent, folder)
    workdir, recipe = folder / "run", folder / "recipe.yaml"
    recipe.write_text(world.read_text().replace(str(world.parent), str(folder)))
    shutil.rmtree(workdir / DONE_ANEW)
    (workdir / f"{DONE_ANEW}.job.json").unlink()
    what = damage(rng, workdir).relative_to(folder)
    code, _, err = run("run", recipe)
    lines = [line for line in err.splitlines() if line.startswith("ds-minimodel: ")]
    if code == 2 and len(lines) == 1 and "Traceback" not in err:
        return code, ""
    scores = [folder / "report/scores.json" for folder in (world.parent / "run", workdir)]
    if code == 0 and scores[0].read_bytes() == scores[1].read_bytes():
        return code, ""
    return code, f"{what}: exit code {code}, {err[-500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.update(CPU)
    until = time.monotonic() + 60 * options.minutes
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "world").mkdir()
        world = make_world(Path(temporary) / "world")
        code, _, errors = run("run", world)
        assert code == 0, errors
        for number in range(10**9):
            if time.monotonic() > until:
                break
            seed, folder = f"{options.seed} {number}", Path(temporary) / "case"
            case: Any = [*CASES * 5, damaged][number % (5 * len(CASES) + 1)]
            rng = random.Random(seed)
            if case is damaged:
                code, fault = damaged(world, folder, rng)
            else:
                make_files(folder)
                code, fault = outcome(case(rng, folder), folder)
            kind = "fault" if fault else "refused" if code == 2 else "answered"
            counts[case.__name__, kind] += 1
            if fault:
                print(f"{case.__name__} of {seed!r}: {fault}", file=sys.stderr, flush=True)
            shutil.rmtree(folder)
    print("| case | refused by one line | answered | faults |\n| --- | ---: | ---: | ---: |")
    for case in (*CASES, damaged):
        cells = [str(counts[case.__name__, kind]) for kind in ("refused", "answered", "fault")]
        print(f"| {case.__name__.replace('_', ' ')} | {' | '.join(cells)} |")
    return int(any(kind == "fault" for _, kind in counts))


if __name__ == "__main__":
    sys.exit(main())
