"""The folder of an `extend` run: call.json (what was asked for, of which files), recipe.yaml, its
training's length.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ds_minimodel.artifacts.base import identity_of_base
from ds_minimodel.common.errors import UserError, is_out_of_memory
from ds_minimodel.common.files import (
    Content,
    as_json,
    atomic_write,
    read_json_lines,
    read_model,
    write_json,
)
from ds_minimodel.common.memory import trim
from ds_minimodel.config.extension import BATCHES, FEW_TOKENS, FEWEST_STEPS, MOST_PASSES, UNTIMED
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.config.schema import Recipe
from ds_minimodel.data.config import Data
from ds_minimodel.data.store import TokenStore
from ds_minimodel.hf.source import CARD
from ds_minimodel.pipeline.layout import CALL, LOCK, RECIPE, WorkdirLayout
from ds_minimodel.pipeline.registry import Step
from ds_minimodel.pipeline.run import do_step, steps_to_run
from ds_minimodel.text.corpus import draw_parts
from ds_minimodel.text.reader import find_text, identity_of_text


class Call:
    """An `extend` run in the folder `out`. state: content of call.json: the call, its length, what
    was exported.
    """

    def __init__(
        self,
        out: Path,
        language: str,
        ranks: int | None,
        hostfile: str | None,
        say: Callable[[str], None],
    ):
        self.out, self.language, self.say, self.path = out, language, say, out / RECIPE
        self.places: dict[str, Any] = {"path": self.path, "ranks": ranks, "hostfile": hostfile}
        is_begun = (out / CALL).exists()
        self.state = read_model(out / CALL, dict[str, Any], "delete that file") if is_begun else {}
        if not is_begun and {*out.iterdir()} > {out / LOCK}:
            raise UserError(f"{out}: exists and was not begun by extend; give another --out")

    def note(self, **facts: Any) -> None:
        """Keep facts of the state."""
        self.state |= facts
        write_json(self.out / CALL, self.state)

    def written(self) -> dict[str, list[int]]:
        """Size and time of the files in the folders of its models."""
        files = (file for name in ("model", "adapter") for file in (self.out / name).glob("*"))
        return {
            str(file.relative_to(self.out)): [file.stat().st_size, file.stat().st_mtime_ns]
            for file in files
        }

    def is_exported(self, facts: Mapping[str, Any]) -> bool:
        """Whether its models were made of these facts, and are as they were written; a card is the
        user's to edit.

        UserError where they are to be made again and a user's file, or an edited card, would go
        with them.
        """
        former, there = self.state.get("exported", {}), self.written()
        files: dict[str, list[int]] = former.get("files", {})
        changed = [
            name
            for name, own in files.items()
            if there.get(name) != own and Path(name).name != CARD
        ]
        if files and {**facts, "files": files} == former and not changed:
            return True
        for name in there if files else ():
            if name not in files or (Path(name).name == CARD and there[name] != files[name]):
                folder = self.out / Path(name).parts[0]
                raise UserError(
                    f"{self.out / name}: not of extend, which is to write {folder} anew; move it "
                    "away"
                )
        return False

    def begin(self, call: dict[str, Any], data: Data) -> None:
        """Record the call, the share that is held out, and the identity of its files; UserError
        where the folder was begun with others.
        """
        text, former = [find_text(files) for files in call["texts"].values()], self.state
        files: dict[str, Any] = {
            f"{call['model']}: {name}": content
            for name, content in identity_of_base(call["model"]).items()
        }
        for own in text:
            facts = identity_of_text(own, draw_parts(own, data.draw))
            files |= {str(path): facts for path, facts in zip(own, facts, strict=True)}
        files |= {
            str(path): Content.of(path)
            for path in find_text(call["chats"])
            if isinstance(path, Path)
        }
        call, hashes = as_json(
            call | {"files": files, "held_out": data.held_out}, former.get("hashes", {})
        )
        if self.path.exists():
            before, now = former["call"], call["files"]
            for file in sorted(before["files"].keys() | now):
                if before["files"].get(file) != now.get(file):
                    raise UserError(
                        f"{file}: another file than {self.out} was begun with; put it back, or "
                        "give another --out"
                    )
            for name, value in call.items():
                if before.get(name, value) != value:
                    was = f"no {name}" if before[name] is None else f"{name} {before[name]}"
                    raise UserError(
                        f"{self.out}: was begun with {was}; give another --out, or that again"
                    )
        self.note(call=call, hashes=former.get("hashes", {}) | hashes)

    def recipe(self) -> Recipe:
        """Read the recipe, which may have been edited; UserError where it does not make one model
        of the language.
        """
        recipe = load_recipe(self.path)
        if len(recipe.systems) != 1 or recipe.languages.targets != [self.language]:
            raise UserError(
                f"{self.path}: systems and languages.targets: extend makes one model of "
                f"{self.language}; take out what "
                f"was added, or use `ds-minimodel run {self.path}`"
            )
        return recipe

    def made(self, recipe: Recipe) -> tuple[Path, Path, WorkdirLayout]:
        """Folder of the adaptation, of the model that it is of, and the workdir's layout."""
        layout, (system,) = WorkdirLayout(recipe.workdir), recipe.chosen_systems
        return layout.adapt(system, self.language), layout.model(system), layout

    def set(self, key: str, value: float, section: str = "adapt") -> None:
        """Give a key of the recipe another value; all else stays as it is written."""
        values = YAML().load(self.path)
        values.setdefault(section, {})[key] = value
        self.write(values)

    def write(self, values: Mapping[str, Any]) -> None:
        """Write the recipe."""
        with atomic_write(self.path) as file:
            YAML().dump(values, file)

    def run(self, until: str | None = None) -> None:
        """Take the steps of the recipe, or those up to one, on its ranks."""
        recipe = self.recipe()
        for step in steps_to_run(recipe, self.places["ranks"] or 1, rebuild=False):
            if code := self._do(step, recipe):
                raise SystemExit(code)  # ranks have said why
            if step.name == until:
                return

    def _do(self, step: Step, recipe: Recipe) -> int:
        """Do a step, with half the micro-batch where adapt runs out of memory in this process; the
        exit code.
        """
        size = recipe.engine.micro_batch_size
        try:
            return do_step(step, recipe, **self.places)
        except (MemoryError, RuntimeError) as error:
            if step.name != "adapt" or size == 1 or not is_out_of_memory(error):
                raise
        trim()
        self.say(
            f"out of memory with micro-batches of {size}; going on with micro-batches of "
            f"{size // 2}"
        )
        self.set("micro_batch_size", size // 2, "engine")
        return self._do(step, self.recipe())

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
                self.say(
                    f"{asked['tokens']:,} tokens: {steps * a_step:,} are trained on, {steps} "
                    "steps, the fewest"
                )
        else:
            steps = self._steps_in(asked["hours"])
        if steps < former:
            trained = f"{adapt.steps * a_step:,} tokens of training"
            raise UserError(
                f"{self.path}: has {trained} already; a shorter one takes another --out"
            )
        sizes = former * a_step, steps * a_step
        if former and any(sizes[0] <= most < sizes[1] for most in (FEW_TOKENS, *BATCHES)):
            self.say(
                f"new tokens and the batch stay as chosen for {sizes[0]:,} tokens; another --out "
                "chooses anew"
            )
        if steps != adapt.steps:
            steps_to_run(load_recipe(self.path, [f"adapt.steps={steps}"]), 1, rebuild=False)
        self.note(**asked, steps=steps)  # what is chosen is kept first, for after a kill
        if steps != adapt.steps:
            self.set("steps", steps)

    def _steps_in(self, hours: float) -> int:
        """Steps that fit into `hours` with all that comes before, by the time of the first ones,
        which are kept.
        """
        begun, recipe = time.monotonic(), self.recipe()
        adapt, (folder, _, layout) = recipe.adapt, self.made(recipe)
        self.run(until="adapt")
        rows = read_json_lines(folder / "run/metrics.jsonl")
        rates = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        rate, a_step = statistics.median(rates[UNTIMED:]), adapt.batch_size * adapt.seq_length
        is_first, trained = "steps" not in self.state, adapt.steps * a_step
        before = max(0, time.monotonic() - begun - trained / rate) if is_first else 0
        tokens = int((3600 * hours - before) * rate)
        most = MOST_PASSES * TokenStore(layout.tokens(self.language)).num_tokens
        passes = f", {MOST_PASSES} passes over the text, the most" if tokens >= most else ""
        tokens = max(min(tokens, most), trained if is_first else a_step)
        took = tokens / rate / 3600
        self.say(
            f"{rate:,.0f} tokens a second here: {tokens:,} tokens{passes} in {took:.1f} hours of "
            "training"
        )
        return tokens // a_step


def made_in(out: Path) -> tuple[Path, Path]:
    """Find the folders of the model and of the adaptation that a call of extend has made in `out`."""
    recipe = load_recipe(out / RECIPE)
    (system,) = recipe.chosen_systems
    layout = WorkdirLayout(recipe.workdir)
    return layout.model(system), layout.adapt(system, recipe.languages.targets[0]) / "pack"
