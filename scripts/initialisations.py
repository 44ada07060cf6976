#!/usr/bin/env python3
"""Compare the initialisations of step 2 by the loss after so many steps, on one recipe and this machine.

    python scripts/initialisations.py recipes/quickstart.yaml OUT [KEY=VALUE …]

Pretrains the recipe's BL_BASE (or takes its `base`), then adapts its first target from every initialisation
with the recipe's own section `adapt`. What WECHSEL and OFA need is made from the recipe's text, so that nothing
else is fetched: word vectors by gensim's fastText, and as a dictionary the words that both languages share.
Leaves initialisations.json and .md in OUT; repeated, it goes on.
"""

import argparse
import datetime
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write, read_json_lines, read_manifest, write_json
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.schema import Recipe

if TYPE_CHECKING:
    from ds_minimodel.engine.ranks.world import World

METHODS = ("random", "mean", "overlap", "focus", "wechsel", "ofa")
STEPS = (1, 50, 100, 200, 400)
LEAST = 3  # times that a word must be there to have a vector


def main() -> None:
    """Adapt from every initialisation and write the table of losses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    import torch

    from ds_minimodel.benchmark.peaks import device_name
    from ds_minimodel.data.reader import read_documents
    from ds_minimodel.data.vectors import require_gensim
    from ds_minimodel.engine.ranks.world import join_ranks

    require_gensim(Path(__file__).name)
    recipe, world, out = load_recipe(options.recipe, options.overrides), join_ranks(), options.out
    source, target = recipe.languages.source, recipe.languages.targets[0]
    common = [*options.overrides, "systems=[bl_base]", f"languages={{source: {source}, targets: [{target}]}}"]
    do("pretrain", load_recipe(options.recipe, [*common, f"workdir={out}/source"]), world)
    words = {language: words_of(read_documents(recipe.data.text[language])) for language in (source, target)}
    vectors = write_vectors_and_dictionary(words, out)
    losses: dict[str, dict[int, float]] = {}
    rows: dict[str, list[int]] = {}
    for method in METHODS:
        own = [
            f"workdir={out}/{method}",
            f"base={out}/source/pretrain/bl_base",
            f"adapt.initialisation={method}",
            *(vectors if method in ("wechsel", "ofa") else []),
        ]
        do("adapt", load_recipe(options.recipe, [*common, *own]), world)
        folder = out / method / "adapt/bl_base" / target
        records = read_json_lines(folder / "run/metrics.jsonl")
        losses[method] = {step: loss_at(records, step) for step in STEPS if step <= recipe.adapt.steps}
        manifest = read_manifest(folder / "pack")
        rows[method] = [manifest[key] for key in ("rows_copied", "rows_combined", "vocab_size")]
    write_json(
        out / "initialisations.json",
        {
            "command": " ".join(["python scripts/initialisations.py", *sys.argv[1:]]),
            "languages": [source, target],
            "date": str(datetime.date.today()),
            "torch": torch.__version__,
            "device": device_name(),
            "losses": losses,
            "rows_copied_combined_of": rows,
        },
    )
    (out / "initialisations.md").write_text(table(losses, rows))
    print(table(losses, rows))


def do(last: str, recipe: Recipe, world: "World") -> None:
    """Run what is not complete of the recipe, up to the step `last`."""
    from ds_minimodel.pipeline.order import STEPS
    from ds_minimodel.pipeline.run import run_step

    for name in ("tokenizer", "prepare", "pretrain", "adapt"):
        run_step(STEPS[name], recipe, world)
        if name == last:
            break


def words_of(documents: Iterable[Iterable[str]]) -> list[list[str]]:
    """Sentences of a text as lists of words."""
    return [re.findall(r"\w+|[^\w\s]", line) for document in documents for line in document]


def train_word_vectors(sentences: list[list[str]], path: Path) -> list[str]:
    """Write fastText's vectors of the words of `sentences`, most frequent first, to `path`; return the words.

    UserError where no word is there three times.
    """
    from gensim.models import FastText

    settings = {"vector_size": 100, "sg": 1, "epochs": 5, "workers": 1, "seed": 1, "bucket": 1 << 17}
    model = FastText(min_count=LEAST, **settings)
    model.build_vocab(sentences)
    if not len(model.wv):
        raise UserError(f"{path}: not written, for its text has no word {LEAST} times; give it more text")
    model.train(sentences, total_examples=model.corpus_count, epochs=model.epochs)
    with atomic_write(path, "w") as file:
        file.write(f"{len(model.wv)} {model.vector_size}\n")
        for word, vector in zip(model.wv.index_to_key, model.wv.vectors, strict=True):
            file.write(f"{word} {' '.join(map(str, vector))}\n")
    return list(model.wv.index_to_key)


def write_vectors_and_dictionary(words: dict[str, list[list[str]]], out: Path) -> list[str]:
    """Write vectors of both languages' words, and those that they share as a dictionary; the overrides for them."""
    known = [train_word_vectors(sentences, out / f"{language}.vec") for language, sentences in words.items()]
    of_target = set(known[1])
    shared = [word for word in known[0] if word in of_target]
    (out / "dictionary.txt").write_text("".join(f"{word}\t{word}\n" for word in shared), encoding="utf-8")
    source, target = words
    return [
        f"adapt.word_vectors={{{source}: {out}/{source}.vec, {target}: {out}/{target}.vec}}",
        f"adapt.dictionaries={{{target}: {out}/dictionary.txt}}",
    ]


def loss_at(records: list[dict], step: int) -> float:
    """Loss that training reported next at or after `step`: a mean over the few steps since the report before."""
    return round(next(record["loss"] for record in records if record["step"] >= step), 3)


def table(losses: dict[str, dict[int, float]], rows: dict[str, list[int]]) -> str:
    """Markdown table, one row for each initialisation."""
    steps = list(next(iter(losses.values())))
    lines = [
        "| initialisation | " + " | ".join(f"step {step}" for step in steps) + " | rows copied, combined, of |",
        "|---|" + "---|" * (len(steps) + 1),
    ]
    lines += [
        f"| {method} | "
        + " | ".join(f"{loss:.2f}" for loss in of_method.values())
        + f" | {', '.join(f'{count:,}' for count in rows[method])} |"
        for method, of_method in losses.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
