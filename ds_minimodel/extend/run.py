"""A language added to somebody's model from its text, by one command: a script over the steps of a
recipe.

What is chosen here stands in the recipe that is left, and the recipe is what runs.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ds_minimodel.artifacts.models import identity
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock, paths_of, replace_folder
from ds_minimodel.config import extension
from ds_minimodel.config.base import read_base
from ds_minimodel.config.extension import FEWEST_NEW, MOST_NEW, MOST_PASSES, PRESETS, SCORED_BY
from ds_minimodel.config.reading import load_recipe, recipe_of_values
from ds_minimodel.costs.sizes import device_here, fit
from ds_minimodel.export.folder import export_adapter, export_hf
from ds_minimodel.extend.call import Call
from ds_minimodel.extend.retention import CHATS, PAGES, STRENGTHS, find_kept, openings_of
from ds_minimodel.launch.hosts import name_the_cpu, ranks_on_hosts
from ds_minimodel.pipeline.dialogues import check_chats, held_out_questions
from ds_minimodel.pipeline.fertility import choose_vocabulary
from ds_minimodel.pipeline.layout import EVALUATE, LOCK
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step_here
from ds_minimodel.pipeline.steps.corpus import write_tests
from ds_minimodel.report.kept import Kept
from ds_minimodel.text.chats import read_dialogues
from ds_minimodel.text.reader import find_text, read_documents

HOURS = 1.0  # where nothing is said
Say = Callable[[str], None]


def extend(
    model: str | Path,
    text: Sequence[str | Path],
    language: str,
    out: str | Path,
    *,
    source: str = "en",
    source_text: Sequence[str | Path] = (),
    chats: Sequence[str | Path] = (),
    hours: float | None = None,
    tokens: int | None = None,
    column: str = "text",
    trains: str | None = None,
    vocab_size: int | None = None,
    strength: float | None = None,
    test_text: Sequence[str | Path] = (),
    known_text: Mapping[str, Sequence[str | Path]] | None = None,
    ranks: int | None = None,
    hostfile: str | None = None,
    say: Say = print,
) -> Path:
    """Add `language` to a model, and return the folder that `from_pretrained` reads, out/model.

    model: a folder of Hugging Face's, a GGUF file or a name on the Hub; it is read where it lies.
    text: files, globs or data sets of the Hub in the language. source_text: the same in `source`, a
    language that the model knows; it is scored, and new tokens that would split it otherwise are
    left out. known_text: {language: files} of other known languages, protected likewise; a decoder
    replays it while its body trains, and is scored on a held-out part. chats: files of dialogues
    (text/chats.py), a quarter of a decoder's samples. test_text: other text to score. hours: for
    self-generated replay (pipeline/own_replay.py) and training on this machine, at most MOST_PASSES
    over the text (1 by default); or tokens: to train on. trains: "embeddings": new token embeddings
    alone, all else stays bit for bit (default of an encoder); "lora": a LoRA of the body, too
    (default of a decoder); "all": every weight. vocab_size: number of new tokens, FEWEST_NEW at
    least (default: as many as pay). strength: merge strength of out/model (default: 1, of a decoder
    less where right answers fall by more than extend/retention.py allows). ranks, hostfile: as of
    `run`.

    out gets the recipe, its workdir run/ with the page run/report/report.html, model/, and with
    "lora" adapter/ for PEFT. The same call goes on where one was interrupted, with more hours or
    tokens it trains longer, and any other is refused. UserError as of the steps that it takes.
    """
    out, model = Path(out), str(model)
    texts = {source: paths_of(source_text), language: paths_of(text)}
    for name, files in (known_text or {}).items():
        if name in texts:
            raise UserError(
                f"--known-text {name}: the source or the language that is added; give others"
            )
        texts[name] = paths_of(files)
    if hours is not None and tokens is not None:
        raise UserError("extend: give hours or tokens, not both")
    counts = {"--tokens": tokens, "--ranks": ranks, "--vocab-size": vocab_size}
    for what, number in {"--hours": hours, **counts}.items():
        kind = int if what in counts else (int, float)
        if number is not None and not (isinstance(number, kind) and 0 < number < math.inf):
            raise UserError(
                f"{what} {number!r}: no {'whole number' if what in counts else 'amount'}"
            )
    if vocab_size is not None and not FEWEST_NEW <= vocab_size <= MOST_NEW:
        raise UserError(
            f"--vocab-size {vocab_size:,}: give {FEWEST_NEW} to {MOST_NEW:,} new tokens"
        )
    others = [str(file) for file in find_text(paths_of(test_text))]
    for file in others:  # as far as it is scored
        next(read_documents([file], column), None)
    if trains is not None and trains not in PRESETS:
        raise UserError(f"extend: nothing is called {trains} here; give {', '.join(PRESETS)}")
    name_the_cpu()
    with lock(out / LOCK):
        work = _Work(out, language, ranks, hostfile, say)
        asked = {"hours": hours, "tokens": tokens}
        if hours is None and tokens is None:
            asked = (
                {key: work.state.get(key) for key in asked}
                if "steps" in work.state
                else {**asked, "hours": HOURS}
            )
        call: dict[str, Any] = {
            "out": str(out),
            "model": model,
            "source": source,
            "language": language,
            "texts": texts,
        }
        call |= {"column": column, "trains": trains, "vocab_size": vocab_size, "strength": strength}
        call["chats"] = paths_of(chats)
        if not source_text:
            say(
                f"{source}: without --source-text it is not scored, and new tokens may split it "
                "otherwise"
            )
        if work.path.exists():
            recipe = load_recipe(work.path)
            _check_options(recipe.trained_by.causal, others)
            work.begin(call, recipe.data)
        else:
            base, device = read_base(model), device_here().type
            _check_options(base.config.causal, others)
            deque(
                read_dialogues(call["chats"]), 0
            )  # all that is wrong there, before anything is made
            most = tokens or extension.tokens_in(asked["hours"] or 0, base, device)
            data = {"column": column, "draw": extension.bytes_to_draw(most)}
            data |= {"chats": {language: call["chats"]}} if chats else {}
            values = extension.first_values(
                model, base, out, (source, language), texts, trains, strength, **data
            )
            values["tokenizer"]["vocab_size"] = (
                vocab_size or FEWEST_NEW
            )  # of which fertility has a row, too
            recipe = recipe_of_values(values, "the recipe of extend")
            work.begin(call, recipe.data)
            run_step_here(STEPS["corpus"], recipe, rebuild=True)
            write_tests(recipe, say)
            row, length = choose_vocabulary(
                recipe, vocab_size, most, MOST_PASSES if tokens is None else math.inf, say
            )
            values["tokenizer"]["vocab_size"] = row["new_pieces"]
            number = ranks_on_hosts(hostfile, ranks) if hostfile else ranks or 1
            text_tokens = row["tokens"]
            at_most = min(most, MOST_PASSES * text_tokens)
            untried = extension.set_sizes(
                values, base, at_most, text_tokens, length, tokens is None, number
            )
            fitting = fit(recipe_of_values(values, "the recipe of extend"), number, device_here())
            values["engine"] = fitting.engine
            if chats:
                check_chats(call["chats"], model, length)
            say(f"micro-batches of {fitting.micro_batch_size}, {fitting.reason}")
            for line in untried:
                say(line)
            work.write(values)
        work.set_length(asked)
        work.run(until="adapt")
        strengths = [strength] if strength else STRENGTHS
        kept = work.look(others, strengths) if work.recipe().trained_by.causal else None
        work.run()
        work.export(kept)
    return out / "model"


def _check_options(causal: bool, others: Sequence[str]) -> None:
    """UserError for what is looked at of a decoder alone."""
    if not causal and others:
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
                *places, source, given, strengths, data.column, openings, chats, self.say
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
