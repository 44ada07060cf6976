"""The screen of the fourth study: what keeps more of a chat model while German is added, at equal
FLOPs.

    python study/fourth/screen.py FOLDER [ARM…]      train and measure; a line of JSON each in FOLDER/screen-60.jsonl
    python study/fourth/screen.py FOLDER --table     what there is, as registration.md judges it

FOLDER has `model` (of transformers, or GGUF) and the texts of `study/third/texts.py FOLDER en de
cs`. What is there is not made again, and a run that was killed goes on. `default` has THOUSANDS=60
of tokens; an arm takes some ten minutes of a core, measures with it.
"""

import argparse
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ds_minimodel.api import Recipe, load_recipe, recipe_costs, run_recipe
from ds_minimodel.extend import retention as kept
from ds_minimodel.extend.questions import begins_alike
from ds_minimodel.extend.retention import Comparison
from ds_minimodel.models.flops import EFLOP
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.report.kept import loops
from ds_minimodel.training.config import WARM_UP

THOUSANDS = os.environ.get("THOUSANDS", "60")
ARMS_IN, LOG = Path(f"arms-{THOUSANDS}"), Path(f"screen-{THOUSANDS}.jsonl")
RECIPE = Path(__file__).with_name("screen.yaml").resolve()
SHARED = "corpus", "tokenizer", "tokens", "pretrain"
TEXTS = "de.help", "de.manual", "en.manual", "cs.manual"
TEXT_BYTES = 16_000  # of each
DIALOGUE = 248  # tokens of one that the model writes by itself, its template's beginning with it
LAYERS = 30
ARMS: dict[str, dict[str, Any]] = {  # in this order, also that of dropping from the end
    "default": {},
    "whole-256": {"seq_length": 256, "batch_size": 4},
    "kl-27": {"replay_kl": 27.0},
    "long-512": {"seq_length": 512, "batch_size": 2, "replay": 0.2},
    "replay-0.2": {"replay": 0.2},
    "kl-3": {"replay_kl": 3.0},
    "kl-1": {"replay_kl": 1.0},
    "replay-0.05": {"replay": 0.05},
}
Row = dict[str, Any]
Strengths = list[float]  # of each layer
WHOLE: dict[str, Strengths] = {
    f"{strength:g}": [strength] * LAYERS for strength in (1.0, 0.75, 0.5)
}
BY_LAYER: dict[str, Strengths] = {
    "ends-0": [0.0] * 2 + [1.0] * (LAYERS - 4) + [0.0] * 2,
    "fifths-0.5": [0.5] * 6 + [1.0] * (LAYERS - 12) + [0.5] * 6,
}


def recipe_of(arm: str, steps: int) -> Recipe:
    keys = {**ARMS[arm], "steps": steps, "warmup_steps": max(1, round(WARM_UP * steps))}
    batch = keys.get("batch_size", 8)
    own = [f"adapt.{key}={value}" for key, value in keys.items()]
    return load_recipe(
        RECIPE, [f"workdir={ARMS_IN / arm}", f"engine.micro_batch_size={batch}", *own]
    )


def step_flops(arm: str) -> float:
    """FLOPs that a step of the arm executes: rows that hold a dialogue's part are shorter. (When
    the screen was run a teacher's pass was counted here, 2 % less than recipe_costs does since.)
    """
    recipe = recipe_of(arm, 1000)
    (row,) = (row for row in recipe_costs(recipe) if row["step"] == "adapt")
    adapt = recipe.adapt
    filled = DIALOGUE / (adapt.seq_length * math.ceil(DIALOGUE / adapt.seq_length))
    replayed = adapt.replay * filled
    whole = row["executed_eflops"] * EFLOP / adapt.steps
    return whole * (1 - adapt.replay + replayed)


def train(arm: str, budget: float) -> dict[str, Any]:
    """Make the pack of an arm, as far as it is not there; what that was."""
    recipe = recipe_of(arm, max(20, round(budget / step_flops(arm))))
    workdir, of_first = Path(recipe.workdir), ARMS_IN / "default"
    for name in SHARED:
        if workdir != of_first and (of_first / name).exists() and not (workdir / name).exists():
            part = workdir / f"{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(of_first / name, part, copy_function=os.link)
            part.rename(workdir / name)
    begun = time.process_time()
    run_recipe(
        recipe, rebuild=True
    )  # another number of steps takes more or less of what the model writes by itself
    steps, adapt = recipe.adapt.steps, recipe.adapt
    facts = {
        "steps": steps,
        "tokens": steps * adapt.batch_size * adapt.seq_length,
        "flops": steps * step_flops(arm),
    }
    return {**ARMS[arm], **facts, "cpu_seconds": round(time.process_time() - begun)}


def opened(arm: str) -> Comparison:
    recipe = recipe_of(arm, 1000)
    layout, (system,) = WorkdirLayout(recipe.workdir), recipe.chosen_systems
    places = layout.model(system), layout.tokenizer("en"), layout.adapt(system, "de") / "pack"
    return Comparison(*places, {name: f"{name}.txt" for name in TEXTS}, Path("the-untouched.json"))


def put(both: Comparison, strengths: Strengths) -> None:
    """Give each layer its strength; what is in none has the middle one's."""
    mixed = dict[str, Tensor]()
    for strength in sorted({*strengths}):
        both.put(strength)
        for name, tensor in both.module.state_dict().items():
            layer = re.search(r"layers\.(\d+)\.", name)
            if strength == strengths[int(layer[1]) if layer else LAYERS // 2]:
                mixed[name] = tensor.clone()
    both.module.load_state_dict(mixed)


def measured(both: Comparison, asks: bool) -> dict[str, Any]:
    """Bits per byte of each text by position, before and after, and their rise in percent with its
    standard error; likeliest tokens that are others; answers to the half of the questions that
    chooses.
    """
    texts = {}
    for name in TEXTS:
        bits = both.bits(name)
        rises = {place: [*rise] for place, rise in zip(bits.places, bits.rises, strict=True)}
        by_place = [[own.before, own.after] for own in bits.measures(name)]
        texts[name] = {
            "all": [*bits.a_byte],
            "rise": [*bits.rise],
            "rises": rises,
            "by_place": by_place,
        }
    choosing = [at for at, dialogue in enumerate(both.dialogues) if dialogue.chooses]
    changed, before, after = both.chat(choosing)
    found: dict[str, Any] = {
        "texts": texts,
        "chat": {"changed": [*changed], "bits": [before, after]},
    }
    if asks:
        answers = both.answers(choosing)
        right = np.array([[own.was_right, own.is_right] for own in answers])
        found["answers"] = {
            "asked": len(answers),
            "right": right.sum(0).tolist(),
            "lost": int((right[:, 0] & ~right[:, 1]).sum()),
            "alike": sum(begins_alike(own.before, own.after) for own in answers),
            "loops": [
                sum(loops(getattr(own, part)) for own in answers) for part in ("before", "after")
            ],
            "some": [[own.opening, own.before, own.after] for own in answers[:12]],
        }
    return found


def read(log: Path) -> list[Row]:
    return (
        [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    )


def add(log: Path, row: Row) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def command(
    description: str, words: str, log: Path, table: Callable[[list[Row]], Iterable[str]]
) -> list[str]:
    """Read FOLDER [WORD…] [--table], go to the folder and give the words; with --table print that
    of `log` and end.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(words, nargs="*")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_intermixed_args()
    os.chdir(arguments.folder)  # the recipe's paths are of there
    if arguments.table:
        print(*table(read(log)), sep="\n")
        parser.exit()
    return list(getattr(arguments, words))


def run(arm: str, strengths: dict[str, Strengths], budget: float) -> None:
    """Train an arm and measure it at each strength; answers at the first, which is in full."""
    missing = {
        name: own
        for name, own in strengths.items()
        if (arm, name) not in [(r["arm"], r["strength"]) for r in read(LOG)]
    }
    if not missing:
        return
    facts = train(arm, budget)
    both = opened(arm)
    for name, own in missing.items():
        put(both, own)
        row = {"arm": arm, "strength": name, **facts, **measured(both, asks=name == "1")}
        add(LOG, row)
        print(
            time.strftime("%H:%M"),
            arm,
            name,
            json.dumps(row["texts"]["de.manual"]["all"]),
            flush=True,
        )


def gain(row: Row) -> float:
    """Bits per byte of German, mean of help and manual, that are saved."""
    return float(
        np.mean([row["texts"][name]["all"][0] - row["texts"][name]["all"][1] for name in TEXTS[:2]])
    )


def table(rows: list[Row]) -> Iterator[str]:
    own = [row for row in rows if row["arm"] == "default" and row["strength"] in WHOLE]
    line = sorted((row["chat"]["changed"][0], gain(row)) for row in own)
    changes, gains = zip((0.0, 0.0), *line, strict=True)
    yield (
        "| arm | strength | steps | gain, German | above the default's line | tokens that change, "
        "% | English by "
        "position, % | Czech, % | right before, after (lost) | begin alike |"
    )
    yield "|---" * 10 + "|"
    for row in rows:
        changed, error = row["chat"]["changed"]
        above = gain(row) - float(np.interp(changed, changes, gains))
        english = ", ".join(
            f"{rise[0]:+.1f}" for rise in row["texts"]["en.manual"]["rises"].values()
        )
        asked = row.get("answers")
        right = "{}, {} ({})".format(*asked["right"], asked["lost"]) if asked else ""
        alike = f"{100 * asked['alike'] / asked['asked']:.0f} %" if asked else ""
        czech = row["texts"]["cs.manual"]["rise"][0]
        yield (
            f"| {row['arm']} | {row['strength']} | {row['steps']} | {gain(row):.3f} | {above:+.3f} "
            "| "
            f"{changed:.1f} ± {error:.1f} | {english} | {czech:+.1f} | {right} | {alike} |"
        )


def main() -> None:
    arms = command(__doc__ or "", "arms", LOG, table)
    kept.TEXT_BYTES = TEXT_BYTES
    budget = step_flops("default") * 1000 * float(THOUSANDS) / (8 * 128)
    for arm in arms or ARMS:
        strengths = WHOLE if arm == "default" else dict(list(WHOLE.items())[:2])
        run(arm, strengths, budget)
    if not arms:
        run("default", BY_LAYER, budget)


if __name__ == "__main__":
    main()
