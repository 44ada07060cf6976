"""A language added to somebody's model from its text, by one command: a script over the steps of a
recipe.

What is chosen here stands in the recipe that is left, and the recipe is what runs.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ds_minimodel.artifacts.base import check_base
from ds_minimodel.artifacts.models import identity
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock, replace_folder
from ds_minimodel.common.names import LANGUAGE_CODE
from ds_minimodel.config import extension
from ds_minimodel.config.base import read_base
from ds_minimodel.config.extension import MOST_PASSES, SCORED_BY
from ds_minimodel.config.reading import load_recipe, recipe_of_values
from ds_minimodel.export.folder import export_adapter, export_hf
from ds_minimodel.extend.call import Call
from ds_minimodel.extend.config import MIN_NEW_TOKENS, ExtendConfig
from ds_minimodel.extend.retention import CHATS, PAGES, STRENGTHS, find_kept, openings_of
from ds_minimodel.launch.hosts import name_the_cpu, ranks_on_hosts
from ds_minimodel.pipeline.dialogues import check_chats, held_out_questions
from ds_minimodel.pipeline.fertility import choose_vocabulary
from ds_minimodel.pipeline.layout import EVALUATE, LOCK
from ds_minimodel.pipeline.memory import device_here
from ds_minimodel.pipeline.plan import fit
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step_here
from ds_minimodel.pipeline.steps.corpus import write_tests
from ds_minimodel.report.kept import Kept
from ds_minimodel.text.chats import read_dialogues
from ds_minimodel.text.reader import find_text, read_documents

HOURS = 1.0  # where nothing is said
Say = Callable[[str], None]


def extend(config: ExtendConfig, say: Say = print) -> Path:
    """Add a language to a model, and return the folder that `from_pretrained` reads, OUT/model.

    OUT gets the recipe, its workdir run/ with the page run/report/report.html, model/, and with a
    LoRA adapter/ for PEFT. The same call goes on where one was interrupted, with more hours or
    tokens it trains longer, and any other is refused.

    Raises:
        UserError: as of the steps that it takes.
    """
    out, language, source, tokens = config.folder, config.language, config.source, config.tokens
    others = [str(file) for file in find_text(config.test_text)]
    for file in others:  # as far as it is scored
        next(read_documents([file], config.column), None)
    for option, code, less in (
        ("--language", language, "the model's card names none"),
        ("--source", source, "questions are in English"),
    ):
        if not re.fullmatch(LANGUAGE_CODE, code):
            say(f"{option} {code}: no code of ISO 639, such as de, so {less}")
    name_the_cpu()
    with lock(out / LOCK):
        work = _Work(out, language, config.ranks, config.hostfile, say)
        asked: dict[str, Any] = {"hours": config.hours, "tokens": tokens}
        if config.hours is None and tokens is None:
            asked = (
                {key: work.state.get(key) for key in asked}
                if "steps" in work.state
                else {**asked, "hours": HOURS}
            )
        call: dict[str, Any] = {
            "out": str(out),
            "model": config.model,
            "source": source,
            "language": language,
            "texts": config.texts,
            "column": config.column,
            "train": config.train,
            "vocab_size": config.vocab_size,
            "strength": config.strength,
            "chats": config.chats,
        }
        if not config.source_text:
            say(
                f"{source}: without --source-text it is not scored, and new tokens may split it "
                "otherwise"
            )
        if work.path.exists():
            recipe = load_recipe(work.path)
            _check_options(recipe.trained_by.causal, config)
            work.begin(call, recipe.data)
        else:
            base, device = read_base(config.model), device_here().type
            _check_options(base.config.causal, config)
            check_base(config.model)
            # All that is wrong with dialogues is found before anything is made.
            deque(read_dialogues(config.chats), 0)
            most = tokens or extension.tokens_in(asked["hours"] or 0, base, device)
            data = {"column": config.column, "draw": extension.bytes_to_draw(most)}
            data |= {"chats": {language: config.chats}} if config.chats else {}
            values = extension.first_values(
                config.model,
                base,
                out,
                (source, language),
                config.texts,
                config.train,
                config.strength,
                **data,
            )
            values["tokenizer"]["vocab_size"] = (
                config.vocab_size or MIN_NEW_TOKENS
            )  # of which fertility has a row, too
            recipe = recipe_of_values(values, "the recipe of extend")
            work.begin(call, recipe.data)
            run_step_here(STEPS["corpus"], recipe, rebuild=True)
            write_tests(recipe, say)
            row, length = choose_vocabulary(
                recipe, config.vocab_size, most, MOST_PASSES if tokens is None else math.inf, say
            )
            values["tokenizer"]["vocab_size"] = row["new_pieces"]
            ranks = config.ranks or 1
            if config.hostfile:
                ranks = ranks_on_hosts(config.hostfile, config.ranks)
            text_tokens = row["tokens"]
            at_most = min(most, MOST_PASSES * text_tokens)
            untried = extension.set_sizes(
                values, base, at_most, text_tokens, length, tokens is None, ranks
            )
            fitting = fit(recipe_of_values(values, "the recipe of extend"), ranks, device_here())
            values["engine"] = fitting.engine
            if config.chats:
                check_chats(config.chats, config.model, length)
            say(f"micro-batches of {fitting.micro_batch_size}, {fitting.reason}")
            for line in untried:
                say(line)
            work.write(values)
        work.set_length(asked)
        work.run(until="adapt")
        strengths = [config.strength] if config.strength else STRENGTHS
        kept = work.look(others, strengths) if work.recipe().trained_by.causal else None
        work.run()
        work.export(kept)
    return out / "model"


def _check_options(causal: bool, config: ExtendConfig) -> None:
    """UserError for what is looked at of a decoder alone."""
    if not causal and config.test_text:
        raise UserError("--test-text: of an encoder held-out text alone is scored; leave it out")


class _Work(Call):
    """A call, and what is made of the adaptation that it has trained."""

    def look(self, others: list[str], strengths: Sequence[float]) -> Kept:
        """What a decoder has kept; the recipe gets the strength that keeps enough."""
        recipe = self.recipe()
        folder, model, layout = self.made(recipe)
        (system,), source, task_name = (
            recipe.chosen_systems,
            recipe.languages.source,
            SCORED_BY[True],
        )
        if (task := recipe.finetune.tasks.get(task_name)) is None:
            raise UserError(
                f"{self.path}: finetune.tasks: put {task_name} back, by which a decoder is scored"
            )
        tests = {own: file for own, file in task.test.items() if own in recipe.languages.all}
        places = (
            model,
            layout.tokenizer(source),
            folder / "pack",
            layout.kept(system, self.language),
            tests,
        )
        given = {f"{own}, {PAGES}": file for own, file in task.test.items() if own not in tests}
        names = Counter(Path(file).name for file in others)
        given |= {
            f"{file if names[Path(file).name] > 1 else Path(file).name}, of yours": file
            for file in others
        }
        openings, data = openings_of(tests[self.language]), recipe.data
        chats = held_out_questions(data.chats.get(self.language, ()), data.held_out, CHATS)
        with lock(layout.lock):  # `run` may be at work there
            kept = find_kept(
                *places,
                source,
                given,
                strengths,
                column=data.column,
                openings=openings,
                chats=chats,
                say=self.say,
            )
            if kept.strength != recipe.adapt.of(system).strength:
                of_another = layout.root / EVALUATE / system.name / self.language
                shutil.rmtree(of_another, ignore_errors=True)
                self.set("strength", kept.strength)
        return kept

    def export(self, kept: Kept | None) -> None:
        """Write out/model and out/adapter where they are not as they were, or of another
        training.
        """
        recipe = self.recipe()
        folder, base, _ = self.made(recipe)
        (system,), pack, out = recipe.chosen_systems, folder / "pack", self.out
        strength = recipe.adapt.of(system).strength

        facts = {"pack": identity(pack), "strength": strength, "kept": kept and kept.key}
        if not self.is_exported(facts):
            self.note(exported={})  # after a kill nothing there is a user's
            replace_folder(out / "model", lambda new: export_hf(base, new, pack, strength=strength))
            if system.trains == "low-rank":
                replace_folder(
                    out / "adapter", lambda new: export_adapter(base, new, pack, strength)
                )
            else:
                shutil.rmtree(out / "adapter", ignore_errors=True)
            self.note(exported=facts | {"files": self.written()})
