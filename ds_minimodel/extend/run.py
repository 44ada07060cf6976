"""`extend`, from the call to the folder: a language is added to somebody's model from its text.

What is chosen here stands in the recipe that is left, and the recipe is what runs.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from ds_minimodel.artifacts.base import check_base, shared_modules
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock
from ds_minimodel.common.names import LANGUAGE_CODE
from ds_minimodel.config.base import read_base
from ds_minimodel.config.reading import load_recipe, recipe_of_values
from ds_minimodel.extend import looking
from ds_minimodel.extend.call import Call
from ds_minimodel.extend.config import ExtendConfig
from ds_minimodel.extend.encoder import extend_encoder, is_finished_encoder
from ds_minimodel.extend.length import Budget, budget_of, set_length
from ds_minimodel.extend.recipe import (
    MAX_PASSES,
    check_options,
    first_values,
    guess_tokens,
    set_sizes,
)
from ds_minimodel.extend.strength import choose_strength, look_before
from ds_minimodel.extend.vocabulary_size import choose_vocabulary_size
from ds_minimodel.extend.written import write_finished_again, write_models
from ds_minimodel.launch.hosts import name_the_cpu, ranks_on_hosts
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

_RECIPE = "the recipe of extend"  # as messages call it before it is a file


def extend(config: ExtendConfig, say: Callable[[str], None] = print) -> Path:
    """Add a language to a model, and return the folder that `from_pretrained` reads, OUT/model.

    OUT gets the recipe, its workdir run/ with the page run/report/report.html, model/, and with a
    LoRA adapter/ for PEFT. The same call goes on where one was interrupted, with more hours or
    tokens it trains longer, and any other is refused.

    Raises:
        UserError: as of the steps that it takes.
    """
    _look_at_options(config, say)
    name_the_cpu()
    out = config.folder
    with lock(out / LOCK), _removed_where_refused(out):
        call = Call(config, say)
        if call.path.exists():
            call.check_same_options()
        elif lack := unguarded(config.source):
            say(lack)
        if is_finished_encoder(call):
            extend_encoder(call)
            return out / "model"
        budget = budget_of(call)
        if call.path.exists():
            recipe = load_recipe(call.path)
            check_options(config, recipe.trained_by.causal)
            call.check_same_files(recipe.data)
        else:
            _write_recipe(call, budget)
        if not write_finished_again(call, budget):
            set_length(call, budget)
            # The model that writes what is replayed is looked at while it is in memory.
            with shared_modules():
                call.run(until="pretrain")
                looked = look_before(call)
            call.run(until="adapt")
            kept = choose_strength(call, *looked) if looked else None
            call.run()
            write_models(call, kept)
    return out / "model"


def _look_at_options(config: ExtendConfig, say: Callable[[str], None]) -> None:
    """Say what options will not do; UserError for text to score that cannot be read."""
    for file in find_text(config.test_text):
        next(read_documents([str(file)], config.column), None)
    if not re.fullmatch(LANGUAGE_CODE, config.language):
        say(
            f"--language {config.language}: no code of ISO 639, such as de, so the model's card "
            "names none"
        )
    if not re.fullmatch(LANGUAGE_CODE, config.source):
        say(
            f"--source {config.source}: no code of ISO 639, such as de, so questions are in English"
        )
    if not config.source_text and not config.pairs:
        say(
            f"{config.source}: without --source-text nobody sees what the model loses there, and "
            "new tokens may split it otherwise; give some pages of it"
        )


@contextlib.contextmanager
def _removed_where_refused(out: Path) -> Iterator[None]:
    """Empty a folder that held nothing but the lock, where a call is refused before it trains."""
    is_new = {*out.iterdir()} == {out / LOCK}
    try:
        yield
    except UserError:
        if is_new and not (out / "run" / ADAPT).exists():
            for path in {*out.iterdir()} - {out / LOCK}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _write_recipe(call: Call, budget: Budget) -> None:
    """Read the text, choose what is to be chosen by it and by the model, and write the recipe."""
    config = call.config
    base = read_base(config.model)
    device = device_here()
    check_options(config, base.config.causal)
    check_base(config.model)
    deque(read_dialogues(config.chats), maxlen=0)  # what is wrong there is said first
    if budget.tokens is None:
        assert budget.hours is not None
        tokens = guess_tokens(budget.hours, base, device.type)
        passes: float = MAX_PASSES
    else:
        tokens = budget.tokens
        passes = math.inf

    # The text is read into its corpora, and a part of it is kept to be scored.
    values = first_values(config, base, tokens)
    recipe = recipe_of_values(values, _RECIPE)
    call.record(recipe.data)
    run_step_here(STEPS["corpus"], recipe, rebuild=True)
    num_texts = len(config.texts) + len(find_text(config.test_text))
    looks = looking.budget_of(tokens, base, device.type, num_texts)
    write_tests(recipe, call.say, looks.text_bytes)

    # By it new tokens are counted, and by these the sizes of the training.
    vocabulary = choose_vocabulary_size(recipe, config.vocab_size, tokens, passes, say=call.say)
    values["tokenizer"]["vocab_size"] = vocabulary.new_tokens
    ranks = config.ranks or 1
    if config.hostfile:
        ranks = ranks_on_hosts(config.hostfile, config.ranks)
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

    # How it is computed is what fits into memory here.
    fitting = fit(recipe_of_values(values, _RECIPE), ranks, device)
    values["engine"] = fitting.engine
    call.say(f"micro-batches of {fitting.micro_batch_size}, {fitting.reason}")
    for line in untried:
        call.say(line)
    call.write(values)
