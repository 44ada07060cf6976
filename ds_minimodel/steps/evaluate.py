"""Step 4: plug each language's packs into each task model and score it on the language's test data.

All packs of a language are scored, from the unadapted one (step 0) to the last, for the training curves; the
source language is scored with its own pack. A kind of task that is not finetuned is scored with the body of step 1.
Beside a base's packs stand the scores of the base as it came, and of an added language what its pack takes of the
source's texts.
"""

from collections.abc import Callable
from functools import partial
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ds_minimodel.artifacts.adaptation import check_space, load_adaptation, plug, whole
from ds_minimodel.artifacts.mini import tensors_of
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact, load_body, load_model, load_task_model
from ds_minimodel.common.files import atomic_folder, write_json, write_manifest
from ds_minimodel.common.progress import Progress
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.jobs.records import Job
from ds_minimodel.models.split import split_model
from ds_minimodel.models.trainable import TaskModel, load_into, materialise
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.report.curves import OF_SOURCE, ON_SOURCE, SCORES_FILE, Row
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import seeds_of_task, snapshot_folder, task_inputs
from ds_minimodel.tasks import KINDS
from ds_minimodel.tasks.batches import outputs
from ds_minimodel.tasks.kind import Encoded, Logits, Scores, TaskConfig


def jobs(context: Context) -> list[Job]:
    """Jobs that score a system on a task in a language with the task model of a seed, in the source's a body once."""
    recipe, layout = context.recipe, context.layout
    listed: list[Job] = []
    source = recipe.languages.source
    for system, (name, task) in product(recipe.chosen_systems, recipe.finetune.tasks.items()):
        of_source = (layout.pretrain(system), layout.tokenizer(source)) if _asks_source(recipe, task) else ()
        for language, seed in product(recipe.languages_of_task(name), seeds_of_task(recipe, name)):
            scored = recipe.scored_as(system, language)
            folder = layout.evaluate(scored, language, name, seed)
            if any(job.folder == folder for job in listed):
                continue
            inputs = {
                "task": task_inputs(recipe, name, [task.test[language], *_on_source(recipe, task, language)]),
                "language": language,
                "seed": seed,
                **({"strength": recipe.strength_of(system)} if recipe.strength_of(system) != 1 else {}),
                **recipe.engine.recorded(),
            }
            parents = (
                _model(context, system, name, seed).parent,
                *([] if language == source else [layout.adapt(system, language)]),
                layout.tokenizer(language),
                *of_source,
            )
            make = partial(_evaluate, context, scored, name, language, seed, folder)
            listed.append(Job(folder, inputs, parents, make))
    return listed


def _asks_source(recipe: Recipe, task: TaskConfig) -> bool:
    """Whether the texts of a target language are scored with the source's pack, too."""
    return recipe.base is not None or bool(KINDS[task.kind].objective)


def _on_source(recipe: Recipe, task: TaskConfig, language: str) -> list[str]:
    """The source's test file where a language that is added to its vocabulary is scored on it, else nothing."""
    source = recipe.languages.source
    is_asked = recipe.kept_rows and KINDS[task.kind].objective and language != source
    return [task.test[source]] if is_asked and source in task.test else []


def _model(context: Context, system: System, name: str, seed: int) -> Path:
    """Folder of what a task is scored with: a task model, or the body where it is not finetuned."""
    if name in context.recipe.finetune.finetuned_tasks:
        return context.layout.finetune(system, name, seed) / "model"
    return context.layout.model(system)


def _evaluate(context: Context, system: System, name: str, language: str, seed: int, out: Path) -> None:
    recipe, world = context.recipe, context.world
    gathered = world.gather(partial(_score_packs, context, system, name, language, seed))
    rows = sorted((row for scored in gathered for row in scored), key=itemgetter("step"))
    task = recipe.finetune.tasks[name]
    metric = KINDS[task.kind].metric(task)

    def save() -> None:
        with atomic_folder(out) as folder:
            write_json(folder / SCORES_FILE, rows)
            write_manifest(folder, kind="scores", metric=metric)

    world.from_main(save)


def _score_packs(context: Context, system: System, name: str, language: str, seed: int) -> list[Row]:
    """Score rows of this replica's share of a language's packs under a task's model."""
    recipe, layout, world = context.recipe, context.layout, context.world
    packs = _packs(context, system, language)
    own = packs[world.data.rank :: world.data.size]
    if not own:
        return []
    of_job = f"evaluate {system.name} {language} {name} seed {seed}"
    progress = Progress(of_job, len(own), "scores", quiet=not world.is_main)
    task, model_folder = recipe.finetune.tasks[name], _model(context, system, name, seed)
    kind, max_length = KINDS[task.kind], recipe.finetune.of(name, "max_length")
    tokenizer, model = open_tokenizer(layout.tokenizer(language)), load_body(model_folder)
    module_of = partial(_module, context, task, model_folder, model)
    records = kind.read(task.test[language], task, language, (model.task or {}).get("labels"))
    _, source = load_model(layout.model(system))
    check_space(model_folder, source.space, model.space)
    of_source = partial(_in_source_language, context, name, module_of, source)
    encode = partial(kind.encode, tokenizer, task=task, max_length=max_length, separators=model.config.separators)
    encoded = encode(records)
    in_source = language == recipe.languages.source
    untouched: Scores = {}
    if _asks_source(recipe, task) and not in_source:
        untouched = _named(OF_SOURCE, kind.score(task, language, records, *of_source(records)))
    module = module_of(recipe.source_vocab_size if in_source else tokenizer.vocabulary.size)
    rows: list[Row] = []
    for (folder, steps), places in groupby(own, itemgetter(0, 1)):
        pack = source if folder is None else whole(load_adaptation(folder, model.space, language, steps), source)
        plug(module, pack, model, recipe.strength_of(system))
        logits = outputs(module, encoded.examples)
        row = {
            "system": system.name,
            "task": name,
            "language": language,
            "seed": seed,
            "step": 0,
            "eflops": 0.0 if in_source else pack.eflops,
            **kind.score(task, language, records, encoded, logits),
            **untouched,
        }
        rows += [{**row, "step": step} for _, _, step in places]
        if rows[-1]["step"] == recipe.adapt.steps:
            for path in _on_source(recipe, task, language):
                theirs = kind.read(path, task, recipe.languages.source, None)
                again = encode(theirs)
                score = kind.score(task, recipe.languages.source, theirs, again, outputs(module, again.examples))
                tokens = again.examples.tokens
                sizes = np.array(tokenizer.num_bytes())[tokens]
                score["cut"] = 100 * float(sizes[tokens >= recipe.kept_rows].sum() / sizes.sum())
                rows[-1] = {**rows[-1], **_named(ON_SOURCE, score)}
        progress.update(len(rows))
    progress.close()
    return rows if world.tensor.rank == 0 else []  # one of the ranks that scored them together


def _named(prefix: str, scores: Scores) -> Scores:
    return {prefix + name: value for name, value in scores.items()}


def _module(context: Context, task: TaskConfig, folder: Path, model: BodyArtifact, vocab_size: int) -> TaskModel:
    """This rank's part of the task model or body in `folder`, all but the pack, ready to be scored."""
    kind, world = KINDS[task.kind], context.world
    if model.task is not None:
        module = _empty(context, kind.module, model.config, vocab_size, model.task["labels"])
        load_task_model(module, model, folder)
    else:
        module = _empty(context, kind.module, model.config, vocab_size, None)
        load_into(module, tensors_of(model, module.body), "body.")
    split_model(module, world.tensor)
    return module.eval()


def _empty(context: Context, make: Callable[..., TaskModel], *arguments: Any) -> TaskModel:
    """A module on this rank's device whose weights are to be put in, frozen, of the run's precision."""
    device = context.world.device
    with torch.device("meta"):
        module = make(*arguments).requires_grad_(False)
    materialise(module, DTYPES[resolve_precision(context.recipe.engine.precision, device)], device)
    return module


def _in_source_language(
    context: Context, name: str, module_of: Callable[[int], TaskModel], pack: Adaptation, records: Any
) -> tuple[Encoded, Logits]:
    """Records of a task as sequences in the source language's vocabulary, and the outputs for them with its `pack`.

    module_of: by the rows of a pack.
    """
    recipe, layout = context.recipe, context.layout
    task, source = recipe.finetune.tasks[name], recipe.languages.source
    tokenizer = open_tokenizer(layout.tokenizer(source))
    module, max_length = module_of(recipe.source_vocab_size), recipe.finetune.of(name, "max_length")
    encoded = KINDS[task.kind].encode(tokenizer, records, task, max_length, module.body.config.separators)
    plug(module, pack)
    return encoded, outputs(module, encoded.examples)


def _packs(context: Context, system: System, language: str) -> list[tuple[Path | None, int | None, int]]:
    """(folder, its updates, step) of a language's packs, by rising step; None: the source's, of the model itself."""
    recipe, layout = context.recipe, context.layout
    if language == recipe.languages.source:
        return [(None, None, 0)]
    folder, steps = layout.adapt(system, language), recipe.adapt.snapshots()
    return [(folder / "pack" if step == steps[-1] else snapshot_folder(folder, step), step, step) for step in steps]
