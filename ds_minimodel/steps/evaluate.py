"""Step 4: plug each language's packs into each task model and score it on the language's test data.

All packs of a language are scored, from the unadapted one (step 0) to the last, for the training curves; the
source language is scored with its own pack.
"""

from functools import partial
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path

import torch

from ds_minimodel.common.files import atomic_folder, write_json, write_manifest
from ds_minimodel.common.progress import Progress
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.engine.ranks.world import World
from ds_minimodel.model.artifacts import load_body, load_pack, load_task_model, plug
from ds_minimodel.model.heads import TaskModel, to_tensors
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.recipe.jobs import Job, Layout
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.results.curves import Row
from ds_minimodel.results.run_results import SCORES_FILE
from ds_minimodel.steps.training import finetune_seeds, snapshot_folder, task_inputs
from ds_minimodel.systems import System
from ds_minimodel.tasks import KINDS
from ds_minimodel.tasks.batches import EVALUATION_TOKENS, Examples, evaluation_batches
from ds_minimodel.tasks.kind import Logits


def jobs(recipe: Recipe, layout: Layout) -> list[Job]:
    """Jobs that score each system on each task in each language (in workdirs of before, in several)."""
    found: list[Job] = []
    for system, (name, task) in product(recipe.chosen_systems, recipe.finetune.tasks.items()):
        tested = [language for language in recipe.languages.all if language in task.test]
        for folder, languages in layout.scores(system, name, tested).items():
            inputs = {
                "task": task_inputs(recipe, name, [task.test[language] for language in languages]),
                "languages": languages,
                "seeds": list(finetune_seeds(recipe)),
                **recipe.engine.recorded(),
            }
            targets = [language for language in languages if language != recipe.languages.source]
            parents = (
                *(layout.finetune(system, name, seed) for seed in finetune_seeds(recipe)),
                *(layout.adapt(system, language) for language in targets),
                *(layout.tokenizer(language) for language in languages),
            )
            make = partial(_evaluate, recipe, layout, system, name, languages, folder)
            found.append(Job(folder, inputs, parents, make))
    return found


def _evaluate(
    recipe: Recipe, layout: Layout, system: System, name: str, languages: list[str], out: Path, world: World
) -> None:
    def score() -> list[Row]:
        return [row for language in languages for row in _score_packs(recipe, layout, system, name, language, world)]

    rows = sorted(
        (row for part in world.gather(score) for row in part),
        key=lambda row: (row["language"], row["seed"], row["step"]),
    )

    def save() -> None:
        with atomic_folder(out) as folder:
            write_json(folder / SCORES_FILE, rows)
            write_manifest(folder, kind="scores")

    world.from_main(save)


def _score_packs(recipe: Recipe, layout: Layout, system: System, name: str, language: str, world: World) -> list[Row]:
    """Score rows of this replica's share of a language's packs under each task model."""
    task = recipe.finetune.tasks[name]
    kind, max_length = KINDS[task.kind], recipe.finetune.of(name, "max_length")
    packs = product(finetune_seeds(recipe), _packs(recipe, layout, system, language))
    share = list(packs)[world.data.rank :: world.data.size]
    dtype = DTYPES[resolve_precision(recipe.engine.precision, world.device)]
    progress = Progress(f"evaluate {system.name} {name} {language}", len(share), "scores", quiet=not world.is_main)
    tokenizer = open_tokenizer(layout.tokenizer(language))
    in_source = language == recipe.languages.source
    rows: list[Row] = []
    records = encoded = None
    for seed, of_seed in groupby(share, key=itemgetter(0)):
        model = load_body(layout.finetune(system, name, seed) / "model")
        labels = (model.task or {})["labels"]
        if encoded is None:
            records = kind.read(task.test[language], task, language, labels)
            encoded = kind.encode(tokenizer, records, task, max_length, model.config.separators)
        module = kind.module(model.config, tokenizer.vocab_size, labels)
        load_task_model(module, model, layout.finetune(system, name, seed) / "model")
        shard(module, world.tensor)
        module.eval().to(world.device, dtype)
        for _, (folder, step) in of_seed:
            pack = load_pack(folder, model.space, None if in_source else language, step)  # a base's is of any name
            plug(module, pack)
            rows.append(
                {
                    "system": system.name,
                    "task": name,
                    "language": language,
                    "seed": seed,
                    "step": 0 if in_source else pack.steps,
                    "eflops": 0.0 if in_source else pack.eflops,
                    **kind.score(task, language, records, encoded, _logits(module, encoded.examples)),
                }
            )
            progress.update(len(rows))
    progress.close()
    return rows if world.tensor.rank == 0 else []  # one of the ranks that scored them together


def _packs(recipe: Recipe, layout: Layout, system: System, language: str) -> list[tuple[Path, int | None]]:
    """(folder, step) of a language's packs, by rising step; None: that of the source, which was not adapted."""
    if language == recipe.languages.source:
        return [(layout.pretrain(system) / "pack", None)]
    folder = layout.adapt(system, language)
    *snapshots, last = recipe.adapt.snapshots()
    return [*((snapshot_folder(folder, step), step) for step in snapshots), (folder / "pack", last)]


@torch.inference_mode()
def _logits(module: TaskModel, examples: Examples) -> Logits:
    """Yield (index (B,), logits as an array) of batches of all `examples`."""
    device = next(module.parameters()).device
    for index, batch in evaluation_batches(examples, EVALUATION_TOKENS):
        yield index, module.logits(to_tensors(batch, device)).float().cpu().numpy()
