"""The folder of an `extend` call.

It holds call.json (what it was begun with, and how far it is), recipe.yaml, the recipe's workdir
run/, and the models.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from ds_minimodel.artifacts.base import identity_of_base
from ds_minimodel.common.config import DECIDES_BY_CONTENT, DECIDES_NOTHING, decides
from ds_minimodel.common.errors import UserError, is_out_of_memory
from ds_minimodel.common.files import Content, Stored, as_json, atomic_write, read_model, write_json
from ds_minimodel.common.memory import trim
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.config.schema import Recipe
from ds_minimodel.data.config import Data
from ds_minimodel.extend.config import ExtendConfig, option_of
from ds_minimodel.pipeline.layout import CALL, LOCK, RECIPE, WorkdirLayout
from ds_minimodel.pipeline.registry import Step
from ds_minimodel.pipeline.run import Ranks, do_step, steps_to_run
from ds_minimodel.text.corpus import draw_parts
from ds_minimodel.text.reader import find_text, identity_of_text

DEFAULT_HOURS = 1.0


class TrainingBudget(NamedTuple):
    """What a training may take: hours, or else tokens."""

    hours: float | None
    tokens: int | None


class Finished(Stored):
    """A training that has ended, and whose models were written.

    Attributes:
        hours: That were asked for.
        tokens: That were asked for.
        steps: Of the training.
        pack: Identity of what was trained.
        strength: Merge strength.
        kept: Key of the decoder's comparison with the untouched one.
    """

    hours: float | None
    tokens: int | None
    steps: int
    pack: str
    strength: float
    kept: str | None


class State(Stored):
    """Content of call.json.

    Attributes:
        options: {option: its values} that the folder was begun with.
        files: {option: what tells each of its files from others}.
        held_out: Share of the text.
        hashes: By which files that have not changed are not read again.
        hours: Of the training.
        tokens: Of the training.
        steps: Of the training; 0 where none are chosen yet.
        seconds_a_line: That scoring a line took.
        finished: The last training that has ended.
        written: {file: [size, time]} of its models.
    """

    options: dict[str, list[str]] = {}
    files: dict[str, list[Any]] = {}
    held_out: float = 0.0
    hashes: dict[str, str] = {}
    hours: float | None = None
    tokens: int | None = None
    steps: int = 0
    seconds_a_line: float | None = None
    finished: Finished | None = None
    written: dict[str, list[int]] = {}


class Call:
    """A call of `extend` in its folder.

    Attributes:
        config: What it asks for.
        say: Called with each line that is said.
        out: The folder.
        path: File of the recipe.
        state: Content of call.json.
    """

    def __init__(self, config: ExtendConfig, say: Callable[[str], None] = print):
        self.config = config
        self.say = say
        self.out = config.folder
        self.path = self.out / RECIPE
        self.state = State()
        if (self.out / CALL).exists():
            self.state = read_model(self.out / CALL, State, "delete that file")
        elif {*self.out.iterdir()} > {self.out / LOCK}:
            raise UserError(f"{self.out}: exists and was not begun by extend; give another --out")

    def note(self, **facts: Any) -> None:
        """Change fields of the state, and write it."""
        self.state = self.state.model_copy(update=facts)
        write_json(self.out / CALL, self.state.model_dump())

    @property
    def budget(self) -> TrainingBudget:
        """What the training may take.

        Where the call does not say it, a length that was chosen before stays.
        """
        if self.config.hours is not None or self.config.tokens is not None:
            return TrainingBudget(self.config.hours, self.config.tokens)
        if self.state.steps:
            return TrainingBudget(self.state.hours, self.state.tokens)
        return TrainingBudget(DEFAULT_HOURS, None)

    # --- What it was begun with

    def record(self, data: Data) -> None:
        """Note the options and files that the folder is begun with."""
        files, hashes = as_json(_files_of(self.config, data), self.state.hashes)
        self.note(
            options=_options_of(self.config),
            files=files,
            held_out=data.held_out,
            hashes=hashes,
        )

    def check_same_options(self) -> None:
        """Raise UserError where the folder was begun with other options."""
        given = _options_of(self.config)
        former = self.state.options
        for option in sorted(given | former):
            former_values = former.get(option, [])
            if not _name_the_same(given.get(option, []), former_values):
                raise UserError(self._difference(option, former_values))

    def check_same_files(self, data: Data) -> None:
        """Raise UserError where files differ from those that the folder was begun with."""
        files, hashes = as_json(_files_of(self.config, data), self.state.hashes)
        for option, contents in files.items():
            for content, before in zip(contents, self.state.files[option], strict=True):
                if content != before:
                    raise UserError(
                        f"{content['name']} ({option}): another file than {self.out} was begun "
                        "with; put it back, or give another --out"
                    )
        if data.held_out != self.state.held_out:
            raise UserError(
                f"{self.path}: data.held_out: {self.out} was begun with held_out "
                f"{self.state.held_out}; put it back, or give another --out"
            )
        self.note(hashes=self.state.hashes | hashes)

    def _difference(self, option: str, former: Sequence[str]) -> str:
        """Return a sentence on an option that is not as it was."""
        if former:
            begun = f"{self.out} was begun with {' '.join(former)}"
            advice = "give that again"
        else:
            begun = f"{self.out} was begun without it"
            advice = "leave it out"
        if option == "--strength":
            advice = f"`ds-minimodel export-hf {self.out} NEW --strength S` writes another"
        return f"{option}: {begun}; {advice}, or give another --out"

    # --- The recipe

    def recipe(self) -> Recipe:
        """Read the recipe, which may have been edited.

        Raises:
            UserError: It does not make one model of the language.
        """
        recipe = load_recipe(self.path)
        if len(recipe.systems) != 1 or recipe.languages.targets != [self.config.language]:
            raise UserError(
                f"{self.path}: systems and languages.targets: extend makes one model of "
                f"{self.config.language}; take out what was added, or use "
                f"`ds-minimodel run {self.path}`"
            )
        return recipe

    def write(self, values: Mapping[str, Any]) -> None:
        """Write the recipe."""
        with atomic_write(self.path) as file:
            YAML().dump(values, file)

    def set(self, section: str, key: str, value: float) -> None:
        """Change the value of a key of the recipe; all else stays as it is written."""
        values = YAML().load(self.path)
        values.setdefault(section, {})[key] = value
        self.write(values)

    def set_system(self, system: str) -> None:
        """Replace the system of the recipe."""
        values = YAML().load(self.path)
        values["systems"] = [system]
        self.write(values)

    def run(self, until: str | None = None) -> None:
        """Do the steps of the recipe, or those up to the one named `until`, on its ranks."""
        recipe = self.recipe()
        for step in steps_to_run(recipe, self.config.ranks or 1, rebuild=False):
            code = self._do(step, recipe)
            if code:
                # The ranks have said why.
                raise SystemExit(code)
            if step.name == until:
                return

    def _do(self, step: Step, recipe: Recipe) -> int:
        """Do a step and return the exit code.

        Where adapt runs out of memory in this process, it goes on with half the micro-batch.
        """
        size = recipe.engine.micro_batch_size
        try:
            return do_step(
                step,
                recipe,
                path=self.path,
                ranks=Ranks(self.config.ranks, self.config.hostfile),
            )
        except (MemoryError, RuntimeError) as error:
            if step.name != "adapt" or size == 1 or not is_out_of_memory(error):
                raise
        trim()
        half = size // 2
        self.say(
            f"out of memory with micro-batches of {size}; continuing with micro-batches of {half}"
        )
        self.set("engine", "micro_batch_size", half)
        return self._do(step, self.recipe())


def adaptation_of(recipe: Recipe) -> Path:
    """Return the folder of the one adaptation that a recipe trains."""
    (system,) = recipe.chosen_systems
    (language,) = recipe.languages.targets
    return WorkdirLayout(recipe.workdir).adapt(system, language)


def _deciding(config: ExtendConfig) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (field, option, values) of each field that is given and may not change.

    A mapping has an option for each key, such as `--known-text cs`.
    """
    for name in ExtendConfig.model_fields:
        value = getattr(config, name)
        if decides(ExtendConfig, name) is DECIDES_NOTHING or value in (None, [], {}):
            continue
        if isinstance(value, dict):
            for key, values in value.items():
                yield name, f"{option_of(name)} {key}", values
        elif isinstance(value, list):
            yield name, option_of(name), value
        else:
            yield name, option_of(name), [str(value)]


def _options_of(config: ExtendConfig) -> dict[str, list[str]]:
    return {option: values for _, option, values in _deciding(config)}


def _files_of(config: ExtendConfig, data: Data) -> dict[str, list[Any]]:
    """Return {option: what tells each of its files from others} of the options that name files.

    Of text to train on or to keep, which may be large, only what is drawn counts.
    """
    files: dict[str, list[Any]] = {}
    for name, option, values in _deciding(config):
        if decides(ExtendConfig, name) is not DECIDES_BY_CONTENT:
            continue
        if name == "model":
            contents = identity_of_base(config.model).items()
            files[option] = [{"name": file, "sha256": content} for file, content in contents]
        elif name in ("pairs", "test_pairs", "test_task"):
            files[option] = [{"name": value, "sha256": Content.of(value)} for value in values]
        else:
            sources = find_text(values)
            parts = draw_parts(sources, data.draw) if values in config.texts.values() else ()
            files[option] = identity_of_text(sources, parts)
    return files


def _name_the_same(given: Sequence[str], former: Sequence[str]) -> bool:
    """Return whether two lists of values are the same, or paths to the same files."""
    return given == former or _real_paths(given) == _real_paths(former)


def _real_paths(values: Sequence[str]) -> list[str]:
    """Return the real paths of the files that values name; what names no file stays as it is."""
    names = []
    for value in values:
        names += sorted(glob.glob(value, recursive=True)) or [value]
    return [os.path.realpath(name) if os.path.exists(name) else name for name in names]
