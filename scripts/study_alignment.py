#!/usr/bin/env python3
"""Whether the packs of the study's runs speak their language, and how near to English they lie, as Markdown.

    python scripts/study_alignment.py runs/study/seed-1 runs/study/seed-11 > benchmarks/study/alignment.md

Two tables over the whole body with a pack plugged in, for each system and target language of finished runs. The loss is
that of masked-language modelling, by the body's top head, on samples that follow those of the training. Translations
are the paragraphs of the test files of `topic`, which are parallel: how many have their own translation as the nearest
English one, and English ones theirs (kind of task `retrieval`), before step 2 and after it.
"""

import argparse
import json
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
from ds_minimodel.data.blocks import BlockTable
from ds_minimodel.data.mlm import MlmSampler
from ds_minimodel.data.store import TokenStore
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.model.heads import to_tensors
from ds_minimodel.recipe.jobs import Layout
from ds_minimodel.results.render import Cell, Table, to_markdown
from ds_minimodel.results.run_results import read_run_results
from ds_minimodel.results.units import name_of
from ds_minimodel.steps.training import snapshot_folder
from ds_minimodel.systems import System
from ds_minimodel.tasks.metrics import neighbour_accuracy

BATCHES, PARAGRAPHS = 12, 1000


def loss(recipe: Recipe, layout: Layout, system: System, language: str) -> float:
    """Nats a masked token of the body's top head, with the pack of step 2 plugged in."""
    body = load_body(layout.pretrain(system) / "body")
    model = plugged_module(body, load_pack(layout.adapt(system, language) / "pack", body.space))
    section, store = (
        recipe.adapt,
        TokenStore(layout.tokens(language), open_tokenizer(layout.tokenizer(language)).sha256),
    )
    table = BlockTable(store, recipe.data.blocks, section.seq_length)
    sampler = MlmSampler(store, table, section.mask_prob, recipe.seed)
    starts = range(
        section.steps * section.batch_size, (section.steps + BATCHES) * section.batch_size, section.batch_size
    )
    batches = [to_tensors(sampler.rows(start, start + section.batch_size)) for start in starts]
    with torch.no_grad():
        return sum(float(model(batch)[-1]) for batch in batches) / sum(batch["count"] for batch in batches)


def parallel_paragraphs(recipe: Recipe, language: str) -> tuple[list[str], list[str]]:
    """Test paragraphs of `topic` in a language, and what they translate; each text once."""
    texts = []
    for one in (language, recipe.languages.source):
        with open(recipe.finetune.tasks["topic"].test[one], encoding="utf-8") as file:
            texts.append({record["id"]: record["text"] for record in map(json.loads, file)})
    own, of_source = texts
    pairs = {of_source[name]: own[name] for name in own if name in of_source}
    chosen = list({text: original for original, text in pairs.items()}.items())[:PARAGRAPHS]
    return [text for text, _ in chosen], [original for _, original in chosen]


def found(recipe: Recipe, layout: Layout, system: System, language: str) -> list[float]:
    """Percent of paragraphs whose translation is the nearest, mean of both directions, before and after step 2."""
    source, folder, scores = recipe.languages.source, layout.adapt(system, language), []
    texts, originals = parallel_paragraphs(recipe, language)
    pairs = np.stack([np.arange(len(texts))] * 2, 1)
    for pack in (snapshot_folder(folder, 0), folder / "pack"):
        packs = {source: layout.pretrain(system) / "pack", language: pack}
        embedder = Embedder(layout.pretrain(system) / "body", packs)
        own, original = (
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            for vectors in (embedder.embed(texts, language), embedder.embed(originals, source))
        )
        both = (partial(_near, own, original), partial(_near, original, own))
        scores.append(statistics.fmean(neighbour_accuracy(near, pairs, len(texts), len(texts)) for near in both))
    return scores


def _near(vectors: np.ndarray, others: np.ndarray, rows: slice) -> np.ndarray:
    return vectors[rows] @ others.T


def tables(workdirs: Sequence[Path]) -> list[Table]:
    """The two tables; UserError for a run that is not finished."""
    losses, translations, languages = [], [], []
    for workdir in workdirs:
        recipe = Recipe.model_validate(read_run_results(workdir, workdir.name).recipe)
        layout, languages = Layout(workdir), recipe.languages.targets
        for system in recipe.chosen_systems:
            print(f"{workdir.name} {system.name}", file=sys.stderr)
            first = [Cell(workdir.name), Cell(name_of(system.name))]
            losses.append([*first, *(Cell(f"{loss(recipe, layout, system, one):.3f}") for one in languages)])
            cells = (found(recipe, layout, system, one) for one in languages)
            translations.append([*first, *(Cell(f"{before:.1f} → {after:.1f}") for before, after in cells)])
    columns = ["run", "system", *languages]
    return [
        Table("Loss of the whole body after step 2", columns, losses, notes=["Nats a masked token."]),
        Table("Translations found before and after step 2, percent", columns, translations),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="WORKDIR", help="finished runs with the same languages")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        print(to_markdown("Language and alignment of the study's packs", tables(options.runs)), end="")
    except (UserError, OSError) as error:  # an OSError names the file
        print(f"ds-minimodel: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
