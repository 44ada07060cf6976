"""The screen over a masked body: German added to a small ModernBERT of this package's, by equal
FLOPs.

    python -m study.third.masked.run FOLDER BASE

FOLDER has texts.py's files, BASE is a model: by the commands of README.md
runs/modern/pretrain/bl_base/model. Adds to FOLDER/masked.jsonl a row for each cell that is not
there: bits a byte of the manuals' hidden words, in the whole body. "In full" is BL_BASE over STEPS
steps; MiniPost's step 1b, with as many steps, is not counted in its share.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from ds_minimodel.api import load_recipe, recipe_costs
from ds_minimodel.config.reading import read_yaml

RECIPE = Path(__file__).with_name("masked.yaml").resolve()
BASE = Path(sys.argv[2]).resolve()
CLAIM = read_yaml(Path(__file__).with_name("claim.yaml").read_text("utf-8"))[0]
STEPS, RATES = CLAIM["steps"], CLAIM["rates"]


def overrides(system: str, rate: float, steps: int, workdir: str) -> list[str]:
    return [
        f"workdir={workdir}",
        f"base={BASE}",
        f"systems=[{system}]",
        f"adapt.lr={rate:g}",
        f"adapt.steps={steps}",
        f"build_mini.steps={steps}",
    ]


def flops(system: str) -> float:
    """EFLOPs of a step."""
    costs = recipe_costs(load_recipe(RECIPE, overrides(system, 1e-3, 1000, "none")))
    return next(row["executed_eflops"] for row in costs if row["step"] == "adapt") / 1000


def main() -> None:
    os.chdir(sys.argv[1])
    out = Path("masked.jsonl")
    done = (
        {json.loads(line)["cell"] for line in out.read_text("utf-8").splitlines()}
        if out.exists()
        else set()
    )
    for share in (1 / 3, 1.0):
        for system, rates in RATES.items():
            for rate in rates if share < 1 or system == "bl_base" else ():
                cell = f"{system}-{share:.3f}-{rate:g}"
                if cell in done:
                    continue
                steps = round(share * STEPS * flops("bl_base") / flops(system))
                command = [sys.executable, "-P", "-m", "ds_minimodel", "run", str(RECIPE)]
                subprocess.run(
                    [*command, *overrides(system, rate, steps, f"masked/{cell}")], check=True
                )
                (scores,) = Path(f"masked/{cell}/evaluate/{system}/de/manual").glob("*/scores.json")
                row = {"cell": cell, "system": system, "share": share, "rate": rate, "steps": steps}
                with out.open("a", encoding="utf-8") as file:
                    file.write(
                        json.dumps({**row, **json.loads(scores.read_text("utf-8"))[-1]}) + "\n"
                    )


if __name__ == "__main__":
    main()
