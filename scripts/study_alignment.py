#!/usr/bin/env python3
"""Whether the packs of the study's runs speak their language, and how near to English they lie, as Markdown.

    python scripts/study_alignment.py runs/study/seed-1 runs/study/seed-11 benchmarks/study/alignment.md

Two tables over the whole body with a pack plugged in, for each system and target language of finished runs. The loss is
that of masked-language modelling, by the body's top head, on samples that follow those of the training. Translations
are the paragraphs of the test files of `topic`, which are parallel: how many have their own translation as the nearest
English one, and English ones theirs (kind of task `retrieval`), before step 2 and after it.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ds_minimodel.api import Embedder, Recipe, UserError, load_body, load_pack, plugged_module
from ds_minimodel.common.errors import exit_code
from ds_minimodel.common.files import read_json_lines, write_made
from ds_minimodel.engine.ranks.world import join_ranks
from ds_minimodel.model.heads import to_tensors
from ds_minimodel.recipe.jobs import Layout
from ds_minimodel.results.render import Cell, Table, to_markdown
from ds_minimodel.results.run_results import read_run_results
from ds_minimodel.results.units import name_of
from ds_minimodel.steps.training import masked_lm_sampler, snapshot_folder
from ds_minimodel.systems import System
from ds_minimodel.tasks.metrics import neighbour_accuracy
from ds_minimodel.tasks.retrieval import unit

TASK, BATCHES, PARAGRAPHS = "topic", 12, 1000


def loss(recipe: Recipe, layout: Layout, system: System, language: str) -> float:
    """Nats a masked token of the body's top head, with the pack of step 2 plugged in."""
    body = load_body(layout.pretrain(system) / "body")
    model = plugged_module(body, load_pack(layout.adapt(system, language) / "pack", body.space))
    section = recipe.adapt
    sampler = masked_lm_sampler(recipe, section, layout, language, join_ranks())
    first, size = section.steps * section.batch_size, section.batch_size
    batches = [to_tensors(sampler.rows(start, start + size)) for start in range(first, first + BATCHES * size, size)]
    with torch.no_grad():
        return sum(float(model(batch)[-1]) for batch in batches) / sum(batch["count"] for batch in batches)


def parallel_paragraphs(recipe: Recipe, language: str) -> tuple[list[str], list[str]]:
    """Test paragraphs of `topic` in a language, and what they translate; each text once. UserError without them."""
    task, source = recipe.finetune.tasks.get(TASK), recipe.languages.source
    files = task.test if task else {}
    texts = []
    for one in (language, source):
        if one not in files:
            raise UserError(f"{recipe.workdir}: its recipe has no test file of a task {TASK} in {one}; leave it out")
        records = read_json_lines(Path(files[one]))
        if not all(isinstance(record.get(key), str) for record in records for key in ("id", "text")):
            raise UserError(f"{files[one]}: a record without id or text; fetch-sample's have both")
        texts.append({record["id"]: record["text"] for record in records})
    own, of_source = texts
    translated = {of_source[name]: own[name] for name in own if name in of_source}
    chosen = list({text: original for original, text in translated.items()}.items())[:PARAGRAPHS]
    if not chosen:
        raise UserError(
            f"{files[language]}: nothing in it translates {files[source]}; "
            "start in the folder that the run was started in, with its data"
        )
    return [text for text, _ in chosen], [original for _, original in chosen]


def percent_found(recipe: Recipe, layout: Layout, system: System, language: str) -> list[float]:
    """Percent of paragraphs whose translation is the nearest, mean of both directions, before and after step 2."""
    source, folder, scores = recipe.languages.source, layout.adapt(system, language), []
    texts, originals = parallel_paragraphs(recipe, language)
    pairs = np.stack([np.arange(len(texts))] * 2, 1)
    for pack in (snapshot_folder(folder, 0), folder / "pack"):
        packs = {source: layout.pretrain(system) / "pack", language: pack}
        embedder = Embedder(layout.pretrain(system) / "body", packs)
        own, original = (unit(embedder.embed(*asked)) for asked in ((texts, language), (originals, source)))
        directions = (partial(_similarity, own, original), partial(_similarity, original, own))
        scores.append(statistics.fmean(neighbour_accuracy(near, pairs, len(texts), len(texts)) for near in directions))
    return scores


def _similarity(vectors: np.ndarray, others: np.ndarray, rows: slice) -> np.ndarray:
    return vectors[rows] @ others.T


def tables(workdirs: Sequence[Path]) -> list[Table]:
    """The two tables; UserError for a run that is not finished, or that has other target languages than the first."""
    recipes = [Recipe.model_validate(read_run_results(workdir, workdir.name).recipe) for workdir in workdirs]
    languages, losses, translations = recipes[0].languages.targets, [], []
    for workdir, recipe in zip(workdirs, recipes, strict=True):  # before anything is computed
        if recipe.languages.targets != languages:
            raise UserError(f"{workdir}: its targets are not those of {workdirs[0]}; give such runs apart")
        for language in languages:
            parallel_paragraphs(recipe, language)
    for workdir, recipe in zip(workdirs, recipes, strict=True):
        layout = Layout(workdir)
        for system in recipe.chosen_systems:
            print(f"{workdir.name} {system.name}", file=sys.stderr)
            row = [Cell(workdir.name), Cell(name_of(system.name))]
            losses.append([*row, *(Cell(f"{loss(recipe, layout, system, one):.3f}") for one in languages)])
            percents = (percent_found(recipe, layout, system, one) for one in languages)
            translations.append([*row, *(Cell(f"{before:.1f} → {after:.1f}") for before, after in percents)])
    columns = ["run", "system", *languages]
    counts = ", ".join(f"{len(parallel_paragraphs(recipes[0], language)[0]):,} in {language}" for language in languages)
    return [
        Table("Loss of the whole body after step 2", columns, losses, notes=["Nats a masked token, by its top head."]),
        Table(
            "Translations found before and after step 2, percent",
            columns,
            translations,
            notes=[f"Among as many paragraphs: {counts}. By the whole body, for BL_SMALL its own."],
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="WORKDIR", help="finished runs with the same targets")
    parser.add_argument("out", type=Path, metavar="OUT.md", help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as the study's runs, which may be going on beside it
    title = "Language and alignment of the study's packs"
    return exit_code(lambda: write_made(options.out, lambda: to_markdown(title, tables(options.runs))))


if __name__ == "__main__":
    sys.exit(main())
