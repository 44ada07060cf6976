"""Today's bodies as transformers has them: a family is a table of names, and how it says windows
and angles.
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
# GroupedConfig.rotary_scaling's original by which all waves, each longer than a position, are
# slowed down whole.
_LINEAR = 1
_SCALED = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"


def _fields_of_angles(angles: Mapping[str, Any]) -> dict[str, Any]:
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
    """The base of angles that are not scaled; ValueError for others."""
    fields = _fields_of_angles(angles)
    if len(fields) > 1:
        raise ValueError(
            f"rope_type {angles['rope_type']} is not served in these layers; there is default"
        )
    return float(fields["rotary_base"])


def _angles(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base}


def _angles_of(config: Any) -> dict[str, Any]:
    angles = _angles(config.rotary_base)
    if not config.rotary_scaling:
        return angles
    *factors, original = config.rotary_scaling
    if original == _LINEAR:
        return angles | {"rope_type": "linear", "factor": factors[0]}
    return angles | {
        "rope_type": "llama3",
        **dict(zip(_SCALED, (*factors, int(original)), strict=True)),
    }


# What a family says otherwise than by a key a field: fields of its configuration, and keys of
# config.json.


def _modernbert_fields(theirs: Any) -> dict[str, Any]:
    every = getattr(theirs, "global_attn_every_n_layers", 3)
    return {
        "window": theirs.local_attention // 2,
        "global_every": _period(theirs.layer_types, every, first=0),
        "global_base": _plain_base(theirs.rope_parameters[_GLOBAL]),
        "local_base": _plain_base(theirs.rope_parameters[_LOCAL]),
    }


def _modernbert_keys(config: Any) -> dict[str, Any]:
    return {
        "layer_types": _layer_types(config),
        "global_attn_every_n_layers": config.global_every,
        "local_attention": 2 * config.window,
        "rope_parameters": {
            _GLOBAL: _angles(config.global_base),
            _LOCAL: _angles(config.local_base),
        },
        "global_rope_theta": config.global_base,
        "local_rope_theta": config.local_base,
        "embedding_dropout": config.dropout,
    }


def _grouped_fields(theirs: Any) -> dict[str, Any]:
    size = getattr(theirs, "head_dim", None)
    even = theirs.hidden_size // theirs.num_attention_heads
    return {
        "num_kv_heads": theirs.num_key_value_heads or theirs.num_attention_heads,
        "head_size": None if size == even else size,
        "tie_output": theirs.tie_word_embeddings,
        **_fields_of_angles(theirs.rope_parameters.get(_GLOBAL, theirs.rope_parameters)),
    }


def _grouped_keys(config: Any) -> dict[str, Any]:
    heads = {"num_key_value_heads": config.num_key_heads, "head_dim": config.head_width}
    angles = _angles_of(config)
    scaling = {
        "type": angles["rope_type"],
        **{key: angles[key] for key in angles if key not in _angles(0)},
    }
    older = {
        "rope_theta": angles["rope_theta"],
        "rope_scaling": scaling if len(scaling) > 1 else None,
    }
    return (
        heads | older | {"rope_parameters": angles}
    )  # transformers 4 reads the older form, 5 takes both


def _gemma3_fields(theirs: Any) -> dict[str, Any]:
    every = getattr(theirs, "_sliding_window_pattern", 6)
    local_base = _plain_base(theirs.rope_parameters[_LOCAL])
    period = _period(theirs.layer_types, every, first=-1)
    return _grouped_fields(theirs) | {"global_every": period, "local_base": local_base}


def _gemma3_keys(config: Any) -> dict[str, Any]:
    return _grouped_keys(config) | {
        "layer_types": _layer_types(config),
        "sliding_window_pattern": config.global_every,
        "rope_parameters": {_GLOBAL: _angles_of(config), _LOCAL: _angles(config.local_base)},
        "rope_local_base_freq": config.local_base,
    }


_ANGLES = "rope_parameters", "rope_theta", "rope_scaling"
_GROUPED_KEYS = *_ANGLES, "num_key_value_heads", "head_dim", "layer_types"


def _layer_types(config: Any) -> list[str]:
    return [_GLOBAL if config.sees_all(index) else _LOCAL for index in range(config.num_layers)]


def _period(kinds: Sequence[str], named: int, first: int) -> int:
    """After how many layers one sees all: `named`, unless another number gives `kinds` and that
    does not.

    first: 0 where the first layer of a period sees all, -1 the last.
    """
    for every in (named, *range(1, len(kinds) + 2)):
        if all(
            (kind == _GLOBAL) == ((index - first) % every == 0) for index, kind in enumerate(kinds)
        ):
            return every
    return named


@dataclass(frozen=True, kw_only=True)
class ModernArchitecture(Architecture):
    """A family there. shifted_norms: whether weights of norms are stored as what is added to 1."""

    config_class: type[modern.ModernConfig]
    fields: Callable[[Any], dict[str, Any]] = _grouped_fields
    field_keys: tuple[str, ...] = _GROUPED_KEYS
    values: Callable[[Any], dict[str, Any]] = _grouped_keys
    shifted_norms: bool = False

    def config(self, theirs: Any) -> BodyConfig:
        config = super().config(theirs)
        kinds = getattr(theirs, "layer_types", None)
        if kinds and kinds != _layer_types(config):
            raise ValueError(
                f"layer_types: {self.model_type} is served with {_layer_types(config)!s:.80}"
            )
        return config

    def from_hf(
        self, theirs: Mapping[str, Lazy], config: Any, names: Iterable[str]
    ) -> dict[str, Lazy]:
        return self._shift(super().from_hf(theirs, config, names), 1)

    def to_hf(
        self, tensors: Mapping[str, Lazy], config: Any, head: Mapping[str, str]
    ) -> dict[str, Lazy]:
        return super().to_hf(self._shift(tensors, -1), config, head)

    def _shift(self, tensors: Mapping[str, Lazy], number: int) -> dict[str, Lazy]:
        """In fp32, which has what is lost of 1 + w in 16 bits."""
        changed = dict(tensors)
        for name in tensors if self.shifted_norms else ():
            if "norm" in name.split(".")[-2]:
                changed[name] = tensors[name].map(
                    lambda tensor: tensor.float() + number, torch.float32
                )
        return changed


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
        *("layer_types", "global_attn_every_n_layers", "local_attention", "embedding_dropout"),
        *("rope_parameters", "global_rope_theta", "local_rope_theta"),
    ),
    values=_modernbert_keys,
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
# Which say the same as layer_types, which is compared.
_WITH_WINDOWS = (
    *_GROUPED_KEYS,
    *("sliding_window", "use_sliding_window", "max_window_layers"),
)
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
        *("rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"),
    ),
    values=_gemma3_keys,
    layer={**_LAYER, **_AFTER, "ffn_norm": ("pre_feedforward_layernorm",)},
    shifted_norms=True,
)
MODERN = {
    architecture.config_class.model_fields["kind"].default: (architecture,)
    for architecture in (MODERNBERT, EUROBERT, LLAMA, QWEN2, QWEN3, OLMO2, GEMMA3)
}
