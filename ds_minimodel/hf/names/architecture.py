"""Bodies as transformers has them: a model type, and tables of the names of configuration and
parameters there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds_minimodel.hf.lazy import Lazy
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.models.heads import SentenceHead
from ds_minimodel.models.kind import BodyConfig

_SIZES = {  # of every body: field of its configuration -> key of config.json
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
}
_ACTIVATIONS = {"hidden_act", "hidden_activation", "activation"}
_READ = "vocab_size", "tie_word_embeddings"  # of every body, too
_TANH = "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"
_SAME = {
    "gelu": ("gelu", "gelu_python"),
    _TANH[0]: _TANH,
    "silu": ("silu", "swish"),
}  # names of one activation


PROJECTIONS = "sentence_transformers.dense"  # before the names of a sentence's projections


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One of transformers' model types that a kind of body serves. Names are of modules where they
    end in no parameter.

    model_type: in config.json. classes: prefix of the names of its model classes. endings: suffixes
    of those that are served. config_class: our configuration. sizes: fields of every kind -> keys
    of config.json; keys: further fields of `config_class`. fixed: keys of config.json with the same
    value in every export. tokens, output: modules of the embeddings, and of output matrix and bias.
    others: our parameters and modules outside of layers and heads -> theirs. layers: prefix of
    layer N's name, `layers.N`. layer: our module in a layer -> theirs, whose rows it
    concatenates. head: our modules of a language model's head -> theirs. tasks: modules of
    RoBERTa's task heads -> this type's. fields: computes from their configuration the fields of
    ours that are not a key's value, of `field_keys`; values: from ours such keys of
    config.json.
    """

    model_type: str
    classes: str
    endings: tuple[str, ...]
    config_class: type[BodyConfig]
    keys: Mapping[str, str]
    fixed: Mapping[str, Any]
    tokens: str
    output: str
    sizes: Mapping[str, str] = field(default_factory=lambda: _SIZES)
    others: Mapping[str, str] = field(default_factory=dict)
    layers: str
    layer: Mapping[str, Sequence[str]]
    head: Mapping[str, str]
    tasks: Mapping[str, str] = field(default_factory=dict)
    fields: Callable[[Any], dict[str, Any]] = lambda _: {}
    field_keys: tuple[str, ...] = ()
    values: Callable[[Any], dict[str, Any]] = lambda _: {}

    def reads(self, key: str) -> bool:
        """Whether a key of config.json is one that transformers is given of a stranger's file."""
        known = {*_READ, *self.sizes.values(), *self.keys.values(), *self.fixed, *self.field_keys}
        return key in known or key.endswith("_token_id")

    def config(self, theirs: Any) -> BodyConfig:
        """Our configuration for one of transformers'; ValueError where it has what the kind has
        not.

        What it does not look at shows in the logits, which an import compares.
        """
        for key in self.fixed.keys() & _ACTIVATIONS:
            if getattr(theirs, key) not in _SAME[self.fixed[key]]:
                raise ValueError(
                    f"{key} {getattr(theirs, key)!r:.40} is not served; there is {self.fixed[key]}"
                )
        keys = {**self.sizes, **self.keys}
        values = {ours: getattr(theirs, key) for ours, key in keys.items()}
        return self.config_class(**{**values, **self.fields(theirs)})

    def config_json(self, config: BodyConfig, vocab_size: int) -> dict[str, Any]:
        """The content of config.json for a body, but for the class of the model."""
        return {
            "model_type": self.model_type,
            "vocab_size": vocab_size,
            **{key: getattr(config, ours) for ours, key in {**self.sizes, **self.keys}.items()},
            "initializer_range": INIT_STD,
            "tie_word_embeddings": config.tied,
            **self.fixed,
            **self.values(config),
        }

    @property
    def prefix(self) -> str:
        """What the names of all parameters below a head begin with."""
        return f"{self.layers.split('.')[0]}."

    def parts_of(self, names: Iterable[str], config: Any) -> dict[str, list[str]]:
        """Each of the parameters `names` of a LanguageModel, whose head is at its last layer ->
        those of theirs.
        """
        return self.names(names, self.head_of(config, config.num_layers))

    def from_hf(
        self, theirs: Mapping[str, Lazy], config: Any, names: Iterable[str]
    ) -> dict[str, Lazy]:
        """The parameters `names` of a LanguageModel, whose head is at its last layer, from a state
        dict of theirs.
        """
        parts_of = self.parts_of(names, config)
        return {
            ours: Lazy.concat([theirs[part] for part in parts]) for ours, parts in parts_of.items()
        }

    def to_hf(
        self, tensors: Mapping[str, Lazy], config: Any, head: Mapping[str, str]
    ) -> dict[str, Lazy]:
        """Our state dict under their names. head: as of language_model_head or task_head."""
        theirs: dict[str, Lazy] = {}
        for ours, parts in self.names(tensors, head).items():
            first = 0
            for part, rows in zip(
                parts, row_counts(ours, len(parts), tensors[ours].shape[0], config), strict=True
            ):
                theirs[part] = (
                    tensors[ours] if len(parts) == 1 else tensors[ours].rows(first, first + rows)
                )
                first += rows
        return theirs

    def head_of(self, config: BodyConfig, depth: int) -> dict[str, str]:
        """What only a model with this body's head has, after `depth` layers: our parameters and
        modules -> theirs.
        """
        if config.head is None:
            return self.language_model_head(depth)
        place = f"body.heads.{depth}."
        of_language_model = self._head(depth)
        if isinstance(config.head, SentenceHead):
            norm_name = f"{place}final_norm"
            norm = {name: theirs for name, theirs in of_language_model.items() if name == norm_name}
            projections = {
                f"{place}projections.{number}": f"{PROJECTIONS}.{number}.linear"
                for number in range(len(config.head.projections))
            }
            return norm | projections
        names = {f"{place}dense": "classifier.dense", f"{place}out": "classifier.out_proj"}
        return self.task_head(config, names) | (of_language_model if config.tasks_read_head else {})

    def language_model_head(self, depth: int) -> dict[str, str]:
        """What only a language model has, its head after `depth` layers: our parameters and modules
        -> theirs.
        """
        return self._head(depth) | {
            "pack.output": f"{self.output}.weight",
            "pack.bias": f"{self.output}.bias",
        }

    def task_head(self, config: BodyConfig, names: Mapping[str, str]) -> dict[str, str]:
        """What only a task's model has. names: modules of its head -> those of transformers'
        RoBERTa.
        """
        read = self._head(config.num_layers) if config.tasks_read_head else {}
        return read | {ours: self.tasks.get(theirs, theirs) for ours, theirs in names.items()}

    def _head(self, depth: int) -> dict[str, str]:
        return {f"body.heads.{depth}.{ours}": theirs for ours, theirs in self.head.items()}

    def names(self, ours: Iterable[str], head: Mapping[str, str]) -> dict[str, list[str]]:
        """Each of our parameters -> those of theirs that it is when these are concatenated along
        the first axis.
        """
        known = {"pack.tokens": f"{self.tokens}.weight", **self.others, **head}
        by_name = {}
        for name in ours:
            module, _, kind = name.rpartition(".")
            if name in known:
                by_name[name] = [known[name]]
            elif module in known:
                by_name[name] = [f"{known[module]}.{kind}"]
            elif module.startswith("body.layers."):
                _, _, index, part = module.split(".")
                by_name[name] = [
                    f"{self.layers}.{index}.{theirs}.{kind}" for theirs in self.layer[part]
                ]
        return by_name  # all but heads of other depths


def row_counts(name: str, parts: int, rows: int, config: BodyConfig) -> list[int]:
    """Rows of the parts of which a parameter is concatenated."""
    if parts > 1 and name.split(".")[-2] == "qkv":
        heads = config.num_heads, config.num_key_heads, config.num_key_heads
        return [number * config.head_width for number in heads]
    return [rows // parts] * parts
