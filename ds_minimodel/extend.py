"""A language added to somebody's model from its text, by one command: a script over the steps of a recipe.

What is chosen here stands in the recipe that is left, and the recipe is what runs.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ds_minimodel.artifacts.base import identity_of_base
from ds_minimodel.artifacts.models import identity
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    Content,
    as_json,
    atomic_write,
    lock,
    paths_of,
    read_json_lines,
    read_model,
    write_json,
)
from ds_minimodel.costs.sizes import device_here, fit
from ds_minimodel.data.store import TokenStore
from ds_minimodel.hf.export import export_adapter, export_hf
from ds_minimodel.hf.kept import LIMITS, STRENGTHS, find_kept
from ds_minimodel.jobs.layout import CALL, EVALUATE, LOCK, RECIPE, WorkdirLayout
from ds_minimodel.pipeline.fertility import choose_vocabulary
from ds_minimodel.pipeline.launch import has_gpu, name_the_cpu, ranks_on_hosts
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import do_step, run_step_here, steps_to_run
from ds_minimodel.recipe import extension
from ds_minimodel.recipe.base import read_base
from ds_minimodel.recipe.extension import FEWEST_NEW, FEWEST_STEPS, MOST_NEW, MOST_PASSES, PRESETS, UNTIMED
from ds_minimodel.recipe.reading import load_recipe, recipe_of_values
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.report.kept import Kept
from ds_minimodel.text.corpus import Corpus
from ds_minimodel.text.draw import draw_parts
from ds_minimodel.text.reader import find_text, identity_of_text, read_documents

TEST_BYTES = 100_000  # of held-out text that is scored
HOURS = 1.0  # where nothing is said
OPENINGS, WORDS, CHARACTERS = 5, 6, 60  # of held-out documents, that samples continue; at most so many
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
    keep: Mapping[str, float] = LIMITS,
    ranks: int | None = None,
    hostfile: str | None = None,
    say: Say = print,
) -> Path:
    """Add `language` to a model, and return the folder that `from_pretrained` reads, out/model.

    model: a folder of Hugging Face's, a GGUF file or a name of the Hub; it is read where it lies. text, source_text:
    files, globs or data sets of the language and of one that the model knows, which is scored, and which decides what
    new tokens are left out because they would split it otherwise. chats: files of dialogues (text/chats.py), of which a
    decoder learns to answer in the language, a quarter of the samples. hours: of self-generated replay and training on
    this machine, one by default, at most MOST_PASSES over the text; or tokens: of training. trains: new token
    "embeddings" alone, by which all else stays to the bit, an encoder's default; "lora": a LoRA of the body, too, a
    decoder's; "all": all of its weights. vocab_size: number of new tokens, FEWEST_NEW at least; by default as many as
    pay. strength: merge strength, the share of what the body has learned that out/model keeps; by default of a decoder
    the largest that keeps `keep`, what may get worse, in percent, of what hf/kept.py looks at ({}: all that was learned
    is kept). test_text: files of other text, of any language, that it looks at, too. A decoder whose body trains
    replays what it writes by itself (hf/rehearsal.py). ranks, hostfile: on which it trains, as of `run`. out gets the
    recipe, its workdir run/ with the page run/report/report.html, model/, and adapter/ of "lora" for PEFT; the
    same call goes on where one was interrupted, with more hours or tokens it makes the training longer, and another is
    refused. UserError as of the steps that it takes.
    """
    out, model = Path(out), str(model)
    texts = {source: paths_of(source_text), language: paths_of(text)}
    if hours is not None and tokens is not None:
        raise UserError("extend: give hours or tokens, not both")
    if vocab_size is not None and not FEWEST_NEW <= vocab_size <= MOST_NEW:
        raise UserError(f"--vocab-size {vocab_size:,}: give {FEWEST_NEW} to {MOST_NEW:,} new tokens")
    for name, known in [*((name, [*LIMITS]) for name in keep), (trains or "lora", [*PRESETS])]:
        if name not in known:
            raise UserError(f"extend: nothing is called {name} here; give {', '.join(known)}")
    name_the_cpu()
    with lock(out / LOCK):
        work = _Work(out, language, ranks, hostfile, say)
        asked = {"hours": hours, "tokens": tokens}
        if hours is None and tokens is None:
            asked = {key: work.state.get(key) for key in asked} if "steps" in work.state else {**asked, "hours": HOURS}
        call: dict[str, Any] = {"out": str(out), "model": model, "source": source, "language": language, "texts": texts}
        call |= {"column": column, "trains": trains, "vocab_size": vocab_size, "strength": strength}
        call["chats"] = paths_of(chats)
        if not source_text:
            say(f"{source}: without --source-text it is not scored, and new tokens may split it otherwise")
        if work.path.exists():
            work.begin(call, load_recipe(work.path).data.draw)
        else:
            base, device = read_base(model), "gpu" if has_gpu() else "cpu"
            most = tokens or extension.tokens_in(asked["hours"] or 0, base, device)
            data = {"column": column, "draw": extension.bytes_to_draw(most)}
            data |= {"chats": {language: call["chats"]}} if chats else {}
            values = extension.first_values(model, base, out, (source, language), texts, trains, strength, **data)
            values["tokenizer"]["vocab_size"] = vocab_size or FEWEST_NEW  # of which fertility has a row, too
            recipe = recipe_of_values(values, "the recipe of extend")
            work.begin(call, recipe.data.draw)
            run_step_here(STEPS["corpus"], recipe, rebuild=True)
            _hold_out(recipe, say)
            row, length = choose_vocabulary(recipe, vocab_size, say)
            values["tokenizer"]["vocab_size"] = row["new_pieces"]
            number = ranks_on_hosts(hostfile, ranks) if hostfile else ranks or 1
            text_tokens = row["tokens"]
            at_most = min(most, MOST_PASSES * text_tokens)
            extension.set_sizes(values, base, at_most, text_tokens, length, tokens is None, number)
            fitting = fit(recipe_of_values(values, "the recipe of extend"), number, device_here())
            values["engine"] = fitting.engine
            say(f"micro-batches of {fitting.micro_batch_size}, {fitting.reason}")
            if base.config.hidden_size != extension.TRIED_WIDTH:
                say(f"rate {values['adapt']['lr']:g}: not tried at this width ({base.config.hidden_size:,})")
            if (rank := values["adapt"].get("rank", extension.RANK)) != extension.RANK:
                say(f"rank {rank}: not tried; it holds what so much text says")
            _write(work.path, values)
        work.set_length(asked)
        work.run(until="adapt")
        strengths = [strength] if strength else STRENGTHS if keep else [1.0]
        others = [str(file) for file in find_text(test_text)]
        kept = work.look(others, strengths, keep) if work.recipe().trained_by.causal else None
        work.run()
        work.export(kept)
    return out / "model"


def _hold_out(recipe: Recipe, say: Say) -> None:
    """Write the test files, of documents that are held out; UserError where there are none."""
    (task,) = recipe.finetune.tasks.values()
    for language, path in task.test.items():
        corpus, size = Corpus(WorkdirLayout(recipe.workdir).corpus(language)), 0
        if not corpus.held_out:
            raise UserError(
                f"{recipe.data.text[language][0]}: none of its documents is among the {recipe.data.held_out:.0%} held "
                "out; give a longer text, with an empty line between documents"
            )
        if corpus.facts.bytes[1] < TEST_BYTES / 10:
            say(f"{language}: only {corpus.facts.bytes[1]:,} bytes are held out, and scores of so little say little")
        with atomic_write(path) as file:
            for document in read_documents(corpus.held_out):
                if size < TEST_BYTES:
                    size += file.write("\n".join([*document, "\n"]).encode())


class _Work:
    """What is done in the folder `out`. state: what call.json says of it: the call, its length, what is exported."""

    def __init__(self, out: Path, language: str, ranks: int | None, hostfile: str | None, say: Say):
        self.out, self.language, self.say, self.path = out, language, say, out / RECIPE
        self.places: dict[str, Any] = {"path": self.path, "ranks": ranks, "hostfile": hostfile}
        is_begun = (out / CALL).exists()
        self.state = read_model(out / CALL, dict[str, Any], "delete that file") if is_begun else {}
        if not is_begun and {*out.iterdir()} > {out / LOCK}:
            raise UserError(f"{out}: exists and was not begun by extend; give another --out")

    def note(self, **facts: Any) -> None:
        self.state |= facts
        write_json(self.out / CALL, self.state)

    def begin(self, call: dict[str, Any], draw: int | None) -> None:
        """Write down what is asked for, and what it is of; UserError where a recipe is of another call."""
        text, former = [find_text(files) for files in call["texts"].values()], self.state
        files: dict[str, Any] = {
            f"{call['model']}: {name}": content for name, content in identity_of_base(call["model"]).items()
        }
        for own in text:
            facts = identity_of_text(own, draw_parts(own, draw))
            files |= {str(path): facts for path, facts in zip(own, facts, strict=True)}
        files |= {str(path): Content.of(path) for path in find_text(call["chats"]) if isinstance(path, Path)}
        call, hashes = as_json(call | {"files": files}, former.get("hashes", {}))
        if self.path.exists():
            before, now = former["call"], call["files"]
            for file in sorted(before["files"].keys() | now):
                if before["files"].get(file) != now.get(file):
                    raise UserError(
                        f"{file}: another file than {self.out} was begun with; put it back, or give another --out"
                    )
            for name, value in call.items():
                if before[name] != value:
                    was = f"no {name}" if before[name] is None else f"{name} {before[name]}"
                    raise UserError(f"{self.out}: was begun with {was}; give another --out, or that again")
        self.note(call=call, hashes=former.get("hashes", {}) | hashes)

    def recipe(self) -> Recipe:
        """As it is now, perhaps edited; UserError where it makes no one model of the language."""
        recipe = load_recipe(self.path)
        if len(recipe.systems) != 1 or recipe.languages.targets != [self.language]:
            raise UserError(
                f"{self.path}: systems and languages.targets: extend makes one model of {self.language}; take out what "
                f"was added, or use `ds-minimodel run {self.path}`"
            )
        return recipe

    def set(self, key: str, value: float) -> None:
        """Give a key of the recipe's section adapt another value; all else stays as it is written."""
        values = YAML().load(self.path)
        values["adapt"][key] = value
        _write(self.path, values)

    def run(self, until: str | None = None) -> None:
        """Take the steps of the recipe, or those up to one, on its ranks."""
        recipe = self.recipe()
        for step in steps_to_run(recipe, self.places["ranks"] or 1, rebuild=False):
            if code := do_step(step, recipe, **self.places):
                raise SystemExit(code)  # ranks have said why
            if step.name == until:
                return

    def set_length(self, asked: dict[str, Any]) -> None:
        """Give the recipe the steps that hours or tokens ask for; UserError where it has more."""
        adapt, former = self.recipe().adapt, self.state.get("steps", 0)
        a_step = adapt.batch_size * adapt.seq_length
        is_asked_anew = any(self.state.get(key) != value for key, value in asked.items())
        if not is_asked_anew and former:
            steps = former
        elif asked["tokens"] is not None:
            steps = max(FEWEST_STEPS, asked["tokens"] // a_step)
            if steps * a_step > asked["tokens"]:
                self.say(f"{asked['tokens']:,} tokens: {steps * a_step:,} are trained on, {steps} steps, the fewest")
        else:
            steps = self._steps_in(asked["hours"])
        if steps < former:
            trained = f"{adapt.steps * a_step:,} tokens of training"
            raise UserError(f"{self.path}: has {trained} already; a shorter one takes another --out")
        if steps != adapt.steps:
            steps_to_run(load_recipe(self.path, [f"adapt.steps={steps}"]), 1, rebuild=False)
        self.note(**asked, steps=steps)  # what is chosen is kept first, for after a kill
        if steps != adapt.steps:
            self.set("steps", steps)

    def _steps_in(self, hours: float) -> int:
        """Steps that fit into so many hours, with what goes before: by the time of the first ones, which stay."""
        begun, recipe = time.monotonic(), self.recipe()
        adapt, (folder, _, layout) = recipe.adapt, self._made(recipe)
        self.run(until="adapt")
        rows = read_json_lines(folder / "run/metrics.jsonl")
        rates = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        rate, a_step = statistics.median(rates[UNTIMED:]), adapt.batch_size * adapt.seq_length
        seconds = 3600 * hours - (time.monotonic() - begun) + adapt.steps * a_step / rate
        tokens, most = int(max(0, seconds) * rate), MOST_PASSES * TokenStore(layout.tokens(self.language)).num_tokens
        passes = f", {MOST_PASSES} passes over the text, the most" if tokens >= most else ""
        tokens = max(min(tokens, most), adapt.steps * a_step)
        took = tokens / rate / 3600
        self.say(f"{rate:,.0f} tokens a second here: {tokens:,} tokens{passes} in {took:.1f} hours of training")
        return tokens // a_step

    def _made(self, recipe: Recipe) -> tuple[Path, Path, WorkdirLayout]:
        """Folder of the adaptation, of the model that it is of, and the workdir's layout."""
        layout, (system,) = WorkdirLayout(recipe.workdir), recipe.chosen_systems
        return layout.adapt(system, self.language), layout.model(system), layout

    def look(self, others: list[str], strengths: Sequence[float], limits: Mapping[str, float]) -> Kept:
        """What a decoder has kept; the recipe gets the strength that keeps enough."""
        recipe = self.recipe()
        folder, model, layout = self._made(recipe)
        (system,), (task,), source = recipe.chosen_systems, recipe.finetune.tasks.values(), recipe.languages.source
        opened = itertools.islice(read_documents([task.test[self.language]]), OPENINGS)
        openings = [" ".join(" ".join(document).split()[:WORDS])[:CHARACTERS] for document in opened]
        places = model, layout.tokenizer(source), folder / "pack", layout.kept(system, self.language), task.test
        kept = find_kept(*places, source, others, strengths, limits, recipe.data.column, openings, self.say)
        if kept.strength != recipe.adapt.of(system).strength:
            shutil.rmtree(layout.root / EVALUATE / system.name / self.language, ignore_errors=True)  # of another one
            self.set("strength", kept.strength)
        return kept

    def export(self, kept: Kept | None) -> None:
        """Write out/model and out/adapter where they are not as they were, or of another training."""
        recipe = self.recipe()
        folder, base, _ = self._made(recipe)
        (system,), pack, out = recipe.chosen_systems, folder / "pack", self.out
        strength = recipe.adapt.of(system).strength

        def exported() -> dict[str, Any]:
            files = [
                file for name in ("model", "adapter") for file in (out / name).glob("*") if file.name != "README.md"
            ]
            facts = {str(file.relative_to(out)): [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
            return {"pack": identity(pack), "strength": strength, "kept": kept and kept.key, "files": facts}

        if self.state.get("exported") != exported():
            _replace(out / "model", lambda new: export_hf(base, new, pack, strength=strength))
            if system.trains == "low-rank":
                _replace(out / "adapter", lambda new: export_adapter(base, new, pack, strength))
            self.note(exported=exported())


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` write a folder anew that then takes the place of `path`."""
    new = path.with_name(f"{path.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    write(new)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    new.rename(path)


def _write(path: Path, values: Any) -> None:
    with atomic_write(path) as file:
        YAML().dump(values, file)
