"""The recipe: one typed, strict YAML file that drives every step.

Configuration flows one way, recipe -> plan -> DeepSpeed JSON. A recipe is frozen once read; an unknown key,
a wrong type or values that contradict each other are refused with file, line and key.
"""

from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    ValidationError,
    field_validator,
    model_validator,
)

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.recipe.base import read_base
from ds_minimodel.recipe.yaml12 import Yaml12, apply_override, refusal
from ds_minimodel.tasks import KINDS

Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
System = Literal["bl_base", "bl_small", "minijoint", "minipost", "multijoint"]
OneOrMore = Annotated[list[str], Field(min_length=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Languages(Section):
    source: str
    targets: OneOrMore

    @model_validator(mode="after")
    def _differ(self):
        if self.source in self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError("the source and the targets must all be different languages")
        return self

    @property
    def all(self):
        return [self.source, *self.targets]


class TokenizerSection(Section):
    vocab_size: PositiveInt = 50_000
    character_coverage: Share = 0.9998
    input_sentences: PositiveInt = 5_000_000


class Data(Section):
    text: dict[str, OneOrMore]  # language -> files or globs (.txt .gz .xz .zst)
    blocks: Literal["complete", "complete_doc", "none"] = "complete"
    min_words: dict[str, NonNegativeInt] = {}  # language -> documents with fewer words are dropped
    workers: PositiveInt | None = None  # processes that tokenise; all cores where not given

    @field_validator("text", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, text):
        if not isinstance(text, dict):
            return text
        return {language: [files] if isinstance(files, str) else files for language, files in text.items()}


class Model(Section):
    num_layers: PositiveInt = 12
    hidden_size: PositiveInt = 768
    num_heads: PositiveInt = 12
    ffn_size: PositiveInt = 3072
    max_positions: PositiveInt = 512
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1

    @model_validator(mode="after")
    def _heads_divide(self):
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide hidden_size {self.hidden_size}")
        return self


class Mini(Section):
    depth: PositiveInt = 4  # N: layers of the mini-model that come from the body
    new_layers: PositiveInt = 2  # minipost: layers trained on top of them
    depths: Annotated[list[PositiveInt], Field(min_length=1)] = [4, 8, 12]  # multijoint: one head each


class Optimizer(Section):
    """What training and finetuning tell AdamW."""

    weight_decay: NonNegativeFloat = 0.01
    beta1: Probability = 0.9
    beta2: Probability = 0.98
    eps: PositiveFloat = 1e-6
    clip: NonNegativeFloat = 0.0  # gradient norm; 0: no clipping


class MaskedLm(Optimizer):
    """One training run with the masked-language-model loss."""

    steps: PositiveInt = 125_000
    batch_size: PositiveInt = 2048  # sequences an optimizer step, over all ranks
    seq_length: PositiveInt = 512
    lr: PositiveFloat = 7e-4
    warmup_steps: NonNegativeInt = 10_000
    mask_prob: Share = 0.15

    @model_validator(mode="after")
    def _warmup_ends(self):
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below steps {self.steps}")
        return self


class Adapt(MaskedLm):
    initialisation: Literal["overlap", "random", "mean", "focus", "wechsel", "ofa"] = "overlap"
    word_vectors: dict[str, str] = {}  # language -> file of static word vectors (fastText's .vec)
    dictionaries: dict[str, str] = {}  # target -> file of word pairs that turn the vectors
    train_output_bias: bool = True
    train_positions: bool = False
    train_embedding_norm: bool = False
    # (depth, share of the steps)
    depth_schedule: list[Annotated[tuple[PositiveInt, Share], Strict(False)]] = []
    snapshot_every: PositiveInt | None = None  # packs kept for the training curves
    snapshot_at: list[PositiveInt] = []

    @model_validator(mode="after")
    def _vectors_are_read(self):
        readers = {"word_vectors": ("focus", "wechsel", "ofa"), "dictionaries": ("wechsel", "ofa")}
        for key, methods in readers.items():
            if getattr(self, key) and self.initialisation not in methods:
                raise ValueError(
                    f"{key}: the initialisation {self.initialisation} reads none, only {', '.join(methods)}"
                )
        return self

    @model_validator(mode="after")
    def _schedule_is_sound(self):
        if self.depth_schedule and abs(sum(share for _, share in self.depth_schedule) - 1) > 1e-6:
            raise ValueError("the shares of depth_schedule must sum to 1")
        depths = [depth for depth, _ in self.depth_schedule]
        if depths != sorted(set(depths)):
            raise ValueError("the depths of depth_schedule must rise")
        return self

    def snapshots(self):
        """Steps after which a pack is kept, in order; step 0 is the pack as initialised."""
        every = range(0, self.steps + 1, self.snapshot_every) if self.snapshot_every else []
        return sorted({0, self.steps, *every, *(step for step in self.snapshot_at if step < self.steps)})

    def depth_at(self, step):
        """Depth of the mini-model that `depth_schedule` gives for optimizer step `step` (from 0)."""
        end = 0.0
        for depth, share in self.depth_schedule:
            end += share * self.steps
            if step < round(end):
                return depth
        return self.depth_schedule[-1][0]


class TaskOfAnyKind(Section):
    """The keys of every task."""

    kind: Literal[tuple(KINDS)]  # type: ignore[valid-type]
    train: str
    test: dict[str, str]  # one file may serve several languages (XNLI)
    labels: list[str] | None = None  # in id order; those of the training file where not given
    # What tables call text, sentence1, sentence2, label, language; not needed for the official files' forms.
    columns: dict[str, str] = {}
    lr: PositiveFloat | None = None  # these four: where not given, those of `finetune`
    epochs: PositiveInt | None = None
    batch_size: PositiveInt | None = None
    max_length: PositiveInt | None = None

    @model_validator(mode="after")
    def _columns_are_of_the_kind(self) -> Self:
        kind = KINDS[self.kind]
        unknown = sorted(self.columns.keys() - kind.roles)
        if unknown:
            raise ValueError(
                f"columns: a {kind.name} task has no {unknown[0]}; it has {', '.join(sorted(kind.roles)) or kind.form}"
            )
        return self

    def settings(self) -> dict[str, object]:
        """All but the files, for job records; of other kinds' keys those that the records have always held."""
        others = [kind for kind in KINDS.values() if kind.name != self.kind and not kind.keys_in_all_records]
        foreign = {key for kind in others if kind.keys for key in kind.keys.model_fields}
        return self.model_dump(exclude={"train", "test", *foreign})


class Task(*filter(None, (kind.keys for kind in KINDS.values())), TaskOfAnyKind):  # type: ignore[misc]
    """A task: the keys of any kind, and those that the kinds have of their own (tasks/*.py)."""


class Finetune(Optimizer):
    tasks: dict[str, Task] = {}
    seeds: PositiveInt = 5
    epochs: PositiveInt = 3
    batch_size: PositiveInt = 32
    max_length: PositiveInt = 512
    lr: PositiveFloat = 1e-5
    warmup_ratio: Probability = 0.06

    def of(self, task_name: str, key: str) -> Any:
        """`key` as the task sets it, else as `finetune` does."""
        own = getattr(self.tasks[task_name], key)
        return getattr(self, key) if own is None else own


class Engine(Section):
    zero_stage: Literal[0, 1, 2, 3] = 1
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    micro_batch_size: PositiveInt = 32  # sequences a rank and a forward pass
    tensor_parallel: PositiveInt = 1  # ranks that hold one replica of the model between them


class Checkpoint(Section):
    every: PositiveInt = 1000  # optimizer steps
    keep_last: PositiveInt = 2
    keep_every: PositiveInt | None = None  # steps; checkpoints at multiples of it are kept for good

    @model_validator(mode="after")
    def _milestones_are_saved(self):
        if self.keep_every and self.keep_every % self.every:
            raise ValueError(f"keep_every {self.keep_every} must be a multiple of every {self.every}")
        return self


class Recipe(Section):
    workdir: str
    seed: NonNegativeInt = 1
    systems: Annotated[list[System], Field(min_length=1)]
    languages: Languages
    base: str | None = None  # folder of body and pack; where given, nothing is pretrained
    tokenizer: TokenizerSection = TokenizerSection()
    data: Data
    model: Model = Model()
    mini: Mini = Mini()
    pretrain: MaskedLm = MaskedLm()
    build_mini: MaskedLm = MaskedLm()
    adapt: Adapt = Adapt()
    finetune: Finetune = Finetune()
    engine: Engine = Engine()
    checkpoint: Checkpoint = Checkpoint()

    @model_validator(mode="before")
    @classmethod
    def _model_is_the_bases(cls, values):
        """The section `model` of a recipe with a base; what is given of it must agree."""
        given = values.get("model", {}) if isinstance(values, dict) else None
        if not isinstance(given, dict) or not isinstance(values.get("base"), str):
            return values
        model = read_base(values["base"]).model
        for key in model.keys() & given.keys():
            if given[key] != model[key]:
                raise ValueError(f"model.{key} {given[key]} is not the base's {model[key]}; leave the key out")
        return {**values, "model": {**given, **model}}

    @model_validator(mode="after")
    def _base_serves(self):
        if self.base is None:
            return self
        others = [system for system in self.systems if system not in ("bl_base", "minipost")]
        if others:
            raise ValueError(
                f"{others[0]} cannot start from a base, it is pretrained with heads of its own; use bl_base or minipost"
            )
        language = read_base(self.base).language
        if language not in (UNKNOWN_LANGUAGE, self.languages.source):
            raise ValueError(f"languages.source {self.languages.source}: the base's pack is of {language}")
        return self

    @model_validator(mode="after")
    def _vectors_are_there(self):
        served = {"word_vectors": self.languages.all, "dictionaries": self.languages.targets}
        for key, languages in served.items():
            others = sorted(getattr(self.adapt, key).keys() - set(languages))
            if others:
                raise ValueError(f"adapt.{key}: {others[0]} is not one of {', '.join(languages)}")
        missing = [language for language in self.languages.all if language not in self.adapt.word_vectors]
        if missing and self.adapt.initialisation in ("wechsel", "ofa"):
            raise ValueError(
                f"adapt.word_vectors: no file for {missing[0]}; {self.adapt.initialisation} needs one "
                "for the source and every target"
            )
        return self

    @property
    def languages_of_text(self):
        """The languages whose text is trained on: not a source that is neither pretrained nor mini-modelled."""
        if self.base is not None and "minipost" not in self.systems:
            return self.languages.targets
        return self.languages.all

    @model_validator(mode="after")
    def _parts_agree(self):
        layers, depth = self.model.num_layers, self.mini.depth
        if depth > layers or (depth == layers and {"bl_small", "minipost"} & set(self.systems)):
            raise ValueError(f"mini.depth {depth} must be below model.num_layers {layers}")
        if "multijoint" in self.systems and (
            self.mini.depths != sorted(set(self.mini.depths)) or self.mini.depths[-1] != layers
        ):
            raise ValueError(f"mini.depths {self.mini.depths} must rise and end at model.num_layers {layers}")
        for key in ("num_heads", "ffn_size"):
            if getattr(self.model, key) % self.engine.tensor_parallel:
                raise ValueError(
                    f"engine.tensor_parallel {self.engine.tensor_parallel} does not divide model.{key} "
                    f"{getattr(self.model, key)}"
                )
        if self.adapt.depth_schedule:
            if "multijoint" not in self.systems:
                raise ValueError("adapt.depth_schedule needs the system multijoint")
            unknown = {depth for depth, _ in self.adapt.depth_schedule} - set(self.mini.depths)
            if unknown:
                raise ValueError(f"adapt.depth_schedule: depth {min(unknown)} is not one of mini.depths")
        elif "multijoint" in self.systems and depth not in self.mini.depths:
            raise ValueError(f"mini.depth {depth} is not one of mini.depths, and no adapt.depth_schedule is given")
        lengths = {"pretrain": self.pretrain.seq_length} if self.base is None else {}
        lengths |= {"build_mini": self.build_mini.seq_length} if "minipost" in self.systems else {}
        lengths |= {"adapt": self.adapt.seq_length}
        lengths |= {f"finetune.tasks.{name}": self.finetune.of(name, "max_length") for name in self.finetune.tasks}
        for name, length in lengths.items():
            if length > self.model.max_positions:
                raise ValueError(
                    f"{name}: sequences of {length} tokens do not fit model.max_positions {self.model.max_positions}"
                )
        served = {*self.data.text, *({*self.languages.all} - {*self.languages_of_text})}
        named = {"languages": self.languages_of_text, "data.min_words": self.data.min_words}
        named |= {f"finetune.tasks.{name}.test": task.test for name, task in self.finetune.tasks.items()}
        for key, languages in named.items():
            for language in languages:
                if language not in served:
                    raise ValueError(f"{key}: data.text has no files for {language}")
        return self


def load_recipe(path, overrides=()):
    """Read the recipe at `path` and apply `key=value` overrides (`adapt.lr=1e-3`).

    Paths inside a recipe are relative to the current folder. Raises UserError for anything wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        values, tree = yaml.load(text, Yaml12), yaml.compose(text, Yaml12)
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; those that come with the sources lie in recipes/") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder; name the recipe's YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the recipe ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(
            f"{path}:{mark.line + 1 if mark else 1}: not valid YAML ({getattr(error, 'problem', error)})"
        ) from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe is a mapping of keys to values; see recipes/quickstart.yaml")
    for override in overrides:
        apply_override(values, override)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise UserError(refusal(path, tree, error, Recipe, overrides)) from None
