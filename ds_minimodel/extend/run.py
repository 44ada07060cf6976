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

from ds_minimodel.artifacts.base import check_base, shared_modules
from ds_minimodel.artifacts.models import identity
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock, replace_folder
from ds_minimodel.common.names import LANGUAGE_CODE
from ds_minimodel.config import extension
from ds_minimodel.config.base import read_base
from ds_minimodel.config.extension import MOST_PASSES, SCORED_BY
from ds_minimodel.config.reading import load_recipe, recipe_of_values
from ds_minimodel.evaluation.comparison import STRENGTHS, Kept, Look, Probe
from ds_minimodel.export.folder import export_adapter, export_hf
from ds_minimodel.extend.call import Call
from ds_minimodel.extend.config import MIN_NEW_TOKENS, ExtendConfig
from ds_minimodel.extend.looking import (
    MAX_DIALOGUES,
    budget_of,
    find_kept,
    look_at_untouched,
    probe_of,
)
from ds_minimodel.launch.hosts import name_the_cpu, ranks_on_hosts
from ds_minimodel.pipeline.dialogues import check_chats, held_out_questions
from ds_minimodel.pipeline.fertility import choose_vocabulary
from ds_minimodel.pipeline.layout import EVALUATE, LOCK
from ds_minimodel.pipeline.memory import device_here
from ds_minimodel.pipeline.plan import fit
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step_here
from ds_minimodel.pipeline.steps.corpus import write_tests
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
            num_texts = len(config.texts) + len(others)
            budget = budget_of(int(most), base, device, num_texts)
            write_tests(recipe, say, budget.text_bytes)
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
        is_decoder = work.recipe().trained_by.causal
        # The model that writes what is replayed is looked at while it is in memory.
        with shared_modules():
            work.run(until="pretrain")
            looked = work.look_before(others) if is_decoder else None
        work.run(until="adapt")
        strengths = [config.strength] if config.strength else STRENGTHS
        kept = work.look_after(*looked, strengths) if looked else None
        work.run()
        work.export(kept)
    return out / "model"


def _check_options(causal: bool, config: ExtendConfig) -> None:
    """UserError for what is looked at of a decoder alone."""
    if not causal and config.test_text:
        raise UserError("--test-text: of an encoder held-out text alone is scored; leave it out")


class _Work(Call):
    """A call, and what is made of the adaptation that it has trained."""

    def look_before(self, others: list[str]) -> tuple[Probe, Look]:
        """Choose what the decoder is asked, and look at the untouched one; others: further texts."""
        recipe = self.recipe()
        (system,) = recipe.chosen_systems
        task_name = SCORED_BY[True]
        task = recipe.finetune.tasks.get(task_name)
        if task is None:
            raise UserError(
                f"{self.path}: finetune.tasks: put {task_name} back, by which a decoder is scored"
            )
        # Step 4 scores the texts of the recipe's languages.
        texts = {
            f"{language}, held-out pages of your text": file
            for language, file in task.test.items()
            if language not in recipe.languages.all
        }
        names = Counter(Path(file).name for file in others)
        for file in others:
            name = Path(file).name
            texts[f"{file if names[name] > 1 else name}, of yours"] = file
        adapt, data = recipe.adapt, recipe.data
        _, model, layout = self.made(recipe)
        trained = adapt.steps * adapt.batch_size * adapt.seq_length
        base = recipe.base
        assert base is not None
        num_texts = len(task.test) + len(others)
        budget = budget_of(trained, read_base(base), device_here().type, num_texts)
        chats = data.chats.get(self.language, ())
        probe = probe_of(
            model,
            recipe.languages.source,
            opening_file=task.test[self.language],
            chats=held_out_questions(chats, data.held_out, MAX_DIALOGUES),
            texts=texts,
            budget=budget,
            column=data.column,
        )
        path = layout.kept(system, self.language).with_name("the-untouched.json")
        with lock(layout.lock):  # `run` may be at work there
            return probe, look_at_untouched(model, probe, path)

    def look_after(self, probe: Probe, before: Look, strengths: Sequence[float]) -> Kept:
        """Find what the trained decoder has kept; the recipe gets the merge strength."""
        recipe = self.recipe()
        folder, model, layout = self.made(recipe)
        (system,) = recipe.chosen_systems
        path = layout.kept(system, self.language)
        with lock(layout.lock):
            another = f"another by ds-minimodel export-hf {self.out} OUT --strength S"
            kept = find_kept(
                model,
                folder / "pack",
                path,
                probe=probe,
                before=before,
                strengths=strengths,
                another=another,
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
