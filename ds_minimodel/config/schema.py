"""The recipe: one typed, strict YAML file that drives every step.

Configuration flows one way, recipe -> plan -> DeepSpeed JSON. A recipe is frozen once read; an
unknown key, a wrong type or values that contradict each other are refused with file, line and key.
"""

import functools
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    create_model,
    model_validator,
)

from ds_minimodel.common.config import EachOnce, OneOf, Section, Seed
from ds_minimodel.common.names import Name, check_workdir
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.config.base import Base
from ds_minimodel.config.steps import Adapt, BuildMini, Finetune
from ds_minimodel.config.systems import SYSTEMS, Depth, Mini, System
from ds_minimodel.data.config import Data, LosslessTokenizerSection, TokenizerSection
from ds_minimodel.evaluation import KINDS
from ds_minimodel.models import BODIES
from ds_minimodel.models.heads import Pooling
from ds_minimodel.models.kind import BodyConfig
from ds_minimodel.models.objectives import OBJECTIVES, Objective
from ds_minimodel.training.config import AdamWConfig, CheckpointPolicy, Engine, Training


class Languages(Section):
    """The languages of a recipe."""

    source: Name
    """Language of steps 1, 1b and 3."""
    targets: Annotated[list[Name], Field(min_length=1), EachOnce]
    """Languages of step 2."""

    @property
    def all(self) -> list[str]:
        """Source and targets."""
        return [self.source, *self.targets]


class Recipe(Section):
    """A whole recipe, of the class that `recipe_class` makes for its kind of body.

    reading.py validates it with the context {"base": Base or None, "name": as `name` below}.
    """

    workdir: Annotated[str, AfterValidator(check_workdir)]
    """Folder for all results."""
    seed: Seed = 1
    """Decides weights, order, masks and dropout; finetuning seeds count up from it."""
    systems: Annotated[list[Annotated[str, OneOf(SYSTEMS)]], Field(min_length=1), EachOnce]
    """Systems to build and compare."""
    languages: Languages
    base: str | None = None
    """Model to start from, whose sizes `model` then has; nothing is pretrained."""
    pooling: Pooling | None = None
    """How the last states become a vector, if the base does not say it."""
    tokenizer: TokenizerSection = TokenizerSection()
    data: Data
    model: BodyConfig
    mini: Mini = Mini()
    optimizer: AdamWConfig = AdamWConfig()
    pretrain: Training
    build_mini: BuildMini
    adapt: Adapt
    finetune: Finetune = Finetune()
    engine: Engine = Engine()
    checkpoint: CheckpointPolicy = CheckpointPolicy()

    _base: Base | None = PrivateAttr(None)
    _name: str = PrivateAttr("")

    @property
    def name(self) -> str:
        """File and overrides, as they were given; "" of a recipe that was not read."""
        return self._name

    @property
    def chosen_systems(self) -> list[System]:
        """The systems that it builds."""
        return [SYSTEMS[name] for name in self.systems]

    @property
    def bodies(self) -> list[System]:
        """The systems whose bodies are pretrained and finetuned, each once, in order."""
        names = dict.fromkeys(system.body_name for system in self.chosen_systems)
        return [SYSTEMS[name] for name in names]

    def scored_as(self, system: System, language: str) -> System:
        """Return the system under which the scores of `system` in a language are stored.

        Systems of one body have the same scores in the source language, which are stored once.
        """
        return SYSTEMS[system.body_name] if language == self.languages.source else system

    @property
    def reads_mini_depth(self) -> bool:
        """Whether mini.depth says anything of the systems."""
        return any(
            system.builds_mini or Depth.MINI in (system.adapts_at, *system.body_heads)
            for system in self.chosen_systems
        )

    @property
    def builds_minis(self) -> bool:
        """Whether step 1b has anything to do."""
        return any(system.builds_mini for system in self.chosen_systems)

    @property
    def source_vocab_size(self) -> int:
        """Ids of the source language's vocabulary: the base's, or without a base the recipe's."""
        return self.tokenizer.vocab_size if self._base is None else self._base.vocab_size

    @property
    def num_base(self) -> int:
        """First ids of a target's vocabulary that are the base's, and do not train.

        0 where a target has a vocabulary of its own.
        """
        return self.source_vocab_size if self.tokenizer.vocabulary == "extend" else 0

    @property
    def target_vocab_size(self) -> int:
        """Ids of a target language's vocabulary, with those of the base that it extends."""
        return self.num_base + self.tokenizer.vocab_size

    @property
    def body_config(self) -> BodyConfig:
        """The body as the section `model` has it, with all of its layers."""
        return BODIES[self.model.kind].model_validate(self.model.model_dump())

    def body_of(self, system: System) -> tuple[BodyConfig, tuple[int, ...]]:
        """Return (architecture of a system's body, numbers of layers after which it has heads)."""
        depths = system.head_depths(self.model.num_layers, self.mini)
        return self.body_config.with_layers(depths[-1]), depths

    def adapt_depth(self, system: System) -> int:
        """Return the number of layers that step 2 of a system runs."""
        return system.adapt_depth(self.model.num_layers, self.mini)

    @property
    def trained_by(self) -> Objective:
        """The declaration of the objective: what the kind of body is made for."""
        return OBJECTIVES[self.model.trained_with]

    @property
    def learns_from_pairs(self) -> bool:
        """Whether step 2 trains on lines of pairs, not on text."""
        return not self.trained_by.predicts_tokens

    @property
    def languages_of_text(self) -> list[str]:
        """Languages whose text is trained on; none where pairs are."""
        if self.learns_from_pairs:
            return []
        # A body is pretrained and a mini-model is built on text of the source; step 2 may read it.
        step_2_reads = any(self.adapt.of(system).reads_source for system in self.chosen_systems)
        reads_source = self.base is None or self.builds_minis or step_2_reads
        return self.languages.all if reads_source else self.languages.targets

    @property
    def languages_kept(self) -> list[str]:
        """Languages beside the targets whose text an extended vocabulary cuts as before."""
        others = [language for language in self.data.text if language not in self.languages.targets]
        return others if self.num_base else []

    @property
    def languages_of_corpora(self) -> list[str]:
        """Languages whose text is read, to train on it or for a vocabulary."""
        kept = self.languages_kept
        known = dict.fromkeys([*self.languages.all, *kept])
        # Where pairs are trained on, text serves the vocabulary alone.
        read = self.data.text if self.learns_from_pairs else self.languages_of_text
        return [language for language in known if language in read or language in kept]

    def languages_of_task(self, name: str) -> list[str]:
        """Return the recipe's languages that the task `name` has test data in."""
        tested = self.finetune.tasks[name].test
        return [language for language in self.languages.all if language in tested]

    @model_validator(mode="before")
    @classmethod
    def _defaults_over_a_base(cls, values: Any, info: ValidationInfo) -> Any:
        """Fill in what a base decides.

        That is the section `model`, which may not say otherwise, and how new tokens start.
        """
        base = (info.context or {}).get("base")
        model = values.get("model", {})
        adapt = values.get("adapt", {})
        tokenizer = values.get("tokenizer")
        # What is no section is refused with its line later.
        if base is None or not isinstance(model, dict) or not isinstance(adapt, dict):
            return values
        of_base = base.config.model_dump()
        for key, value in model.items():
            if key in of_base and value != of_base[key]:
                raise ValueError(
                    f"model.{key} {value} is not the base's {of_base[key]}; leave the key out"
                )
        if isinstance(tokenizer, dict) and tokenizer.get("vocabulary") == "extend":
            adapt = {"initialisation": "pieces", **adapt}
        return {**values, "model": {**model, **of_base}, "adapt": adapt}

    @model_validator(mode="after")
    def _base_serves(self, info: ValidationInfo) -> "Recipe":
        context = info.context or {}
        self._base = context.get("base")
        self._name = context.get("name", "")
        assert (self.base is None) == (self._base is None), "reading.py reads recipes with a base"
        if self._base is None:
            if self.num_base:
                raise ValueError(
                    "tokenizer.vocabulary extend: there is no base whose vocabulary is extended"
                )
            return self
        if self.num_base and "vocab_size" not in self.tokenizer.model_fields_set:
            raise ValueError(
                "tokenizer.vocab_size: say how many tokens are added; with any number in its place "
                "`ds-minimodel fertility` shows what each number brings"
            )
        able = [system.name for system in SYSTEMS.values() if system.starts_from_base]
        others = [name for name in self.systems if name not in able]
        if others:
            raise ValueError(
                f"{others[0]} cannot start from a base, it is pretrained with heads of its own; "
                f"use {' or '.join(able)}"
            )
        if self._base.language not in (UNKNOWN_LANGUAGE, self.languages.source):
            raise ValueError(
                f"languages.source {self.languages.source}: the base's pack is of "
                f"{self._base.language}"
            )
        return self

    @model_validator(mode="after")
    def _adapt_serves_the_systems(self) -> "Recipe":
        adapt = self.adapt
        systems = self.chosen_systems
        for key in ("replay", "new_token_penalty"):
            if getattr(adapt, key) and not self.num_base:
                raise ValueError(
                    f"adapt.{key}: a vocabulary of its own has no ids for source text; extend the "
                    "base's"
                )
        if self.learns_from_pairs:
            if not self.num_base:
                raise ValueError(
                    "tokenizer.vocabulary: a model that gives vectors or labels keeps its own; "
                    "give extend"
                )
            if adapt.replays_own or adapt.new_token_penalty:
                key = "replay_from base" if adapt.replays_own else "new_token_penalty"
                raise ValueError(
                    f"adapt.{key}: only models that predict tokens take it; leave it out"
                )
        if adapt.replays_own and not adapt.replay:
            raise ValueError(
                "adapt.replay_from base: nothing is replayed; give replay, a share of the samples"
            )
        if adapt.replays_own and not self.trained_by.causal:
            raise ValueError(
                "adapt.replay_from base: an encoder writes nothing by itself; replay is of text "
                "there"
            )
        if adapt.replay_kl and not (
            adapt.replays_own and any(system.trains == "low-rank" for system in systems)
        ):
            raise ValueError(
                "adapt.replay_kl: lora alone reads it, of what the base writes by itself; give "
                "replay_from base"
            )
        if adapt.new_token_penalty and all(system.trains for system in systems):
            raise ValueError(
                f"adapt.new_token_penalty: {self.systems[0]} trains the body, and its states move; "
                "use adapt.replay"
            )
        unknown = adapt.rates.keys() - set(self.systems)
        if unknown:
            raise ValueError(
                f"adapt.rates: {min(unknown)} is not among the systems {', '.join(self.systems)}"
            )
        for system in systems:
            if system.trains and self.finetune.finetuned_tasks:
                raise ValueError(
                    f"systems: {system.name} trains the body itself, not the one that tasks are "
                    f"finetuned on; leave out finetune.tasks.{min(self.finetune.finetuned_tasks)}"
                )
            if system.trains == "low-rank" and self.engine.tensor_parallel > 1:
                raise ValueError(
                    f"engine.tensor_parallel: the updates of {system.name} are not cut; give 1"
                )
        return self

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Recipe":
        layers = self.model.num_layers
        mini = self.mini
        max_depth = layers
        if any(system.needs_shallow_mini for system in self.chosen_systems):
            max_depth -= 1
        if self.reads_mini_depth and mini.depth > max_depth:
            raise ValueError(f"mini.depth {mini.depth} must be below model.num_layers {layers}")
        if (
            self.builds_minis
            and self.build_mini.initialisation == "last"
            and mini.new_layers > layers
        ):
            raise ValueError(
                f"build_mini.initialisation last: the body has {layers} layers, not "
                f"{mini.new_layers}"
            )
        for key, size in self.model.split_sizes.items():
            if size % self.engine.tensor_parallel:
                raise ValueError(
                    f"engine.tensor_parallel {self.engine.tensor_parallel} does not divide {key} "
                    f"{size}"
                )
        lengths = {}
        if self.base is None:
            lengths["pretrain"] = self.pretrain.seq_length
        if self.builds_minis:
            lengths["build_mini"] = self.build_mini.seq_length
        lengths["adapt"] = self.adapt.seq_length
        for name in self.finetune.tasks:
            task = self.finetune.task(name)
            length = task.max_length or 0
            objective = KINDS[task.kind].objective
            lengths[f"finetune.tasks.{name}"] = length
            if length < task.min_length:
                raise ValueError(
                    f"finetune.tasks.{name}: max_length {length}: examples need "
                    f"{task.min_length} or more"
                )
            if objective not in ("", self.trained_by.name):
                raise ValueError(
                    f"finetune.tasks.{name}.kind {task.kind}: it needs a body that is trained with "
                    f"{objective}, not with {self.trained_by.name}"
                )
        for name, length in lengths.items():
            if length > self.model.max_positions:
                raise ValueError(
                    f"{name}: sequences of {length} tokens do not fit model.max_positions "
                    f"{self.model.max_positions}"
                )
        return self

    @model_validator(mode="after")
    def _languages_have_text(self) -> "Recipe":
        source = self.languages.source
        targets = self.languages.targets
        data = self.data
        if source in targets:
            raise ValueError(f"languages.targets: {source} is the source")
        if data.chats and not (self.num_base and self.trained_by.causal):
            raise ValueError(
                "data.chats: are of a decoder whose vocabulary is extended, by its own chat "
                "template"
            )
        others = data.chats.keys() - set(targets)
        if others:
            raise ValueError(
                f"data.chats: {min(others)} is not among languages.targets; dialogues are of those"
            )
        for key, files in (("pairs", data.pairs), ("test_pairs", data.test_pairs)):
            others = files.keys() - set(targets)
            if others:
                raise ValueError(
                    f"data.{key}: {min(others)} is not among languages.targets; pairs are of the "
                    "source and a target"
                )
        missing = [language for language in targets if language not in data.pairs]
        if missing and (self.learns_from_pairs or self.adapt.aligns):
            reader = "adapt.initialisation aligned reads them"
            if self.learns_from_pairs:
                reader = "a model that gives vectors or labels learns a language from them"
            raise ValueError(f"data.pairs: there are no files for {missing[0]}; {reader}")
        # Languages of the recipe whose text no step reads need no files.
        unread = set(self.languages.all) - set(self.languages_of_text)
        known = unread | data.text.keys()
        named = {"languages": self.languages_of_text, "data.min_words": data.min_words}
        for name, task in self.finetune.tasks.items():
            named[f"finetune.tasks.{name}.test"] = task.test
        for key, languages in named.items():
            for language in languages:
                if language not in known:
                    raise ValueError(f"{key}: data.text has no files for {language}")
        return self


@functools.cache
def recipe_class(kind: type[BodyConfig], trained_with: str = "") -> type[Recipe]:
    """Return the class of recipes for a kind of body and an objective.

    Its section `model` has the keys of the kind, and its steps have those of the objective.

    Args:
        kind: configuration of the kind of body.
        trained_with: name of the objective, where it is not the one of the kind.
    """

    def section(name: str, *bases: type[Section], **fields: Any) -> type[Section]:
        """A section with the keys of `bases`; a key of two has the default of the first."""
        return create_model(name, __base__=bases, __module__=__name__, **fields)

    objective = OBJECTIVES[trained_with or kind.objective]
    name_of_kind = (Annotated[str, OneOf(BODIES)], kind.model_fields["kind"].default)
    sections = {
        "tokenizer": LosslessTokenizerSection if objective.needs_lossless else TokenizerSection,
        "model": section("Model", kind, kind=name_of_kind),
        "pretrain": section("Training", Training, objective.settings),
        "build_mini": section("BuildMini", BuildMini, objective.settings),
        "adapt": section("Adapt", Adapt, objective.settings),
    }
    fields: dict[str, Any] = {name: (part, part()) for name, part in sections.items()}
    return create_model("Recipe", __base__=Recipe, __module__=__name__, **fields)


# A recipe whose defaults are the paper's.
PaperRecipe = recipe_class(BODIES["roberta"])
