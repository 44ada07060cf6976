#!/usr/bin/env python3
"""Print how well the packs of a finished run know their language, and how near to English they lie.

    python study/alignment.py study/study.yaml [KEY=VALUE …]

A row for each system and target language, of the whole body with the pack plugged in. The loss is that of masked
language modelling by the body's top head (nats a masked token), on samples that follow those of the training.
Translations are the paragraphs of the test files of `topic`, which are parallel: how many percent have their own
translation as the nearest English one, and English ones theirs (kind of task `retrieval`), before and after step 2.
"""

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ds_minimodel.api import Embedder, Recipe, load_body, load_pack, plugged_module
from ds_minimodel.common.errors import exit_code
from ds_minimodel.common.files import read_json_lines
from ds_minimodel.jobs.layout import WorkdirLayout
from ds_minimodel.models.trainable import to_tensors
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.report.curves import name_of
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import snapshot_folder, text_sampler
from ds_minimodel.tasks.retrieval import neighbour_accuracy, unit
from ds_minimodel.training.ranks.world import join_ranks

TASK, BATCHES, PARAGRAPHS = "topic", 12, 1000


def loss(recipe: Recipe, system: System, language: str) -> float:
    """Nats a masked token of the body's top head, with the pack of step 2 plugged in."""
    layout, section = WorkdirLayout(recipe.workdir), recipe.adapt
    body = load_body(layout.pretrain(system) / "body")
    model = plugged_module(body, load_pack(layout.adapt(system, language) / "pack", body.space))
    sampler = text_sampler(Context(recipe, join_ranks()), section, language)
    first, size = section.steps * section.batch_size, section.batch_size
    batches = [to_tensors(sampler.rows(start, start + size)) for start in range(first, first + BATCHES * size, size)]
    with torch.no_grad():
        return sum(float(model(batch)[-1]) for batch in batches) / sum(batch["count"] for batch in batches)


def parallel_paragraphs(recipe: Recipe, language: str) -> tuple[list[str], list[str]]:
    """Test paragraphs of `topic` in a language, and what they translate; each text once."""
    files = recipe.finetune.tasks[TASK].test
    own, original = (
        {record["id"]: record["text"] for record in read_json_lines(Path(files[one]))}
        for one in (language, recipe.languages.source)
    )
    translated = {original[name]: own[name] for name in own if name in original}
    chosen = list({text: of_source for of_source, text in translated.items()}.items())[:PARAGRAPHS]
    return [text for text, _ in chosen], [of_source for _, of_source in chosen]


def percent_found(recipe: Recipe, system: System, language: str) -> list[float]:
    """Percent of paragraphs whose translation is the nearest, mean of both directions, before and after step 2."""
    layout, source, scores = WorkdirLayout(recipe.workdir), recipe.languages.source, []
    texts, originals = parallel_paragraphs(recipe, language)
    pairs, folder = np.stack([np.arange(len(texts))] * 2, 1), layout.adapt(system, language)
    for pack in (snapshot_folder(folder, 0), folder / "pack"):
        packs = {source: layout.pretrain(system) / "pack", language: pack}
        embedder = Embedder(layout.pretrain(system) / "body", packs)
        own, original = (unit(embedder.embed(*asked)) for asked in ((texts, language), (originals, source)))
        directions = (partial(_similarity, own, original), partial(_similarity, original, own))
        scores.append(statistics.fmean(neighbour_accuracy(near, pairs, len(texts), len(texts)) for near in directions))
    return scores


def _similarity(vectors: np.ndarray, others: np.ndarray, rows: slice) -> np.ndarray:
    return vectors[rows] @ others.T


def show(recipe: Recipe) -> None:
    """Print the table of a run."""
    print("| system | language | loss | translations found before | after |\n|---|---|---|---|---|")
    for system in recipe.chosen_systems:
        for language in recipe.languages.targets:
            before, after = percent_found(recipe, system, language)
            nats = loss(recipe, system, language)
            print(f"| {name_of(system.name)} | {language} | {nats:.3f} | {before:.1f} | {after:.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="those that the run was started with")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as the study's runs, which may be going on beside it
    return exit_code(lambda: show(load_recipe(options.recipe, options.overrides)))


if __name__ == "__main__":
    sys.exit(main())
