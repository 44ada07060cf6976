"""Step 1: pretrain each body with its heads on the source language, or take over a base.

It makes a body and the source language's pack.
"""

from functools import partial
from typing import Any, Self

import torch

from ds_minimodel.artifacts.base import identity_of_base, refer
from ds_minimodel.artifacts.models import BodyArtifact, load_model, save_model, space_of
from ds_minimodel.common.progress import Progress
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import SYSTEMS, System
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.sentences import outputs_of_examples
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.flops import step_flops
from ds_minimodel.models.initialisation import zero_padding_row
from ds_minimodel.models.sentence import SentenceEncoder
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.models.trainable import Model, load_into, materialise, tensors_under
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.lines import SOURCE, examples_of, write_targets
from ds_minimodel.pipeline.records import Job
from ds_minimodel.pipeline.training import (
    TextStepConfig,
    finished_checkpoints,
    language_model,
    train_on_source,
)
from ds_minimodel.tokenizers.tokenizer import open_tokenizer


class PretrainConfig(TextStepConfig):
    """Settings of a job of step 1.

    Attributes:
        model: Of the body.
        name: Of the system whose body it is.
        head_depths: Counts of layers after which the body has heads; the last is that of all.
    """

    section = "pretrain"
    model: BodyConfig
    name: str
    head_depths: tuple[int, ...]

    @classmethod
    def of_body(cls, recipe: Recipe, body: System) -> Self:
        """Return the part of a recipe that the pretraining of a system's body reads."""
        depths = recipe.body_of(body)[1]
        return cls.of(
            recipe,
            training=recipe.pretrain,
            model=recipe.body_config,
            name=body.name,
            head_depths=depths,
        )


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Return jobs that pretrain a body each, or the one that takes over the base.

    Where step 2 learns from pairs, there is also one a target language that has the base compute
    what it learns toward.
    """
    if recipe.base is not None:
        (body,) = recipe.bodies
        listed = [_taking_over(recipe, context, recipe.base, body)]
        if recipe.learns_from_pairs and (recipe.adapt.steps or recipe.builds_minis):
            listed += [
                _targets(recipe, context, body, language) for language in recipe.languages.targets
            ]
        return listed
    return [_pretraining(recipe, context, body) for body in recipe.bodies]


def _pretraining(recipe: Recipe, context: Context, body: System) -> Job:
    layout = context.layout
    source = recipe.languages.source
    step = PretrainConfig.of_body(recipe, body)
    return Job(
        folder=layout.pretrain(body),
        inputs=step.recorded(),
        parents=(layout.tokenizer(source), layout.tokens(source)),
        make=partial(_pretrain, context, step),
        clean_up=finished_checkpoints(layout.pretrain(body)),
    )


def _taking_over(recipe: Recipe, context: Context, base: str, body: System) -> Job:
    """Return the job that writes a reference to the base."""
    layout = context.layout
    source = recipe.languages.source
    tokenizer = layout.tokenizer(source)
    take_over = partial(
        refer,
        base,
        layout.model(body),
        language=source,
        tokenizer=tokenizer,
        pooling=recipe.pooling,
    )
    inputs: dict[str, Any] = {"base": identity_of_base(base)}
    if recipe.pooling:
        inputs["pooling"] = recipe.pooling

    def make() -> None:
        context.world.broadcast_from_rank0(take_over)

    return Job(layout.pretrain(body), inputs, (tokenizer,), make)


def _targets(recipe: Recipe, context: Context, body: System, language: str) -> Job:
    """Return the job that keeps what the untouched model makes of the source sides of lines."""
    layout = context.layout
    folder = layout.targets(language)
    tokens = layout.tokens(language)
    source = layout.tokenizer(recipe.languages.source)
    head = recipe.body_config.head
    assert head is not None

    def make() -> None:
        world = context.world
        artifact, pack = load_model(layout.model(body))
        with torch.device("meta"):
            module = SentenceEncoder(artifact.config, pack.rows, artifact.head_depths)
        precision = resolve_precision(recipe.engine.precision, world.device)
        module.requires_grad_(requires_grad=False)
        materialise(module, DTYPES[precision], world.device)
        load_into(module, artifact.tensors, "body.")
        load_into(module, pack.embeddings, "pack.")
        split_model(module, world.tensor)
        examples = examples_of(TokenStore(tokens / SOURCE), head.max_length)
        progress = Progress(f"targets {language}", len(examples), "lines", quiet=not world.is_main)
        write_targets(
            folder,
            examples,
            size=head.outputs(artifact.config.hidden_size),
            outputs=partial(outputs_of_examples, module.eval()),
            world=world,
            progress=progress.update,
        )
        progress.close()

    inputs = {"precision": recipe.engine.precision}
    return Job(folder, inputs, (layout.pretrain(body), tokens, source), make)


def pretrained_model(step: PretrainConfig, vocab_size: int) -> Model:
    """Return the model of step 1 as it starts; all of its weights train."""
    depths = step.head_depths
    return language_model(step.engine, step.model.with_layers(depths[-1]), depths, vocab_size)


def _pretrain(context: Context, step: PretrainConfig) -> None:
    layout = context.layout
    source = step.source
    body = SYSTEMS[step.name]
    folder = layout.pretrain(body)
    vocabulary = open_tokenizer(layout.tokenizer(source)).vocabulary
    torch.manual_seed(step.seed)
    module = pretrained_model(step, vocabulary.size)
    zero_padding_row(module.pack.tokens, vocabulary)
    config = module.body.config
    depths = module.body.head_depths
    cost = step_flops("pretrain", step.work(step.model, vocabulary.size), depths)
    weights, run = train_on_source(context, step, module, cost, folder, f"pretrain {body.name}")

    def save() -> None:
        body_tensors = tensors_under(weights, "body.")
        pack_tensors = tensors_under(weights, "pack.")
        space = space_of(body_tensors, pack_tensors)
        steps = run.schedule.steps
        eflops = run.accounting.eflops_until(steps)
        trained = BodyArtifact(config, depths, body_tensors, space, objective=step.objective)
        pack = trained.adaptation(source, pack_tensors, steps=steps, eflops=eflops)
        save_model(layout.model(body), trained, pack, layout.tokenizer(source))

    context.world.broadcast_from_rank0(save)
