"""The fourth study's main part: `extend`'s default and what is compared with it, in languages that
chose and others.

    python study/fourth/languages.py FOLDER [LANGUAGE…]     a line of JSON for each run in FOLDER/languages-60.jsonl
    python study/fourth/languages.py FOLDER --table         what there is, as registration.md judges it

FOLDER has `model` (of transformers, or GGUF) and the texts of `study/third/texts.py FOLDER en hu de
cs el --man`. What is there is not made again, and a run that was killed goes on. A run of
THOUSANDS=60 of tokens takes some ten minutes of a core, the first of a language fifteen.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from screen import RECIPE, Row, add, command, read

from ds_minimodel.api import load_recipe, run_recipe
from ds_minimodel.extend import retention as kept
from ds_minimodel.extend.questions import begins_alike
from ds_minimodel.extend.retention import (
    LIMITS,
    STRENGTHS,
    Comparison,
    changes_at,
    points_lost,
    within,
)
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.report.kept import loops
from ds_minimodel.training.config import WARM_UP

THOUSANDS = int(os.environ.get("THOUSANDS", "60"))
LOG = Path(f"languages-{THOUSANDS}.jsonl")
LANGUAGES = "hu", "de", "cs", "el"  # in this order; nobody has looked at the first
BESIDE = {"cs": "de"}  # manual of a language that takes no part; else Czech
SYSTEMS: dict[str, list[str]] = {
    "default": [],
    "kl-3": ["adapt.replay_kl=3"],
    "own tokens": ["tokenizer.vocab_size=6"],  # new ones; a recipe takes no fewer
    "kl-1": ["adapt.replay_kl=1"],
    "replay-0.05": ["adapt.replay=0.05"],
}
SEEDS = 1, 2, 3
GENRES = "help", "manual", "man"
TEXT_BYTES = 16_000  # of each
QUESTIONS = 0x68CFD1B8  # their seed: what the hash of the registration's commit begins with
DRAWS = 10_000


def texts_of(language: str) -> list[str]:
    return [
        *(f"{language}.{genre}" for genre in GENRES),
        "en.manual",
        f"{BESIDE.get(language, 'cs')}.manual",
    ]


def trained(language: str, system: str, seed: int) -> Comparison:
    """Make a pack, as far as it is not there, and open it beside the untouched model."""
    steps = round(1000 * THOUSANDS / (8 * 128))
    own = [
        f"adapt.steps={steps}",
        f"adapt.warmup_steps={max(1, round(WARM_UP * steps))}",
        f"seed={seed}",
    ]
    own += [*SYSTEMS[system], f"languages.targets=[{language}]"]
    own += [f"data.text={{en: en.train.txt, {language}: {language}.train.txt}}"]
    workdir = Path(f"runs-{THOUSANDS}") / f"{language}-{system.replace(' ', '-')}-{seed}"
    recipe = load_recipe(RECIPE, [f"workdir={workdir}", *own])
    run_recipe(recipe)
    layout, (lora,) = WorkdirLayout(recipe.workdir), recipe.chosen_systems
    places = layout.model(lora), layout.tokenizer("en"), layout.adapt(lora, language) / "pack"
    texts = {name: f"{name}.txt" for name in texts_of(language)}
    return Comparison(*places, texts, Path(f"the-untouched-{language}.json"), seed=QUESTIONS)


def looked(both: Comparison) -> dict[str, Any]:
    """Bits of each window at each strength down to the one that `extend` would take, and answers at
    that.
    """
    halves = [
        [at for at, own in enumerate(both.dialogues) if own.chooses is chooses]
        for chooses in (True, False)
    ]
    tried: dict[str, Any] = {}
    for strength in STRENGTHS:
        both.put(strength)
        bits = {name: both.bits(name) for name in both.windows}
        worse = changes_at(both, bits, halves[0], "en.manual", (), LIMITS)
        tried[f"{strength:g}"] = {
            "worse": {name: [*own] for name, own in worse.items()},
            "windows": {
                name: [
                    own.before.sum(1).tolist(),
                    own.after.sum(1).tolist(),
                    own.sizes.sum(1).tolist(),
                ]
                for name, own in bits.items()
            },
            "places": {
                name: [[one.before, one.after] for one in own.measures(name)]
                for name, own in bits.items()
            },
        }
        if within(worse, LIMITS):
            break
    answers, chat = both.answers(halves[1]), both.chat(halves[1])[0]
    right = [sum(own.was_right for own in answers), sum(own.is_right for own in answers)]
    alike = sum(begins_alike(own.before, own.after) for own in answers)
    found = {
        "asked": len(answers),
        "right": right,
        "lost": [*points_lost(answers)],
        "alike": alike,
        "chat": [*chat],
    }
    found["loops"] = [
        sum(loops(getattr(own, part)) for own in answers) for part in ("before", "after")
    ]
    return {"strength": f"{strength:g}", "tried": tried, "reported": found}


def saved(rows: Sequence[Row], text: str, strength: str | None = None) -> np.ndarray:
    """(seeds, 2, windows): bits that are saved, and bytes, at a strength or the one that each
    seed's run took.
    """
    windows = [row["tried"][strength or row["strength"]]["windows"][text] for row in rows]
    return np.array([[np.subtract(before, after), sizes] for before, after, sizes in windows])


def drawn(seeds: np.ndarray, text: int) -> np.ndarray:
    """Bits per byte saved, (DRAWS,), of seeds, the same for each text, and windows drawn with
    replacement.
    """
    (number, _, windows), (of_seeds, own) = seeds.shape, map(np.random.default_rng, (0, 1 + text))
    which = (
        of_seeds.integers(number, size=(DRAWS, number, 1)),
        own.integers(windows, size=(DRAWS, 1, windows)),
    )
    return seeds[:, 0][which].sum((1, 2)) / seeds[:, 1][which].sum((1, 2))


def told(draws: np.ndarray, value: float) -> str:
    low, high = np.percentile(draws, (2.5, 97.5))
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def table(rows: list[Row]) -> Iterator[str]:
    columns = [
        *(f"{genre} saved" for genre in GENRES),
        "mean saved",
        "English by position, %",
        "the other language, %",
    ]
    columns += ["tokens that change, %", "right before, after", "begin alike, %"]
    yield f"| language | arm | seeds | strengths | {' | '.join(columns)} |"
    yield "|---" * (4 + len(columns)) + "|"
    for language, system in product(LANGUAGES, SYSTEMS):
        own = [row for row in rows if (row["language"], row["system"]) == (language, system)]
        if own:
            of_text = {name: saved(own, name) for name in texts_of(language)}
            gains = [
                own_saved[:, 0].sum() / own_saved[:, 1].sum() for own_saved in of_text.values()
            ]
            draws = [
                drawn(of_text[name], text) for text, name in enumerate([*of_text][: len(GENRES)])
            ]
            cells = [told(draw, gain) for draw, gain in zip(draws, gains, strict=False)]
            cells.append(told(np.mean(draws, 0), float(np.mean(gains[: len(GENRES)]))))
            taken = [row["tried"][row["strength"]] for row in own]
            places = np.mean([row["places"]["en.manual"] for row in taken], 0)
            cells.append(
                ", ".join(f"{100 * (after / before - 1):+.1f}" for before, after in places)
            )
            before, after = np.sum(
                [row["windows"][texts_of(language)[-1]][:2] for row in taken], (0, 2)
            )
            cells.append(f"{100 * (after / before - 1):+.1f}")
            reported = [row["reported"] for row in own]
            cells.append(", ".join(f"{one['chat'][0]:.1f}" for one in reported))
            cells.append("; ".join("{}, {}".format(*one["right"]) for one in reported))
            cells.append(", ".join(f"{100 * one['alike'] / one['asked']:.0f}" for one in reported))
            strengths = ", ".join(row["strength"] for row in own)
            yield f"| {language} | {system} | {len(own)} | {strengths} | {' | '.join(cells)} |"


def main() -> None:
    languages = command(__doc__ or "", "languages", LOG, table)
    kept.TEXT_BYTES = TEXT_BYTES
    for language, seed, system in product(languages or LANGUAGES, SEEDS, SYSTEMS):
        key = {"language": language, "system": system, "seed": seed}
        if not any(key.items() <= row.items() for row in read(LOG)):
            begun = time.process_time()
            row = key | looked(trained(**key)) | {"cpu_seconds": round(time.process_time() - begun)}
            add(LOG, row)
            print(
                time.strftime("%H:%M"),
                *key.values(),
                row["strength"],
                json.dumps(row["reported"]),
                flush=True,
            )


if __name__ == "__main__":
    main()
