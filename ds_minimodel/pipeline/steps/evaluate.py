"""Step 4: plug each language's packs into each task model and score it on the language's test data.

All packs of a language are scored, from the unadapted one (step 0) to the last, for the training
curves; the source language is scored with its own pack. A kind of task that is not finetuned is
scored with the body of step 1. With a base, each target text is scored with the untouched base,
too, and the last pack of an added language also on the source's texts.
"""

from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from ds_minimodel.artifacts.adaptation import check_space, load_adaptation, plug, whole
from ds_minimodel.artifacts.mini import tensors_of
from ds_minimodel.artifacts.models import BodyArtifact, load_body, load_model, load_task_model
from ds_minimodel.common.config import DECIDES_NOTHING, Section, Seed
from ds_minimodel.common.files import atomic_folder, write_json, write_manifest
from ds_minimodel.common.names import Name
from ds_minimodel.common.progress import Progress
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import System
from ds_minimodel.evaluation import KINDS
from ds_minimodel.evaluation.batches import outputs
from ds_minimodel.evaluation.kind import FinetunedConfig, Scores, TaskConfig, TaskKind
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.models.trainable import TaskModel, load_into, materialise
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.records import Job
from ds_minimodel.pipeline.training import seeds_of_task, snapshot_folder
from ds_minimodel.report.curves import OF_SOURCE, ON_SOURCE, SCORES_FILE, Row
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.training.world import World


class EvaluateConfig(Section):
    """A job of step 4: a system's scores on a task in a language with the task model of a seed.

    precision: of the engine. strength: merge strength. name: of the task. task: with the defaults
    of `finetune` filled in, and only the test files that are read: the language's, and the source's
    where an added language is scored on it. beside_source: whether the texts are scored with the
    source's pack, too. snapshots: steps after which there are packs.
    """

    source: Annotated[Name, DECIDES_NOTHING]
    seed: Seed
    precision: str
    strength: float
    language: Name
    name: Annotated[str, DECIDES_NOTHING]
    task: TaskConfig
    beside_source: bool
    snapshots: Annotated[list[int], DECIDES_NOTHING]  # those of the job that made the packs

    @property
    def kind(self) -> TaskKind:
        """Of the task."""
        return KINDS[self.task.kind]

    @property
    def in_source(self) -> bool:
        return self.language == self.source

    @property
    def max_length(self) -> int:
        """Of the resolved task."""
        assert self.task.max_length is not None
        return self.task.max_length


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Jobs that score a system on a task in a language with the task model of a seed, in the
    source's a body once.
    """
    layout = context.layout
    source = recipe.languages.source
    listed: dict[Path, Job] = {}
    for system, name in product(recipe.chosen_systems, recipe.finetune.tasks):
        for language, seed in product(recipe.languages_of_task(name), seeds_of_task(recipe, name)):
            scored = recipe.scored_as(system, language)
            step = _config_of(recipe, scored, name, language, seed)
            folder = layout.evaluate(scored, language, name, seed)
            parents = [
                _model(layout, step, system).parent,
                *([] if step.in_source else [layout.adapt(system, language)]),
                layout.tokenizer(language),
                *(
                    (layout.pretrain(system), layout.tokenizer(source))
                    if step.beside_source
                    else ()
                ),
            ]
            make = partial(_evaluate, context, step, scored, folder)
            listed.setdefault(folder, Job(folder, step.recorded(), parents, make))
    return [*listed.values()]


def _config_of(
    recipe: Recipe, system: System, name: str, language: str, seed: int
) -> EvaluateConfig:
    task = recipe.finetune.task(name)
    source = recipe.languages.source
    adapt = recipe.adapt.of(system)
    read = {language, source} if recipe.num_base and KINDS[task.kind].objective else {language}
    of_training = FinetunedConfig.model_fields.keys() - TaskConfig.model_fields.keys()
    unread = dict.fromkeys(of_training & type(task).model_fields.keys())
    task = task.model_copy(
        update={"test": {key: task.test[key] for key in task.test if key in read}, **unread}
    )
    return EvaluateConfig(
        source=source,
        seed=seed,
        precision=recipe.engine.precision,
        strength=adapt.strength,
        language=language,
        name=name,
        task=task,
        beside_source=language != source and recipe.base is not None,
        snapshots=adapt.snapshots(),
    )


def _model(layout: WorkdirLayout, step: EvaluateConfig, system: System) -> Path:
    """Folder of what a task is scored with: a task model, or the body where it is not finetuned."""
    is_finetuned = isinstance(step.task, FinetunedConfig)
    return (
        layout.finetune(system, step.name, step.seed) / "model"
        if is_finetuned
        else layout.model(system)
    )


def _evaluate(context: Context, step: EvaluateConfig, system: System, out: Path) -> None:
    world = context.world
    gathered = world.all_gather_object(partial(_score_packs, context, step, system))
    rows = sorted((row for scored in gathered for row in scored), key=itemgetter("step"))
    metric = step.kind.metric(step.task)

    def save() -> None:
        with atomic_folder(out) as folder:
            write_json(folder / SCORES_FILE, rows)
            write_manifest(folder, kind="scores", metric=metric)

    world.broadcast_from_rank0(save)


def _score_packs(context: Context, step: EvaluateConfig, system: System) -> list[Row]:
    """Score rows of this replica's share of a language's packs under a task's model."""
    layout = context.layout
    world = context.world
    language = step.language
    task = step.task
    kind = step.kind
    packs = _packs(layout, step, system)
    packs_of_rank = packs[world.data.rank :: world.data.size]
    if not packs_of_rank:
        return []
    of_job = f"evaluate {system.name} {language} {step.name} seed {step.seed}"
    progress = Progress(of_job, len(packs_of_rank), "scores", quiet=not world.is_main)
    model_folder = _model(layout, step, system)
    tokenizer = open_tokenizer(layout.tokenizer(language))
    model = load_body(model_folder)
    module_of = partial(_module, context.world, step, model_folder, model)
    records = kind.read(task.test[language], task, language, (model.task or {}).get("labels"))
    _, source = load_model(layout.model(system))
    check_space(model_folder, source.space, model.space)
    encode = partial(
        kind.encode, task=task, max_length=step.max_length, separators=model.config.separators
    )
    encoded = encode(tokenizer, records)
    untouched: Scores = {}
    if step.beside_source:
        of_source = open_tokenizer(layout.tokenizer(step.source))
        module = module_of(source.rows)
        cut = encode(of_source, records)
        plug(module, source)
        untouched = _named(
            OF_SOURCE, kind.score(task, language, records, cut, outputs(module, cut.examples))
        )
    module = module_of(source.rows if step.in_source else tokenizer.vocabulary.size)
    rows: list[Row] = []
    for folder, number in packs_of_rank:
        pack = (
            source
            if folder is None
            else whole(load_adaptation(folder, model.space, language, number), source)
        )
        plug(module, pack, model, step.strength)
        logits = outputs(module, encoded.examples)
        row = {
            "system": system.name,
            "task": step.name,
            "language": language,
            "seed": step.seed,
            "step": number,
            "eflops": 0.0 if step.in_source else pack.eflops,
            **kind.score(task, language, records, encoded, logits),
            **untouched,
        }
        if not step.in_source and step.source in task.test and number == step.snapshots[-1]:
            theirs = kind.read(task.test[step.source], task, step.source, None)
            again = encode(tokenizer, theirs)
            score = kind.score(task, step.source, theirs, again, outputs(module, again.examples))
            tokens = again.examples.tokens
            sizes = np.array(tokenizer.num_bytes())[tokens]
            score["cut"] = 100 * float(
                sizes[tokens >= tokenizer.vocabulary.num_base].sum() / sizes.sum()
            )
            row |= _named(ON_SOURCE, score)
        rows.append(row)
        progress.update(len(rows))
    progress.close()
    return rows if world.tensor.rank == 0 else []  # one of the ranks that scored them together


def _named(prefix: str, scores: Scores) -> Scores:
    return {prefix + name: value for name, value in scores.items()}


def _module(
    world: World, step: EvaluateConfig, folder: Path, model: BodyArtifact, vocab_size: int
) -> TaskModel:
    """This rank's part of the task model or body in `folder`, all but the pack, ready to be
    scored.
    """
    labels = None if model.task is None else model.task["labels"]
    with torch.device("meta"):
        module = step.kind.module(model.config, vocab_size, labels).requires_grad_(False)
    materialise(module, DTYPES[resolve_precision(step.precision, world.device)], world.device)
    if model.task is None:
        load_into(module, tensors_of(model, module.body), "body.")
    else:
        load_task_model(module, model, folder)
    split_model(module, world.tensor)
    return module.eval()


def _packs(
    layout: WorkdirLayout, step: EvaluateConfig, system: System
) -> list[tuple[Path | None, int]]:
    """(folder, step) of a language's packs, by rising step; None: the source's, of the model
    itself.
    """
    if step.in_source:
        return [(None, 0)]
    folder = layout.adapt(system, step.language)
    steps = step.snapshots
    return [
        (folder / "pack" if one == steps[-1] else snapshot_folder(folder, one), one)
        for one in steps
    ]
