"""The recipe: one typed, strict YAML file that drives every step.

Configuration flows one way, recipe -> plan -> DeepSpeed JSON. A recipe is frozen once read; an unknown key,
a wrong type or values that contradict each other are refused with file, line and key.
"""

import functools
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, create_model, model_validator

from ds_minimodel.common.config import EachOnce, OneOf, Section, Seed
from ds_minimodel.common.names import Name, check_workdir
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.data.config import Data, LosslessTokenizerSection, TokenizerSection
from ds_minimodel.models import BODIES
from ds_minimodel.models.kind import BodyConfig
from ds_minimodel.models.objectives import OBJECTIVES, Objective
from ds_minimodel.recipe.base import Base
from ds_minimodel.recipe.steps import Adapt, BuildMini, Finetune, Mini
from ds_minimodel.recipe.systems import SYSTEMS, Depth, System
from ds_minimodel.tasks import KINDS
from ds_minimodel.training.config import AdamWConfig, CheckpointPolicy, Engine, Training


class Languages(Section):
    source: Name
    """Language of steps 1, 1b and 3."""
    targets: Annotated[list[Name], Field(min_length=1)]
    """Languages of step 2."""

    @model_validator(mode="after")
    def _differ(self) -> "Languages":
        if self.source in self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError("the source and the targets must all be different languages")
        return self

    @property
    def all(self) -> list[str]:
        return [self.source, *self.targets]


class ModelSection(BodyConfig):
    """The body: the keys of its kind (models/), and how one starts in step 1."""

    initialisation: str = "random"
    """How a body starts in step 1."""

    @property
    def body(self) -> BodyConfig:
        """The body alone, with all of its layers."""
        config = BODIES[self.kind]
        return config.model_validate(self.model_dump(include=set(config.model_fields)))


class Recipe(Section):
    """A whole recipe, of the class that `recipe_class` makes for its kind of body and its objective.

    One with a base is validated with that Base in its context, {"base": Base, "name": what a command line has for the
    recipe} (reading.py).
    """

    workdir: Annotated[str, AfterValidator(check_workdir)]
    """Folder for all that the recipe makes."""
    seed: Seed = 1
    """Of weights, order, masks and dropout. Finetuning counts on from it."""
    systems: Annotated[list[Annotated[str, OneOf(SYSTEMS)]], Field(min_length=1), EachOnce]
    """What is built and compared."""
    languages: Languages
    base: str | None = None
    """Model to start from. Nothing is pretrained then, and `model` is the base's."""
    tokenizer: TokenizerSection = TokenizerSection()
    data: Data
    objective: Annotated[str, OneOf(OBJECTIVES)]
    """What is trained. Default: what the kind of body is made for."""
    model: ModelSection
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

    def model_post_init(self, context: Any, /) -> None:
        self._base, self._name = (context or {}).get("base"), (context or {}).get("name", "")
        assert (self.base is None) == (self._base is None), "a recipe with a base is read by reading.py"

    @property
    def name(self) -> str:
        """File and overrides, as they were given; "" of a recipe that was not read."""
        return self._name

    @property
    def chosen_systems(self) -> list[System]:
        return [SYSTEMS[name] for name in self.systems]

    @property
    def bodies(self) -> list[System]:
        """The systems whose bodies are pretrained and finetuned, each once, in the order of the recipe's systems."""
        return [SYSTEMS[name] for name in dict.fromkeys(system.body_name for system in self.chosen_systems)]

    def scored_as(self, system: System, language: str) -> System:
        """The system whose scores in a language it has: in the source's the one that its body is named for."""
        return SYSTEMS[system.body_name] if language == self.languages.source else system

    @property
    def reads_mini_depth(self) -> bool:
        """Whether mini.depth says anything of the systems."""
        return any(
            system.builds_mini or Depth.MINI in (system.adapts_at, *system.body_heads) for system in self.chosen_systems
        )

    @property
    def builds_minis(self) -> bool:
        return any(system.builds_mini for system in self.chosen_systems)

    @property
    def source_vocab_size(self) -> int:
        """Pieces of the source language: the base's, or without one the recipe's."""
        return self.tokenizer.vocab_size if self._base is None else self._base.vocab_size

    @property
    def num_base(self) -> int:
        """First ids of a target's vocabulary that are the base's; 0 where it has one of its own."""
        return self.source_vocab_size if self.tokenizer.vocabulary == "extend" else 0

    @property
    def num_frozen_tokens(self) -> int:
        """As many of them as do not train, and are not in packs."""
        return self.adapt.frozen_of(self.num_base)

    @property
    def target_vocab_size(self) -> int:
        """Ids of a target language's vocabulary, with those of the base that it extends."""
        return self.num_base + self.tokenizer.vocab_size

    @property
    def body_config(self) -> BodyConfig:
        """The body as the section `model` has it, with all of its layers."""
        return self.model.body

    def body_of(self, system: System) -> tuple[BodyConfig, tuple[int, ...]]:
        """(architecture of a system's body, numbers of layers after which it has heads)."""
        depths = system.head_depths(self.model.num_layers, self.mini)
        return self.body_config.with_layers(depths[-1]), depths

    def adapt_depth(self, system: System) -> int:
        """Number of layers that step 2 of a system runs."""
        return system.adapt_depth(self.model.num_layers, self.mini)

    @property
    def trained_by(self) -> Objective:
        """The declaration of the objective."""
        return OBJECTIVES[self.objective]

    @property
    def languages_of_text(self) -> list[str]:
        """Languages whose text is trained on: the source too where a body is pretrained or a mini-model built."""
        in_step_2 = any(self.adapt.of(system).reads_source for system in self.chosen_systems)
        needs_source = self.base is None or self.builds_minis or in_step_2
        return self.languages.all if needs_source else self.languages.targets

    @property
    def languages_of_corpora(self) -> list[str]:
        """Languages whose text is read: for its vocabulary too, or for what another one's must leave as it is."""
        source = [self.languages.source] if self.num_base and self.languages.source in self.data.text else []
        return [language for language in self.languages.all if language in {*self.languages_of_text, *source}]

    def languages_of_task(self, name: str) -> list[str]:
        """The recipe's languages that the task `name` has test data in."""
        return [language for language in self.languages.all if language in self.finetune.tasks[name].test]

    @model_validator(mode="before")
    @classmethod
    def _model_is_the_bases(cls, values: Any, info: ValidationInfo) -> Any:
        """The section `model` and the objective of a recipe with a base; what is given of them must agree."""
        base = (info.context or {}).get("base")
        given = values.get("model", {}) if isinstance(values, dict) else None
        if base is None or not isinstance(given, dict):
            return values
        bases = base.config.model_dump()
        for key in bases.keys() & given.keys():
            if given[key] != bases[key]:
                raise ValueError(f"model.{key} {given[key]} is not the base's {bases[key]}; leave the key out")
        if values.get("objective", base.objective) != base.objective:
            raise ValueError(f"objective {values['objective']} is not the base's {base.objective}; leave the key out")
        return {**values, "model": {**given, **bases}, "objective": base.objective}

    @model_validator(mode="before")
    @classmethod
    def _new_rows_begin_as_those_of_their_parts(cls, values: Any) -> Any:
        """The initialisation of a vocabulary that is extended, where none is given."""
        tokenizer, adapt = (values.get(key, {}) if isinstance(values, dict) else None for key in ("tokenizer", "adapt"))
        if not isinstance(tokenizer, dict) or not isinstance(adapt, dict) or tokenizer.get("vocabulary") != "extend":
            return values
        if "vocab_size" not in tokenizer:
            raise ValueError(
                "tokenizer.vocab_size: say how many tokens are added; with any number in its place `ds-minimodel "
                "fertility` shows what each number brings"
            )
        return {**values, "adapt": {"initialisation": "pieces", **adapt}}

    @model_validator(mode="after")
    def _base_serves(self) -> "Recipe":
        if self._base is None:
            if self.num_base:
                raise ValueError("tokenizer.vocabulary extend: there is no base whose vocabulary is extended")
            return self
        able = [system.name for system in SYSTEMS.values() if system.starts_from_base]
        others = [name for name in self.systems if name not in able]
        if others:
            raise ValueError(
                f"{others[0]} cannot start from a base, it is pretrained with heads of its own; use {' or '.join(able)}"
            )
        if self._base.language not in (UNKNOWN_LANGUAGE, self.languages.source):
            raise ValueError(f"languages.source {self.languages.source}: the base's pack is of {self._base.language}")
        return self

    @model_validator(mode="after")
    def _source_is_kept(self) -> "Recipe":
        for key in ("replay", "new_token_penalty"):
            if getattr(self.adapt, key) and not self.num_base:
                raise ValueError(f"adapt.{key}: a vocabulary of its own has no ids for source text; extend the base's")
        if self.adapt.replay_from == "base" and not self.trained_by.causal:
            raise ValueError("adapt.replay_from base: an encoder writes nothing by itself; replay is of text there")
        updated = any(system.trains == "low-rank" for system in self.chosen_systems)
        if self.adapt.replay_kl and not (updated and self.num_frozen_tokens):
            raise ValueError(
                "adapt.replay_kl: the body as it was is there only beside lora over frozen base_embeddings"
            )
        if self.adapt.base_embeddings == "trained" and not self.num_base:
            raise ValueError(
                "adapt.base_embeddings trained: no vocabulary is extended, and all embeddings train; leave it out"
            )
        if self.adapt.new_token_penalty and not self.num_frozen_tokens:
            raise ValueError(
                "adapt.new_token_penalty: the base's embeddings train, and their scores move; use adapt.replay"
            )
        if self.adapt.new_token_penalty and all(system.trains for system in self.chosen_systems):
            raise ValueError(
                f"adapt.new_token_penalty: {self.systems[0]} trains the body, and its states move; use adapt.replay"
            )
        return self

    @model_validator(mode="after")
    def _vectors_are_there(self) -> "Recipe":
        read = set(self.languages.all if self.adapt.initialisation == "ofa" else [])
        for language in sorted(read ^ self.adapt.word_vectors.keys()):
            what = "no file for" if language in read else "nothing reads that of"
            raise ValueError(f"adapt.word_vectors: {what} {language}; ofa reads one for the source and every target")
        return self

    @model_validator(mode="after")
    def _body_sees_what_the_objective_wants(self) -> "Recipe":
        if self.body_config.causal != self.trained_by.causal:
            fitting = [name for name, objective in OBJECTIVES.items() if objective.causal == self.body_config.causal]
            raise ValueError(
                f"objective {self.objective}: a body of kind {self.model.kind} is trained with {' or '.join(fitting)}"
            )
        for name, task in self.finetune.tasks.items():
            if KINDS[task.kind].objective not in ("", self.objective):
                raise ValueError(
                    f"finetune.tasks.{name}.kind {task.kind}: it needs a body that is trained with "
                    f"{KINDS[task.kind].objective}, not with {self.objective}"
                )
        return self

    @model_validator(mode="after")
    def _bodies_that_train_fit(self) -> "Recipe":
        unknown = sorted(self.adapt.rates.keys() - set(self.systems))
        if unknown:
            raise ValueError(f"adapt.rates: {unknown[0]} is not among the systems {', '.join(self.systems)}")
        for system in self.chosen_systems:
            if system.trains and self.finetune.finetuned_tasks:
                raise ValueError(
                    f"systems: {system.name} trains the body itself, not the one that tasks are finetuned on; "
                    f"leave out finetune.tasks.{min(self.finetune.finetuned_tasks)}"
                )
            if system.trains == "low-rank" and self.engine.tensor_parallel > 1:
                raise ValueError(f"engine.tensor_parallel: the updates of {system.name} are not cut; give 1")
        return self

    @model_validator(mode="after")
    def _depths_agree(self) -> "Recipe":
        layers, mini, systems = self.model.num_layers, self.mini, self.chosen_systems
        if self.reads_mini_depth and mini.depth > layers - any(system.needs_shallow_mini for system in systems):
            raise ValueError(f"mini.depth {mini.depth} must be below model.num_layers {layers}")
        if self.builds_minis and self.build_mini.initialisation == "last" and mini.new_layers > layers:
            raise ValueError(f"build_mini.initialisation last: the body has {layers} layers, not {mini.new_layers}")
        return self

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Recipe":
        for key, size in self.model.split_sizes.items():
            if size % self.engine.tensor_parallel:
                raise ValueError(f"engine.tensor_parallel {self.engine.tensor_parallel} does not divide {key} {size}")
        lengths = {"pretrain": self.pretrain.seq_length} if self.base is None else {}
        lengths |= {"build_mini": self.build_mini.seq_length} if self.builds_minis else {}
        lengths |= {"adapt": self.adapt.seq_length}
        for name in self.finetune.tasks:
            task = self.finetune.task(name)
            length, least = task.max_length or 0, task.least_length
            lengths |= {f"finetune.tasks.{name}": length}
            if length < least:
                raise ValueError(f"finetune.tasks.{name}: max_length {length}: examples need {least} or more")
        for name, length in lengths.items():
            if length > self.model.max_positions:
                raise ValueError(
                    f"{name}: sequences of {length} tokens do not fit model.max_positions {self.model.max_positions}"
                )
        return self

    @model_validator(mode="after")
    def _languages_have_text(self) -> "Recipe":
        served = {*self.data.text, *({*self.languages.all} - {*self.languages_of_text})}
        named = {"languages": self.languages_of_text, "data.min_words": self.data.min_words}
        if self.data.chats and not (self.num_base and self.trained_by.causal):
            raise ValueError("data.chats: are of a decoder whose vocabulary is extended, by its own chat template")
        if others := sorted(self.data.chats.keys() - set(self.languages.targets)):
            raise ValueError(f"data.chats: {others[0]} is not among languages.targets; dialogues are of those")
        named |= {f"finetune.tasks.{name}.test": task.test for name, task in self.finetune.tasks.items()}
        for key, languages in named.items():
            for language in languages:
                if language not in served:
                    raise ValueError(f"{key}: data.text has no files for {language}")
        return self


@functools.cache
def recipe_class(kind: type[BodyConfig], objective: Objective) -> type[Recipe]:
    """The Recipe whose section `model` has the keys of a kind of body, and whose steps have those of an objective."""

    def section(name: str, *bases: type[Section], **fields: Any) -> type[Section]:
        """A section with the keys of `bases`; of a key that two have, with the default of the first."""
        return create_model(name, __base__=bases, __module__=__name__, **fields)

    starts = Literal["random", *kind.starts]  # type: ignore[valid-type]
    kinds = Annotated[str, OneOf(BODIES)]
    model = section(
        "Model", kind, ModelSection, kind=(kinds, kind.model_fields["kind"].default), initialisation=(starts, "random")
    )
    training, build_mini, adapt = (
        section(base.__name__, base, objective.settings) for base in (Training, BuildMini, Adapt)
    )
    tokenizer = LosslessTokenizerSection if objective.needs_lossless else TokenizerSection
    fields: dict[str, Any] = {
        "tokenizer": (tokenizer, tokenizer()),
        "objective": (Annotated[str, OneOf(OBJECTIVES)], objective.name),
        "model": (model, model()),
        "pretrain": (training, training()),
        "build_mini": (build_mini, build_mini()),
        "adapt": (adapt, adapt()),
    }
    for name, defaults in objective.defaults.items():
        whole = Recipe.model_fields[name]
        assert isinstance(whole.annotation, type)
        keys = {key: (whole.annotation.model_fields[key].annotation, value) for key, value in defaults.items()}
        own = section(whole.annotation.__name__, whole.annotation, **keys)
        fields[name] = (own, ...) if whole.is_required() else (own, own())
    return create_model("Recipe", __base__=Recipe, __module__=__name__, **fields)


PaperRecipe = recipe_class(BODIES["roberta"], OBJECTIVES["masked-lm"])  # the defaults are the paper's
