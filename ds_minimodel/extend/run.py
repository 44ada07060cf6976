"""`extend`, from the call to the folder: a language is added to somebody's model.

This file tells it from top to bottom. Most models learn from text; a finished encoder, which gives
vectors or labels, learns from pairs (encoder.py). What is chosen here stands in the recipe that is
left, and the recipe is what runs.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from ds_minimodel.artifacts.base import check_base, shared_modules
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock
from ds_minimodel.common.names import LANGUAGE_CODE
from ds_minimodel.config.base import read_base
from ds_minimodel.config.reading import load_recipe, recipe_of_values
from ds_minimodel.extend import looking
from ds_minimodel.extend.call import Call, TrainingBudget
from ds_minimodel.extend.config import ExtendConfig
from ds_minimodel.extend.encoder import extend_encoder
from ds_minimodel.extend.length import set_length
from ds_minimodel.extend.recipe import (
    MAX_PASSES,
    RECIPE_NAME,
    check_options,
    count_ranks,
    first_values,
    guess_tokens,
    set_sizes,
)
from ds_minimodel.extend.strength import choose_strength, look_before
from ds_minimodel.extend.vocabulary_size import choose_vocabulary_size
from ds_minimodel.extend.written import write_finished_again, write_models
from ds_minimodel.launch.hosts import name_the_cpu
from ds_minimodel.models.heads import SentenceHead
from ds_minimodel.pipeline.dialogues import check_chats
from ds_minimodel.pipeline.layout import ADAPT, LOCK
from ds_minimodel.pipeline.memory import device_here
from ds_minimodel.pipeline.plan import fit
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step_here
from ds_minimodel.pipeline.steps.corpus import write_tests
from ds_minimodel.text.chats import read_dialogues
from ds_minimodel.text.reader import find_text, read_documents
from ds_minimodel.tokenizers.guard import unguarded


def extend(config: ExtendConfig, say: Callable[[str], None] = print) -> Path:
    """Add a language to a model, and return the folder that `from_pretrained` reads, OUT/model.

    OUT gets the recipe, its workdir run/ with the page run/report/report.html, model/, and with a
    LoRA adapter/ for PEFT. The same call goes on where one was interrupted; with more hours or
    tokens it trains longer. Any other call in the same folder is refused.

    Args:
        config: What the call asks for.
        say: Called with each line that is said on the way.

    Raises:
        UserError: An option is wrong, or something stops a step.
    """
    _say_what_options_lack(config, say)
    # It must come before what brings DeepSpeed is imported.
    name_the_cpu()
    out = config.folder
    with lock(out / LOCK), _emptied_if_refused(out):
        call = Call(config, say)
        if call.path.exists():
            call.check_same_options()
        else:
            lack = unguarded(config.source)
            if lack:
                say(lack)
        if _learns_from_text(config):
            _extend_by_text(call)
        else:
            extend_encoder(call)
    return out / "model"


def _say_what_options_lack(config: ExtendConfig, say: Callable[[str], None]) -> None:
    """Say what the options will not do; UserError for text to score that cannot be read."""
    for file in find_text(config.test_text):
        next(read_documents([str(file)], config.column), None)
    if not re.fullmatch(LANGUAGE_CODE, config.language):
        say(
            f"--language {config.language}: this is no code of ISO 639, such as de, so the model's "
            "card names no language"
        )
    if not re.fullmatch(LANGUAGE_CODE, config.source):
        say(
            f"--source {config.source}: this is no code of ISO 639, such as de, so questions are "
            "in English"
        )
    if not config.source_text and not config.pairs:
        say(
            f"{config.source}: without --source-text it is not measured what the model loses "
            "there, and new tokens may take the place of its tokens; give some pages of it"
        )


@contextlib.contextmanager
def _emptied_if_refused(out: Path) -> Iterator[None]:
    """Empty a new folder again where its first call is refused before it trains."""

    def content() -> set[Path]:
        return {*out.iterdir()} - {out / LOCK}

    is_new = not content()
    try:
        yield
    except UserError:
        if is_new and not (out / "run" / ADAPT).exists():
            for path in content():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        raise


def _learns_from_text(config: ExtendConfig) -> bool:
    """Return whether the model learns from text; a finished encoder learns from pairs.

    Raises:
        UserError: Pairs are given to a model that learns from text, or none to another.
    """
    body = read_base(config.model, config.pooling).config
    if body.head is None and (config.pairs or config.test_pairs):
        advice = "an encoder that is to give vectors takes --pooling mean or cls"
        if body.causal:
            advice = "new tokens of a decoder are aligned by a recipe's data.pairs"
        raise UserError(f"--pairs: {config.model} predicts tokens and learns from text; {advice}")
    if body.head is not None and not config.pairs:
        gives = "vectors" if isinstance(body.head, SentenceHead) else "labels"
        raise UserError(
            f"{config.model} gives {gives} for texts, and learns a language from pairs of a text "
            f"in {config.source} and its translation; give them with --pairs FILE"
        )
    return body.head is None


def _extend_by_text(call: Call) -> None:
    """Write the recipe, or go on with it; train for the budget; write the models."""
    budget = call.budget
    if not call.path.exists():
        _write_recipe(call, budget)
    else:
        recipe = load_recipe(call.path)
        check_options(call.config, is_causal=recipe.trained_by.causal)
        call.check_same_files(recipe.data)
    if write_finished_again(call, budget):
        return
    set_length(call, budget)
    # The model that writes what is replayed is looked at while it is in memory.
    with shared_modules():
        call.run(until="pretrain")
        looked = look_before(call)
    call.run(until="adapt")
    kept = choose_strength(call, *looked) if looked else None
    call.run()
    write_models(call, kept)


def _write_recipe(call: Call, budget: TrainingBudget) -> None:
    """Read the text, choose what it and the model decide, and write the recipe."""
    config = call.config
    base = read_base(config.model)
    device = device_here()
    check_options(config, is_causal=base.config.causal)
    if budget.tokens is None:
        assert budget.hours is not None
        tokens = guess_tokens(budget.hours, base, device.type)
    else:
        tokens = budget.tokens
    values = first_values(config, base, tokens)
    check_base(config.model)
    # Faults of the dialogues are reported before the text is read, which may take long.
    for _ in read_dialogues(config.chats):
        pass

    # The text is read into its corpora, and a part of it is kept to be scored.
    recipe = recipe_of_values(values, RECIPE_NAME)
    call.record(recipe.data)
    run_step_here(STEPS["corpus"], recipe, rebuild=True)
    num_texts = len(config.texts) + len(find_text(config.test_text))
    looks = looking.budget_of(tokens, base, device.type, num_texts)
    write_tests(recipe, call.say, looks.text_bytes)

    # The text decides the count of new tokens, and these the sizes of the training.
    vocabulary = choose_vocabulary_size(
        recipe,
        config.vocab_size,
        tokens,
        passes=MAX_PASSES if budget.tokens is None else math.inf,
        say=call.say,
    )
    values["tokenizer"]["vocab_size"] = vocabulary.new_tokens
    ranks = count_ranks(config)
    untried = set_sizes(
        values,
        base,
        tokens=min(tokens, MAX_PASSES * vocabulary.text_tokens),
        text_tokens=vocabulary.text_tokens,
        seq_length=vocabulary.seq_length,
        is_timed=budget.tokens is None,
        ranks=ranks,
    )
    if config.chats:
        check_chats(config.chats, config.model, vocabulary.seq_length)

    # The memory of this machine decides the size of micro-batches.
    fitting = fit(recipe_of_values(values, RECIPE_NAME), ranks, device)
    values["engine"] = fitting.engine
    call.say(f"micro-batches of {fitting.micro_batch_size}, {fitting.reason}")
    for line in untried:
        call.say(line)
    call.write(values)
