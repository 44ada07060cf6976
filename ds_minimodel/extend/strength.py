"""The merge strength of a decoder: the share of what its body learned that is written."""

import shutil
from collections import Counter
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock
from ds_minimodel.extend.call import Call, adaptation_of
from ds_minimodel.extend.recipe import SCORED_BY
from ds_minimodel.extend.retention import CHATS, PAGES, STRENGTHS, find_kept, openings_of
from ds_minimodel.pipeline.dialogues import held_out_questions
from ds_minimodel.pipeline.layout import EVALUATE, WorkdirLayout
from ds_minimodel.report.kept import Kept
from ds_minimodel.text.reader import find_text


def choose_strength(call: Call) -> Kept | None:
    """Look at what a decoder keeps, and give the recipe the strength that keeps enough.

    Returns:
        What it keeps; None of an encoder, at which nobody looks.
    """
    config = call.config
    recipe = call.recipe()
    if not recipe.trained_by.causal:
        return None
    (system,) = recipe.chosen_systems
    layout = WorkdirLayout(recipe.workdir)
    task = recipe.finetune.tasks.get(SCORED_BY[True])
    if task is None:
        raise UserError(
            f"{call.path}: finetune.tasks: put {SCORED_BY[True]} back, by which a decoder is scored"
        )
    held_out = {name: file for name, file in task.test.items() if name in recipe.languages.all}
    given = {f"{name}, {PAGES}": file for name, file in task.test.items() if name not in held_out}
    given |= _test_texts(config.test_text)
    questions = held_out_questions(
        recipe.data.chats.get(config.language, ()), recipe.data.held_out, CHATS
    )
    with lock(layout.lock):  # `run` may be at work there
        kept = find_kept(
            layout.model(system),
            layout.tokenizer(config.source),
            adaptation_of(recipe) / "pack",
            layout.kept(system, config.language),
            held_out,
            config.source,
            given,
            strengths=(config.strength,) if config.strength else STRENGTHS,
            column=recipe.data.column,
            openings=openings_of(held_out[config.language]),
            chats=questions,
            say=call.say,
        )
        if kept.strength != recipe.adapt.of(system).strength:
            # Scores are of the model at another strength.
            of_another = layout.root / EVALUATE / system.name / config.language
            shutil.rmtree(of_another, ignore_errors=True)
            call.set("adapt", "strength", kept.strength)
    return kept


def _test_texts(patterns: list[str]) -> dict[str, str]:
    """Return {what a text is called: its file}: by its name, or its path where two have one."""
    files = [str(file) for file in find_text(patterns)]
    counts = Counter(Path(file).name for file in files)
    called = {}
    for file in files:
        name = Path(file).name
        called[f"{file if counts[name] > 1 else name}, of yours"] = file
    return called
