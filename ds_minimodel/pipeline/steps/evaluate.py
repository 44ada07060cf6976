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
    """Settings of a job of step 4.

    It scores a system on a task in a language with the task model of a seed.

    Attributes:
        source: Source language.
        seed: Of the task model.
        precision: Of the engine.
        strength: Merge strength.
        language: That is scored.
        name: Of the task.
        task: With the defaults of `finetune` filled in, and only the test files that are read: the
            language's, and the source's where an added language is scored on it.
        beside_source: Whether the texts are scored with the source's pack, too.
        snapshots: Steps after which there are packs. The job that made the packs records them.
    """

    source: Annotated[Name, DECIDES_NOTHING]
    seed: Seed
    precision: str
    strength: float
    language: Name
    name: Annotated[str, DECIDES_NOTHING]
    task: TaskConfig
    beside_source: bool
    snapshots: Annotated[list[int], DECIDES_NOTHING]

    @property
    def kind(self) -> TaskKind:
        """Kind of the task."""
        return KINDS[self.task.kind]

    @property
    def in_source(self) -> bool:
        """Whether the language is the source's."""
        return self.language == self.source

    @property
    def max_length(self) -> int:
        """Most tokens of an example."""
        assert self.task.max_length is not None
        return self.task.max_length


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Return jobs that score a system on a task in a language with the task model of a seed.

    In the source language systems with the same body share a job.
    """
    layout = context.layout
    source = recipe.languages.source
    listed: dict[Path, Job] = {}
    for system, name in product(recipe.chosen_systems, recipe.finetune.tasks):
        for language, seed in product(recipe.languages_of_task(name), seeds_of_task(recipe, name)):
            scored = recipe.scored_as(system, language)
            step = _config_of(recipe, scored, name, language, seed)
            folder = layout.evaluate(scored, language, name, seed)
            parents = [_model(layout, step, system).parent, layout.tokenizer(language)]
            if not step.in_source:
                parents.append(layout.adapt(system, language))
            if step.beside_source:
                parents += [layout.pretrain(system), layout.tokenizer(source)]
            make = partial(_evaluate, context, step, scored, folder)
            listed.setdefault(folder, Job(folder, step.recorded(), parents, make))
    return list(listed.values())


def _config_of(
    recipe: Recipe, system: System, name: str, language: str, seed: int
) -> EvaluateConfig:
    task = recipe.finetune.task(name)
    source = recipe.languages.source
    adapt = recipe.adapt.of(system)
    read = {language}
    if recipe.num_base and KINDS[task.kind].objective:
        read.add(source)
    # What only a finetuning reads is emptied, so that it is not in the record.
    of_training = FinetunedConfig.model_fields.keys() - TaskConfig.model_fields.keys()
    unread = dict.fromkeys(of_training & type(task).model_fields.keys())
    test = {key: file for key, file in task.test.items() if key in read}
    task = task.model_copy(update={"test": test, **unread})
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
    """Return the folder of the task model, or of the body where the task is not finetuned."""
    if isinstance(step.task, FinetunedConfig):
        return layout.finetune(system, step.name, step.seed) / "model"
    return layout.model(system)


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
    """Return score rows of this replica's share of a language's packs under a task's model."""
    layout = context.layout
    world = context.world
    language = step.language
    task = step.task
    kind = step.kind
    packs = _packs(layout, step, system)
    packs_of_rank = packs[world.data.rank :: world.data.size]
    if not packs_of_rank:
        return []
    label = f"evaluate {system.name} {language} {step.name} seed {step.seed}"
    progress = Progress(label, len(packs_of_rank), "scores", quiet=not world.is_main)
    model_folder = _model(layout, step, system)
    tokenizer = open_tokenizer(layout.tokenizer(language))
    model = load_body(model_folder)
    module_of = partial(_module, world, step, model_folder, model)
    labels = (model.task or {}).get("labels")
    records = kind.read(task.test[language], task, language, labels)
    _, source = load_model(layout.model(system))
    check_space(model_folder, source.space, model.space)
    encode = partial(
        kind.encode, task=task, max_length=step.max_length, separators=model.config.separators
    )
    untouched: Scores = {}
    if step.beside_source:
        source_tokenizer = open_tokenizer(layout.tokenizer(step.source))
        module = module_of(source.rows)
        encoded = encode(source_tokenizer, records)
        plug(module, source)
        logits = outputs(module, encoded.examples)
        untouched = _named(OF_SOURCE, kind.score(task, language, records, encoded, logits))
    module = module_of(source.rows if step.in_source else tokenizer.vocabulary.size)
    encoded = encode(tokenizer, records)
    rows: list[Row] = []
    for folder, pack_step in packs_of_rank:
        if folder is None:
            pack = source
        else:
            pack = whole(load_adaptation(folder, model.space, language, pack_step), source)
        plug(module, pack, model, step.strength)
        logits = outputs(module, encoded.examples)
        row = {
            "system": system.name,
            "task": step.name,
            "language": language,
            "seed": step.seed,
            "step": pack_step,
            "eflops": 0.0 if step.in_source else pack.eflops,
            **kind.score(task, language, records, encoded, logits),
            **untouched,
        }
        if not step.in_source and step.source in task.test and pack_step == step.snapshots[-1]:
            # The source's text, as the model with the added language cuts and predicts it.
            source_records = kind.read(task.test[step.source], task, step.source, None)
            source_encoded = encode(tokenizer, source_records)
            examples = source_encoded.examples
            logits = outputs(module, examples)
            scores = kind.score(task, step.source, source_records, source_encoded, logits)
            num_bytes = np.array(tokenizer.num_bytes())[examples.tokens]
            is_new = examples.tokens >= tokenizer.vocabulary.num_base
            scores["cut"] = 100 * float(num_bytes[is_new].sum() / num_bytes.sum())
            row |= _named(ON_SOURCE, scores)
        rows.append(row)
        progress.update(len(rows))
    progress.close()
    # The ranks of a replica have scored them together, and one of them gives them.
    return rows if world.tensor.rank == 0 else []


def _named(prefix: str, scores: Scores) -> Scores:
    return {prefix + name: value for name, value in scores.items()}


def _module(
    world: World, step: EvaluateConfig, folder: Path, model: BodyArtifact, vocab_size: int
) -> TaskModel:
    """Return this rank's part of the task model or body in `folder`, all but the pack."""
    labels = None if model.task is None else model.task["labels"]
    with torch.device("meta"):
        module = step.kind.module(model.config, vocab_size, labels)
    module.requires_grad_(requires_grad=False)
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
    """Return (folder, step) of a language's packs, by rising step.

    The folder of the source's pack is None: the model itself has it.
    """
    if step.in_source:
        return [(None, 0)]
    folder = layout.adapt(system, step.language)
    steps = step.snapshots
    return [
        (folder / "pack" if snapshot == steps[-1] else snapshot_folder(folder, snapshot), snapshot)
        for snapshot in steps
    ]
