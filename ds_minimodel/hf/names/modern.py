"""Today's bodies as transformers has them.

A family is a table of names, and functions for how its config.json says windows and angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ds_minimodel.hf.lazy import Lazy
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.models import modern
from ds_minimodel.models.kind import BodyConfig

_GLOBAL = "full_attention"
_LOCAL = "sliding_attention"
# The last of GroupedConfig.rotary_scaling that stands for "linear": all waves are longer than one
# position, and so are slowed down by the whole factor.
_LINEAR = 1
# Keys of transformers' "llama3" in the order of GroupedConfig.rotary_scaling.
_SCALED = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _fields_of_angles(angles: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of GroupedConfig for rope_parameters; ValueError for kinds not served."""
    fields = {"rotary_base": float(angles["rope_theta"])}
    match angles["rope_type"]:
        case "default":
            return fields
        case "linear":
            return fields | {"rotary_scaling": [angles["factor"], 1, 4, _LINEAR]}
        case "llama3":
            return fields | {"rotary_scaling": [angles[key] for key in _SCALED]}
    raise ValueError(
        f"rope_type {angles['rope_type']!r:.40} is not served; there are default, linear and llama3"
    )


def _plain_base(angles: Mapping[str, Any]) -> float:
    """Return the base of angles that are not scaled; ValueError for others."""
    fields = _fields_of_angles(angles)
    if len(fields) > 1:
        raise ValueError(
            f"rope_type {angles['rope_type']} is not served in these layers; there is default"
        )
    return float(fields["rotary_base"])


def rope_parameters(base: float, *scaling: float) -> dict[str, Any]:
    """Return transformers' rope_parameters.

    Args:
        base: of the wave lengths.
        scaling: none, or factor, low, high and original, as of GroupedConfig.rotary_scaling.
    """
    plain = {"rope_type": "default", "rope_theta": base}
    if not scaling:
        return plain
    *factors, original = scaling
    if original == _LINEAR:
        return plain | {"rope_type": "linear", "factor": factors[0]}
    values = (*factors, int(original))
    return plain | {"rope_type": "llama3", **dict(zip(_SCALED, values, strict=True))}


# A family's `fields` and `values` (Architecture): what its config.json says otherwise than by one
# key for one field.


def _modernbert_fields(hf_config: Any) -> dict[str, Any]:
    every = getattr(hf_config, "global_attn_every_n_layers", 3)
    return {
        "window": hf_config.local_attention // 2,
        "global_every": _period(hf_config.layer_types, every, first=0),
        "global_base": _plain_base(hf_config.rope_parameters[_GLOBAL]),
        "local_base": _plain_base(hf_config.rope_parameters[_LOCAL]),
    }


def _modernbert_values(config: Any) -> dict[str, Any]:
    return {
        "layer_types": _layer_types(config),
        "global_attn_every_n_layers": config.global_every,
        "local_attention": 2 * config.window,
        "rope_parameters": {
            _GLOBAL: rope_parameters(config.global_base),
            _LOCAL: rope_parameters(config.local_base),
        },
        "global_rope_theta": config.global_base,
        "local_rope_theta": config.local_base,
        "embedding_dropout": config.dropout,
    }


def _grouped_fields(hf_config: Any) -> dict[str, Any]:
    head_size = getattr(hf_config, "head_dim", None)
    if head_size == hf_config.hidden_size // hf_config.num_attention_heads:
        head_size = None
    angles = hf_config.rope_parameters
    return {
        "num_kv_heads": hf_config.num_key_value_heads or hf_config.num_attention_heads,
        "head_size": head_size,
        "tie_output": hf_config.tie_word_embeddings,
        **_fields_of_angles(angles.get(_GLOBAL, angles)),
    }


def _grouped_values(config: Any) -> dict[str, Any]:
    angles = rope_parameters(config.rotary_base, *config.rotary_scaling)
    # Transformers 4 reads base and scaling apart, transformers 5 takes both forms.
    scaling = {"type": angles["rope_type"]}
    scaling |= {key: value for key, value in angles.items() if not key.startswith("rope_")}
    return {
        "num_key_value_heads": config.num_key_heads,
        "head_dim": config.head_width,
        "rope_theta": config.rotary_base,
        "rope_scaling": scaling if config.rotary_scaling else None,
        "rope_parameters": angles,
    }


def _gemma3_fields(hf_config: Any) -> dict[str, Any]:
    every = getattr(hf_config, "_sliding_window_pattern", 6)
    local_base = _plain_base(hf_config.rope_parameters[_LOCAL])
    period = _period(hf_config.layer_types, every, first=-1)
    return _grouped_fields(hf_config) | {"global_every": period, "local_base": local_base}


def _gemma3_values(config: Any) -> dict[str, Any]:
    values = _grouped_values(config)
    angles = {_GLOBAL: values["rope_parameters"], _LOCAL: rope_parameters(config.local_base)}
    return values | {
        "layer_types": _layer_types(config),
        "sliding_window_pattern": config.global_every,
        "rope_parameters": angles,
        "rope_local_base_freq": config.local_base,
    }


_GROUPED_KEYS = (
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "num_key_value_heads",
    "head_dim",
    "layer_types",
)


def _layer_types(config: Any) -> list[str]:
    """Return transformers' layer_types of a body."""
    return [_GLOBAL if config.sees_all(index) else _LOCAL for index in range(config.num_layers)]


def _period(kinds: Sequence[str], named: int, first: int) -> int:
    """Return every how many layers one sees all.

    Args:
        kinds: of the layers.
        named: the answer of the configuration, which is taken unless another one alone gives these
            kinds.
        first: 0 where the first layer of a period sees all, -1 where the last does.
    """
    sees_all = [kind == _GLOBAL for kind in kinds]
    for every in (named, *range(1, len(kinds) + 2)):
        if sees_all == [(index - first) % every == 0 for index in range(len(kinds))]:
            return every
    return named


@dataclass(frozen=True, kw_only=True)
class ModernArchitecture(Architecture):
    """A family of today's bodies.

    Attributes:
        shifted_norms: whether weights of norms are stored as what is added to 1.
    """

    config_class: type[modern.ModernConfig]
    fields: Callable[[Any], dict[str, Any]] = _grouped_fields
    field_keys: tuple[str, ...] = _GROUPED_KEYS
    values: Callable[[Any], dict[str, Any]] = _grouped_values
    shifted_norms: bool = False

    def config(self, hf_config: Any) -> BodyConfig:
        """Return a body's configuration, whose layers are of the kinds that the file names."""
        config = super().config(hf_config)
        kinds = getattr(hf_config, "layer_types", None)
        if kinds and kinds != _layer_types(config):
            raise ValueError(
                f"layer_types: {self.model_type} is served with {_layer_types(config)!s:.80}"
            )
        return config

    def from_hf(
        self, hf_state: Mapping[str, Lazy], config: Any, names: Iterable[str]
    ) -> dict[str, Lazy]:
        """Return parameters, norms as what is multiplied with."""
        return self._shift_norms(super().from_hf(hf_state, config, names), 1)

    def to_hf(
        self, tensors: Mapping[str, Lazy], config: Any, head: Mapping[str, str]
    ) -> dict[str, Lazy]:
        """Return a state dict, norms as the family has them."""
        return super().to_hf(self._shift_norms(tensors, -1), config, head)

    def _shift_norms(self, tensors: Mapping[str, Lazy], shift: int) -> dict[str, Lazy]:
        """Return tensors with `shift` added to norms where the family stores them otherwise."""
        shifted = dict(tensors)
        if not self.shifted_norms:
            return shifted
        for name, lazy in tensors.items():
            if "norm" in name.split(".")[-2]:
                # 16 bits would lose digits of 1 + w.
                shifted[name] = lazy.map(lambda tensor: tensor.float() + shift, torch.float32)
        return shifted


# Modules of a body here and of transformers', as fields of Architecture.
_TASKS = {
    "classifier.dense": "dense",
    "classifier.out_proj": "classifier",
    "qa_outputs": "classifier",
}
_KEYS = {"max_positions": "max_position_embeddings", "attention_dropout": "attention_dropout"}
_LAYER: Mapping[str, Sequence[str]] = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "query_norm": ("self_attn.q_norm",),
    "key_norm": ("self_attn.k_norm",),
    "attention_out": ("self_attn.o_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "ffn_in": ("mlp.gate_proj", "mlp.up_proj"),
    "ffn_out": ("mlp.down_proj",),
}
_AFTER = {
    "attention_post_norm": ("post_attention_layernorm",),
    "ffn_post_norm": ("post_feedforward_layernorm",),
}
MODERNBERT = ModernArchitecture(
    model_type="modernbert",
    classes="ModernBert",
    endings=("ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"),
    config_class=modern.ModernBertConfig,
    keys={**_KEYS, "norm_eps": "norm_eps", "dropout": "mlp_dropout"},
    fixed={"hidden_activation": "gelu"},
    fields=_modernbert_fields,
    field_keys=(
        "layer_types",
        "global_attn_every_n_layers",
        "local_attention",
        "embedding_dropout",
        "rope_parameters",
        "global_rope_theta",
        "local_rope_theta",
    ),
    values=_modernbert_values,
    tokens="model.embeddings.tok_embeddings",
    output="decoder",
    others={"body.embedding_norm": "model.embeddings.norm"},
    layers="model.layers",
    layer={
        "attention_norm": ("attn_norm",),
        "qkv": ("attn.Wqkv",),
        "attention_out": ("attn.Wo",),
        "ffn_norm": ("mlp_norm",),
        "ffn_in": ("mlp.Wi",),
        "ffn_out": ("mlp.Wo",),
    },
    head={"final_norm": "model.final_norm", "dense": "head.dense", "norm": "head.norm"},
    tasks=_TASKS,
)


def _grouped(
    model_type: str, classes: str, config_class: type[modern.ModernConfig], **differs: Any
) -> ModernArchitecture:
    """Return a family like Llama's; `differs` are the fields in which it is another."""
    values: dict[str, Any] = dict(
        endings=("ForCausalLM",),
        keys={**_KEYS, "norm_eps": "rms_norm_eps"},
        fixed={"hidden_act": "silu"},
        tokens="model.embed_tokens",
        output="lm_head",
        layers="model.layers",
        layer=_LAYER,
        head={"final_norm": "model.norm"},
        tasks=_TASKS,
    )
    return ModernArchitecture(
        model_type=model_type, classes=classes, config_class=config_class, **{**values, **differs}
    )


EUROBERT = _grouped(
    "eurobert",
    "EuroBert",
    modern.EuroBertConfig,
    endings=("ForMaskedLM", "ForSequenceClassification"),
    fixed={"hidden_act": "silu", "classifier_pooling": "bos"},
)
LLAMA = _grouped("llama", "Llama", modern.LlamaConfig)
# The last three say the same as layer_types, which are compared.
_WITH_WINDOWS = (*_GROUPED_KEYS, "sliding_window", "use_sliding_window", "max_window_layers")
QWEN2 = _grouped("qwen2", "Qwen2", modern.Qwen2Config, field_keys=_WITH_WINDOWS)
QWEN3 = _grouped("qwen3", "Qwen3", modern.Qwen3Config, field_keys=_WITH_WINDOWS)
OLMO2 = _grouped("olmo2", "Olmo2", modern.Olmo2Config, layer={**_LAYER, **_AFTER})
GEMMA3 = _grouped(
    "gemma3_text",
    "Gemma3",
    modern.Gemma3Config,
    keys={
        **_KEYS,
        "norm_eps": "rms_norm_eps",
        "window": "sliding_window",
        "score_size": "query_pre_attn_scalar",
    },
    fixed={"hidden_activation": "gelu_pytorch_tanh"},
    fields=_gemma3_fields,
    field_keys=(
        *_GROUPED_KEYS,
        "rope_local_base_freq",
        "sliding_window_pattern",
        "_sliding_window_pattern",
    ),
    values=_gemma3_values,
    layer={**_LAYER, **_AFTER, "ffn_norm": ("pre_feedforward_layernorm",)},
    shifted_norms=True,
)
# Kind of body -> its families.
MODERN = {
    architecture.config_class.model_fields["kind"].default: (architecture,)
    for architecture in (MODERNBERT, EUROBERT, LLAMA, QWEN2, QWEN3, OLMO2, GEMMA3)
}
