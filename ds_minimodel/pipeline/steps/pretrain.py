"""Step 1: pretrain each body with its heads on the source language -> body + source pack; or take
over a base.
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
    """A job of step 1. head_depths: numbers of layers after which its body has heads, all of them
    last.
    """

    section = "pretrain"
    model: BodyConfig
    name: str
    head_depths: tuple[int, ...]

    @classmethod
    def of_body(cls, recipe: Recipe, body: System) -> Self:
        """The part of a recipe that the pretraining of a system's body reads."""
        depths = recipe.body_of(body)[1]
        return cls.of(
            recipe,
            training=recipe.pretrain,
            model=recipe.body_config,
            name=body.name,
            head_depths=depths,
        )


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    layout = context.layout
    source = recipe.languages.source
    if recipe.base is not None:
        (body,) = recipe.bodies
        tokenizer = layout.tokenizer(source)
        taken_over = partial(
            refer, recipe.base, layout.model(body), source, tokenizer, recipe.pooling
        )
        make = lambda: context.world.broadcast_from_rank0(taken_over)
        inputs: dict[str, Any] = {"base": identity_of_base(recipe.base)}
        inputs |= {"pooling": recipe.pooling} if recipe.pooling else {}
        taken = [Job(layout.pretrain(body), inputs, (tokenizer,), make)]
        needs_targets = recipe.learns_from_pairs and (recipe.adapt.steps or recipe.builds_minis)
        languages = recipe.languages.targets if needs_targets else []
        return taken + [_targets(recipe, context, body, language) for language in languages]
    return [
        Job(
            layout.pretrain(body),
            (step := PretrainConfig.of_body(recipe, body)).recorded(),
            (layout.tokenizer(source), layout.tokens(source)),
            partial(_pretrain, context, step),
            finished_checkpoints(layout.pretrain(body)),
        )
        for body in recipe.bodies
    ]


def _targets(recipe: Recipe, context: Context, body: System, language: str) -> Job:
    """What the untouched model makes of the source sides of a language's lines."""
    layout = context.layout
    folder = context.layout.targets(language)
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
        materialise(module.requires_grad_(False), DTYPES[precision], world.device)
        load_into(module, artifact.tensors, "body.")
        load_into(module, pack.embeddings, "pack.")
        split_model(module, world.tensor)
        examples = examples_of(TokenStore(tokens / SOURCE), head.max_length)
        label = f"targets {language}"
        progress = Progress(label, len(examples), "lines", quiet=not world.is_main)
        write_targets(
            folder,
            examples,
            head.outputs(artifact.config.hidden_size),
            partial(outputs_of_examples, module.eval()),
            world,
            progress.update,
        )
        progress.close()

    inputs = {"precision": recipe.engine.precision}
    return Job(folder, inputs, (layout.pretrain(body), tokens, source), make)


def pretrained_model(step: PretrainConfig, vocab_size: int) -> Model:
    """The model of step 1 as it starts; all of its weights train."""
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
