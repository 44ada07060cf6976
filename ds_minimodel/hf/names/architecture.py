"""Bodies as transformers has them.

Each is a model type, with tables of the names of configuration and parameters there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds_minimodel.hf.lazy import Lazy
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.models.heads import SentenceHead
from ds_minimodel.models.kind import BodyConfig

# Of every body: field of its configuration -> key of config.json; further keys that are read.
_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
}
_READ = ("vocab_size", "tie_word_embeddings")
# Keys that name an activation, and the names that transformers has for each that is served.
_ACTIVATIONS = {"hidden_act", "hidden_activation", "activation"}
_SAME = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_pytorch_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"),
    "silu": ("silu", "swish"),
}
# This stands before the names of a sentence's projections.
PROJECTIONS = "sentence_transformers.dense"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One of transformers' model types that a kind of body serves.

    In the tables a module or parameter of a LanguageModel here stands before transformers'. Names
    are of modules where they end in no parameter.

    Attributes:
        model_type: in config.json.
        classes: prefix of the names of its model classes.
        endings: suffixes of those that are served.
        config_class: configuration of the body here.
        keys: fields of `config_class` beside `sizes` -> keys of config.json.
        fixed: keys of config.json with the same value in every export.
        tokens: module of the token embeddings.
        output: module of the output matrix and bias.
        sizes: fields of every kind of body -> keys of config.json.
        others: what lies outside of layers and heads.
        layers: prefix of the name of layer N, `layers.N`.
        layer: module in a layer -> those whose rows it concatenates.
        head: modules of a language model's head.
        tasks: modules of RoBERTa's task heads -> this type's.
        fields: computes from transformers' configuration the fields that are not a key's value.
        field_keys: keys of config.json that `fields` reads.
        values: computes these keys from the configuration of a body.
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
        """Return whether transformers is given a key of a stranger's config.json."""
        known = {*_READ, *self.sizes.values(), *self.keys.values(), *self.fixed, *self.field_keys}
        return key in known or key.endswith("_token_id")

    def config(self, hf_config: Any) -> BodyConfig:
        """Return a body's configuration for one of transformers'.

        What it does not look at shows in the logits, which an import compares.

        Raises:
            ValueError: it has what the kind of body has not.
        """
        for key in self.fixed.keys() & _ACTIVATIONS:
            activation = getattr(hf_config, key)
            if activation not in _SAME[self.fixed[key]]:
                raise ValueError(
                    f"{key} {activation!r:.40} is not served; there is {self.fixed[key]}"
                )
        keys = {**self.sizes, **self.keys}
        values = {field: getattr(hf_config, key) for field, key in keys.items()}
        return self.config_class(**{**values, **self.fields(hf_config)})

    def config_json(self, config: BodyConfig, vocab_size: int) -> dict[str, Any]:
        """Return the content of config.json for a body, but for the class of the model."""
        keys = {**self.sizes, **self.keys}
        return {
            "model_type": self.model_type,
            "vocab_size": vocab_size,
            **{key: getattr(config, field) for field, key in keys.items()},
            "initializer_range": INIT_STD,
            "tie_word_embeddings": config.tied,
            **self.fixed,
            **self.values(config),
        }

    @property
    def prefix(self) -> str:
        """How the names of all parameters below a head begin."""
        return f"{self.layers.split('.')[0]}."

    def parts_of(self, names: Iterable[str], config: Any) -> dict[str, list[str]]:
        """Return {parameter of a LanguageModel with its head at the last layer: its parts}.

        The parts are parameters of transformers' model.
        """
        return self.names(names, self.head_of(config, config.num_layers))

    def from_hf(
        self, hf_state: Mapping[str, Lazy], config: Any, names: Iterable[str]
    ) -> dict[str, Lazy]:
        """Return parameters of a LanguageModel with its head at the last layer.

        Args:
            hf_state: state dict of transformers' model.
            config: of the body.
            names: of the parameters.
        """
        parts_of = self.parts_of(names, config)
        return {
            name: Lazy.concat([hf_state[part] for part in parts])
            for name, parts in parts_of.items()
        }

    def to_hf(
        self, tensors: Mapping[str, Lazy], config: Any, head: Mapping[str, str]
    ) -> dict[str, Lazy]:
        """Return a state dict of transformers' model.

        Args:
            tensors: state dict of a model here.
            config: of the body.
            head: as of language_model_head or task_head.
        """
        hf_state: dict[str, Lazy] = {}
        for name, parts in self.names(tensors, head).items():
            lazy = tensors[name]
            for part, rows in split_rows(name, parts, lazy.shape[0], config):
                hf_state[part] = lazy if len(parts) == 1 else lazy.rows(rows.start, rows.stop)
        return hf_state

    def head_of(self, config: BodyConfig, depth: int) -> dict[str, str]:
        """Return the table of the head of a body, which reads after `depth` layers.

        The head is the finished one that its configuration names, or a language model's.
        """
        if config.head is None:
            return self.language_model_head(depth)
        here = f"body.heads.{depth}."
        of_language_model = self._head(depth)
        if not isinstance(config.head, SentenceHead):
            names = {f"{here}dense": "classifier.dense", f"{here}out": "classifier.out_proj"}
            table = self.task_head(config, names)
            return table | of_language_model if config.tasks_read_head else table
        table = {
            f"{here}projections.{index}": f"{PROJECTIONS}.{index}.linear"
            for index in range(len(config.head.projections))
        }
        norm = f"{here}final_norm"
        if norm in of_language_model:
            table[norm] = of_language_model[norm]
        return table

    def language_model_head(self, depth: int) -> dict[str, str]:
        """Return the table of what only a language model has, its head after `depth` layers."""
        return self._head(depth) | {
            "pack.output": f"{self.output}.weight",
            "pack.bias": f"{self.output}.bias",
        }

    def task_head(self, config: BodyConfig, names: Mapping[str, str]) -> dict[str, str]:
        """Return the table of what only a task's model has.

        Args:
            config: of its body.
            names: modules of its head -> those of transformers' RoBERTa.
        """
        table = self._head(config.num_layers) if config.tasks_read_head else {}
        return table | {name: self.tasks.get(module, module) for name, module in names.items()}

    def _head(self, depth: int) -> dict[str, str]:
        return {f"body.heads.{depth}.{name}": module for name, module in self.head.items()}

    def names(self, parameters: Iterable[str], head: Mapping[str, str]) -> dict[str, list[str]]:
        """Return {parameter: transformers' parameters whose rows it concatenates}.

        Heads of other depths are left out.

        Args:
            parameters: names in a model here.
            head: as of language_model_head or task_head.
        """
        known = {"pack.tokens": f"{self.tokens}.weight", **self.others, **head}
        by_name = {}
        for name in parameters:
            module, _, kind = name.rpartition(".")
            if name in known:
                by_name[name] = [known[name]]
            elif module in known:
                by_name[name] = [f"{known[module]}.{kind}"]
            elif module.startswith("body.layers."):
                _, _, index, part = module.split(".")
                prefix = f"{self.layers}.{index}"
                by_name[name] = [f"{prefix}.{hf_part}.{kind}" for hf_part in self.layer[part]]
        return by_name


def split_rows(
    name: str, parts: Sequence[str], num_rows: int, config: BodyConfig
) -> list[tuple[str, range]]:
    """Return the parts that a parameter concatenates, each with its rows there.

    Args:
        name: of the parameter.
        parts: transformers' names, in order.
        num_rows: of the parameter.
        config: of the body.
    """
    counts = [num_rows // len(parts)] * len(parts)
    if len(parts) > 1 and name.split(".")[-2] == "qkv":
        heads = (config.num_heads, config.num_key_heads, config.num_key_heads)
        counts = [count * config.head_width for count in heads]
    ends = itertools.accumulate(counts)
    return [
        (part, range(end - count, end))
        for part, count, end in zip(parts, counts, ends, strict=True)
    ]
