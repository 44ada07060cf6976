"""The merge strength of a decoder: the share of what its body learned that is written.

It follows from two looks, at the model before training and at what came of it (extend/looking.py).
"""

import shutil
from collections import Counter
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock
from ds_minimodel.config.base import read_base
from ds_minimodel.evaluation.comparison import STRENGTHS, Kept, Look, Probe
from ds_minimodel.extend.call import Call, adaptation_of
from ds_minimodel.extend.looking import (
    MAX_DIALOGUES,
    budget_of,
    find_kept,
    look_at_untouched,
    probe_of,
)
from ds_minimodel.extend.recipe import SCORED_BY
from ds_minimodel.pipeline.dialogues import held_out_questions
from ds_minimodel.pipeline.layout import EVALUATE, WorkdirLayout
from ds_minimodel.pipeline.memory import device_here
from ds_minimodel.text.reader import find_text


def look_before(call: Call) -> tuple[Probe, Look] | None:
    """Choose what a decoder is asked, and look at the untouched one.

    Returns:
        What is asked, and what it makes of it; None of an encoder, at which nobody looks.
    """
    config = call.config
    recipe = call.recipe()
    if not recipe.trained_by.causal:
        return None
    (system,) = recipe.chosen_systems
    layout = WorkdirLayout(recipe.workdir)
    model = layout.model(system)
    task = recipe.finetune.tasks.get(SCORED_BY[True])
    if task is None:
        raise UserError(
            f"{call.path}: finetune.tasks: put {SCORED_BY[True]} back, by which a decoder is scored"
        )
    # Step 4 scores the texts of the recipe's own languages.
    texts = {
        f"{language}, held-out pages of your text": file
        for language, file in task.test.items()
        if language not in recipe.languages.all
    }
    test_texts = _test_texts(config.test_text)
    adapt = recipe.adapt
    budget = budget_of(
        trained=adapt.steps * adapt.batch_size * adapt.seq_length,
        base=read_base(config.model),
        device=device_here().type,
        texts=len(task.test) + len(test_texts),
    )
    chats = recipe.data.chats.get(config.language, ())
    probe = probe_of(
        model,
        config.source,
        opening_file=task.test[config.language],
        chats=held_out_questions(chats, recipe.data.held_out, MAX_DIALOGUES),
        texts=texts | test_texts,
        budget=budget,
        column=recipe.data.column,
    )
    path = layout.kept(system, config.language).with_name("untouched.json")
    with lock(layout.lock):  # `run` may be at work there
        return probe, look_at_untouched(model, probe, path)


def choose_strength(call: Call, probe: Probe, before: Look) -> Kept:
    """Find what the trained decoder keeps, and give the recipe the strength that keeps enough."""
    config = call.config
    recipe = call.recipe()
    (system,) = recipe.chosen_systems
    layout = WorkdirLayout(recipe.workdir)
    with lock(layout.lock):
        kept = find_kept(
            layout.model(system),
            adaptation_of(recipe) / "pack",
            layout.kept(system, config.language),
            probe=probe,
            before=before,
            strengths=STRENGTHS if config.strength is None else (config.strength,),
            another=f"another by ds-minimodel export-hf {call.out} OUT --strength S",
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
