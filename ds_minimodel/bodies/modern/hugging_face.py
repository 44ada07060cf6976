"""Today's bodies as Hugging Face's library writes them: a family is a model of config.json and a table of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator
from torch import Tensor

from ds_minimodel.bodies.config import BodyConfig
from ds_minimodel.bodies.hugging_face import Architecture, ConfigFile, Shapes, converted, part_sizes, remove_copy
from ds_minimodel.bodies.modern import (
    Epsilon,
    EuroBertConfig,
    Gemma3Config,
    LlamaConfig,
    ModernBertConfig,
    ModernConfig,
    Olmo2Config,
    Qwen2Config,
    Qwen3Config,
)
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored
from ds_minimodel.common.sections import Few, Probability, Size

_LINEAR = 1  # GroupedConfig.rotary_original by which all waves, each longer than a position, are slowed down whole
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_KINDS = {_GLOBAL: True, _LOCAL: False}
_Base = Annotated[float, Field(ge=1, le=1e9, strict=False)]
_Factor = Annotated[float, Field(ge=1, le=1e4, strict=False)]
_RotaryKind = Literal["default", "llama3", "linear"]
_NEEDED: Mapping[str, Sequence[str]] = {  # keys of a kind of angles
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_LayerTypes = list[Literal["full_attention", "sliding_attention"]] | None


class _Rotary(Stored):
    model_config = ConfigDict(extra="forbid")

    rope_type: Literal["default"] = "default"
    rope_theta: _Base | None = None
    partial_rotary_factor: Annotated[float, Field(ge=1, le=1, strict=False)] = 1.0


class _ScaledRotary(_Rotary):
    """Angles that may be slowed down; what a kind of them needs has no default."""

    rope_type: _RotaryKind = "default"  # type: ignore[assignment]
    factor: _Factor = 1.0
    low_freq_factor: _Factor = 1.0
    high_freq_factor: _Factor = 4.0
    original_max_position_embeddings: Size = 8192

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for key in _NEEDED[self.rope_type]:
            if key not in self.model_fields_set:
                raise ValueError(f"rope_type {self.rope_type} needs {key}")
        return self

    def fields(self) -> dict[str, Any]:
        """Of a GroupedConfig."""
        if self.rope_type == "default":
            return {}
        original = _LINEAR if self.rope_type == "linear" else self.original_max_position_embeddings
        return {
            "rotary_factor": self.factor,
            "rotary_low": self.low_freq_factor,
            "rotary_high": self.high_freq_factor,
            "rotary_original": original,
        }


class _NamedTwice(_ScaledRotary):
    """The same where a file may be older, which says `type` for rope_type."""

    type: _RotaryKind | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("type") is None:
            return value
        if value.get("rope_type", value["type"]) != value["type"]:
            raise ValueError("type and rope_type differ; leave one out")
        return {**value, "rope_type": value["type"]}


class _FamilyConfigFile(ConfigFile):
    """What is served of every family, with their library's defaults."""

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    attention_dropout: Annotated[Probability, Field(strict=False)] = 0.0
    layer_types: _LayerTypes = None

    def own_fields(self, where: Path) -> dict[str, Any]:
        """Of the family's configuration, beside the sizes that every family has; UserError where keys disagree."""
        raise NotImplementedError

    @classmethod
    def own_keys(cls, config: Any) -> dict[str, Any]:
        """Of config.json for a configuration of the family, beside those that every family has."""
        raise NotImplementedError


class ModernBertConfigFile(_FamilyConfigFile):
    """ModernBERT's."""

    class _RotaryByKind(Stored):
        model_config = ConfigDict(extra="forbid")

        full_attention: _Rotary = _Rotary()
        sliding_attention: _Rotary = _Rotary()

    vocab_size: Size = 50_368
    num_hidden_layers: Few = 22
    hidden_size: Size = 768
    num_attention_heads: Few = 12
    intermediate_size: Size = 1152
    max_position_embeddings: Size = 8192
    hidden_activation: Literal["gelu"] = "gelu"
    classifier_activation: Literal["gelu"] = "gelu"
    norm_eps: Epsilon = 1e-5
    norm_bias: Literal[False] = False
    classifier_bias: Literal[False] = False
    decoder_bias: Literal[True] = True
    tie_word_embeddings: Literal[True] = True
    rope_scaling: None = None
    rope_parameters: _RotaryByKind = _RotaryByKind()
    global_rope_theta: _Base = 160_000.0
    local_rope_theta: _Base = 10_000.0
    global_attn_every_n_layers: Few = 3
    local_attention: Annotated[int, Field(ge=0, le=10**7)] = 128
    sliding_window: int | None = None  # half of it, and theirs to overrule
    is_causal: Literal[False] = False
    embedding_dropout: Annotated[Probability, Field(strict=False)] = 0.0
    mlp_dropout: Annotated[Probability, Field(strict=False)] = 0.0

    def own_fields(self, where: Path) -> dict[str, Any]:
        bases, every = self.rope_parameters, self.global_attn_every_n_layers
        if self.sliding_window not in (None, self.local_attention // 2):
            raise UserError(f"{where}: sliding_window is not half of local_attention; leave one out")
        return {
            "dropout": float(max(self.mlp_dropout, self.embedding_dropout)),
            "norm_eps": self.norm_eps,
            "window": self.local_attention // 2,
            "global_every": _period(self.layer_types, every, self.num_hidden_layers, 0, where),
            "global_base": float(bases.full_attention.rope_theta or self.global_rope_theta),
            "local_base": float(bases.sliding_attention.rope_theta or self.local_rope_theta),
        }

    @classmethod
    def own_keys(cls, config: Any) -> dict[str, Any]:
        return {
            "hidden_activation": "gelu",
            "norm_eps": config.norm_eps,
            "layer_types": _layer_types(config),
            "global_attn_every_n_layers": config.global_every,
            "local_attention": 2 * config.window,
            "rope_parameters": {_GLOBAL: _rotary(config.global_base), _LOCAL: _rotary(config.local_base)},
            "embedding_dropout": config.dropout,
            "mlp_dropout": config.dropout,
        }


class GroupedConfigFile(_FamilyConfigFile):
    """That of Llama, and of the families that differ from it in few keys."""

    num_key_value_heads: Few | None = None
    head_dim: Few | None = None
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    rope_parameters: _NamedTwice | None = None
    rope_scaling: _NamedTwice | None = None
    rope_theta: _Base = 10_000.0
    original_max_position_embeddings: None = None  # of angles, and theirs to overrule
    use_sliding_window: Literal[False] = False
    is_causal: Literal[True] = True

    windowed: ClassVar[bool] = False  # whether layers may see a window

    @field_validator("layer_types")
    @classmethod
    def _see_all(cls, kinds: _LayerTypes) -> _LayerTypes:
        if not cls.windowed and kinds and _LOCAL in kinds:
            raise ValueError("layers that see a window are not served in this family")
        return kinds

    def own_fields(self, where: Path) -> dict[str, Any]:
        if self.rope_parameters and self.rope_scaling:
            raise UserError(f"{where}: rope_scaling stands beside rope_parameters; leave one out")
        rotary = self.rope_parameters or self.rope_scaling or _ScaledRotary()
        return {
            "norm_eps": self.rms_norm_eps,
            "num_kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_size": None if self.head_dim == self.hidden_size // self.num_attention_heads else self.head_dim,
            "tie_output": self.tie_word_embeddings,
            "rotary_base": float(rotary.rope_theta or self.rope_theta),
            **rotary.fields(),
        }

    @classmethod
    def own_keys(cls, config: Any) -> dict[str, Any]:
        return {
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            "num_key_value_heads": config.num_key_heads,
            "head_dim": config.head_width,
            "rope_parameters": _scaled_rotary(config),
        }


class EuroBertConfigFile(GroupedConfigFile):
    """EuroBERT's."""

    rms_norm_eps: Epsilon = 1e-5
    classifier_pooling: Literal["bos", "mean", "late"] = "late"  # a task's; a body has none
    is_causal: Literal[False] = False  # type: ignore[assignment]

    @classmethod
    def own_keys(cls, config: Any) -> dict[str, Any]:
        return {**super().own_keys(config), "classifier_pooling": "bos"}


class Qwen3ConfigFile(GroupedConfigFile):
    """Qwen 3's."""

    head_dim: Few | None = 128


class Olmo2ConfigFile(GroupedConfigFile):
    """OLMo 2's."""

    rms_norm_eps: Epsilon = 1e-5


class Gemma3ConfigFile(GroupedConfigFile):
    """Gemma 3's text model's."""

    class _RotaryByKind(Stored):
        model_config = ConfigDict(extra="forbid")

        full_attention: _ScaledRotary = _ScaledRotary()
        sliding_attention: _Rotary = _Rotary()

    hidden_act: None = None  # type: ignore[assignment]
    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    head_dim: Few | None = 256
    num_key_value_heads: Few | None = 4
    tie_word_embeddings: bool = True
    rope_parameters: _RotaryByKind | None = None  # type: ignore[assignment]
    rope_scaling: _ScaledRotary | None = None  # type: ignore[assignment]
    rope_theta: _Base = 1_000_000.0
    rope_local_base_freq: _Base = 10_000.0
    query_pre_attn_scalar: Few = 256
    sliding_window: Few = 4096
    sliding_window_pattern: Few = 6
    final_logit_softcapping: None = None
    attn_logit_softcapping: None = None
    use_bidirectional_attention: Literal[False] | None = None

    windowed: ClassVar[bool] = True

    def own_fields(self, where: Path) -> dict[str, Any]:
        by_kind = self.rope_parameters or self._RotaryByKind()
        plain = self.model_copy(update={"rope_parameters": self.rope_parameters and by_kind.full_attention})
        every = _period(self.layer_types, self.sliding_window_pattern, self.num_hidden_layers, -1, where)
        return {
            **super(Gemma3ConfigFile, plain).own_fields(where),
            "window": self.sliding_window,
            "global_every": every,
            "local_base": float(by_kind.sliding_attention.rope_theta or self.rope_local_base_freq),
            "score_size": self.query_pre_attn_scalar,
        }

    @classmethod
    def own_keys(cls, config: Any) -> dict[str, Any]:
        keys = super().own_keys(config)
        del keys["hidden_act"]
        return keys | {
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": _layer_types(config),
            "sliding_window": config.window,
            "query_pre_attn_scalar": config.score_size,
            "rope_parameters": {_GLOBAL: _scaled_rotary(config), _LOCAL: _rotary(config.local_base)},
        }


def _rotary(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base}


def _scaled_rotary(config: Any) -> dict[str, Any]:
    if config.rotary_factor == 1:
        return _rotary(config.rotary_base)
    if config.rotary_original == _LINEAR:
        return {"rope_type": "linear", "rope_theta": config.rotary_base, "factor": config.rotary_factor}
    return {
        "rope_type": "llama3",
        "rope_theta": config.rotary_base,
        "factor": config.rotary_factor,
        "low_freq_factor": config.rotary_low,
        "high_freq_factor": config.rotary_high,
        "original_max_position_embeddings": config.rotary_original,
    }


def _layer_types(config: ModernConfig) -> list[str]:
    return [_GLOBAL if config.sees_all(index) else _LOCAL for index in range(config.num_layers)]


def _period(kinds: _LayerTypes, every: int, num_layers: int, first: int, where: Path) -> int:
    """After how many layers one sees all; UserError where `kinds` are others than those of a period.

    every: the period where `kinds` says nothing. first: 0 where the first layer of a period sees all, -1 the last.
    """
    if kinds is None:
        return every
    found = [_KINDS[kind] for kind in kinds]
    wide = [index - first for index, is_global in enumerate(found) if is_global and index - first]
    every = wide[0] if wide else max(every, num_layers + 1)
    if found != [(index - first) % every == 0 for index in range(num_layers)]:
        at = "from the first on" if first == 0 else "the last of each period"
        raise UserError(f"{where}: layer_types: only every so many layers, {at}, may see all")
    return every


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


@dataclass(frozen=True, kw_only=True)
class ModernArchitecture(Architecture):
    """A family there. Names are of modules, without `.weight` and `.bias`; what a body has not is passed over.

    tokens, output, embedding_norm: their names of these; those of `layer` stand after `model.layers.N.`. head: modules
    of a language model's head -> theirs. task_head: modules of a task's -> theirs. shifted_norms: whether weights of
    norms are stored as what is added to 1.
    """

    own: type[ModernConfig]
    config_file: type[_FamilyConfigFile]
    tokens: str = "model.embed_tokens"
    output: str = "lm_head"
    embedding_norm: str = ""
    layer: Mapping[str, Sequence[str]] = field(default_factory=lambda: _LAYER)
    head: Mapping[str, str] = field(default_factory=lambda: {"final_norm": "model.norm"})
    task_head: Mapping[str, str] = field(default_factory=lambda: {"dense": "dense", "out": "classifier"})
    shifted_norms: bool = False

    def config(self, file: Any, where: Path) -> tuple[BodyConfig, int]:
        config = self.checked_config(
            file,
            where,
            max_positions=file.max_position_embeddings,
            attention_dropout=float(file.attention_dropout),
            **file.own_fields(where),
        )
        return config, file.vocab_size

    def own_keys(self, config: Any) -> dict[str, Any]:
        return {
            "max_position_embeddings": config.max_positions,
            "attention_dropout": config.attention_dropout,
            **self.config_file.own_keys(config),
        }

    def from_theirs(
        self, tensors: dict[str, Tensor], config: BodyConfig, shapes: Shapes, where: Path
    ) -> dict[str, Tensor]:
        theirs = {name: tensor for name, tensor in tensors.items() if not name.endswith(_ANGLES)}
        if config.tied:
            remove_copy(theirs, f"{self.output}.weight", f"{self.tokens}.weight", where)
        names = self._names(shapes, self.language_model_head(config.num_layers))
        ours = converted(theirs, names, shapes, where, self.classes, _blocks(config))
        return {name: tensor + 1 if self._is_shifted(name) else tensor for name, tensor in ours.items()}

    def to_theirs(self, tensors: dict[str, Tensor], config: BodyConfig, head: Mapping[str, str]) -> dict[str, Tensor]:
        theirs: dict[str, Tensor] = {}
        blocks = _blocks(config)
        if not any(name.startswith("body.heads.") for name in head):  # a task's model: it has the body's last head
            tensors = {name: tensor for name, tensor in tensors.items() if name not in ("pack.bias", "pack.output")}
            head = {**self.language_model_head(config.num_layers), **self.task_head}
        for ours, parts in self._names(tensors, head).items():
            tensor = tensors[ours] - 1 if self._is_shifted(ours) else tensors[ours]
            sizes = list(part_sizes(ours, parts, len(tensor), blocks))
            theirs |= {part: block.contiguous() for part, block in zip(parts, tensor.split(sizes), strict=True)}
        return theirs

    def language_model_head(self, depth: int) -> dict[str, str]:
        return {f"body.heads.{depth}.{ours}": theirs for ours, theirs in self.head.items()}

    def _names(self, ours: Iterable[str], head: Mapping[str, str]) -> dict[str, list[str]]:
        """Each of our parameters -> those of theirs that it is when these are concatenated along the first axis."""
        found = {}
        for name in ours:
            module, _, kind = name.rpartition(".")
            if module == "pack":
                theirs: Sequence[str] = (self.tokens if kind == "tokens" else self.output,)
                kind = "bias" if kind == "bias" else "weight"
            elif module in head:
                theirs = (head[module],)
            elif module == "body.embedding_norm":
                theirs = (self.embedding_norm,)
            elif module.startswith("body.layers."):
                _, _, index, part = module.split(".")
                theirs = [f"model.layers.{index}.{name}" for name in self.layer[part]]
            else:
                continue  # a head of another depth
            found[name] = [f"{their}.{kind}" for their in theirs]
        return found

    def _is_shifted(self, name: str) -> bool:
        return self.shifted_norms and "norm" in _module(name)


def _module(name: str) -> str:
    return name.split(".")[-2]


def _blocks(config: BodyConfig) -> dict[str, list[int]]:
    """Rows of the parts that a module's weight is concatenated of, where they are not equal."""
    heads = config.num_heads, config.num_key_heads, config.num_key_heads
    return {"qkv": [number * config.head_width for number in heads]}


_AFTER = {"attention_post_norm": ("post_attention_layernorm",), "ffn_post_norm": ("post_feedforward_layernorm",)}
_CAUSAL = ("ForCausalLM",)
_ANGLES = ".rotary_emb.inv_freq"  # of older files; config.json says the same
MODERNBERT = ModernArchitecture(
    "modernbert",
    "ModernBert",
    "ModernBert",
    own=ModernBertConfig,
    config_file=ModernBertConfigFile,
    tokens="model.embeddings.tok_embeddings",
    output="decoder",
    embedding_norm="model.embeddings.norm",
    layer={
        "attention_norm": ("attn_norm",),
        "qkv": ("attn.Wqkv",),
        "attention_out": ("attn.Wo",),
        "ffn_norm": ("mlp_norm",),
        "ffn_in": ("mlp.Wi",),
        "ffn_out": ("mlp.Wo",),
    },
    head={"final_norm": "model.final_norm", "dense": "head.dense", "norm": "head.norm"},
)
EUROBERT = ModernArchitecture(
    "eurobert",
    "EuroBert",
    "PreTrained",
    ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    own=EuroBertConfig,
    config_file=EuroBertConfigFile,
)
LLAMA = ModernArchitecture("llama", "Llama", "PreTrained", _CAUSAL, own=LlamaConfig, config_file=GroupedConfigFile)
QWEN2 = ModernArchitecture("qwen2", "Qwen2", "Qwen2", _CAUSAL, own=Qwen2Config, config_file=GroupedConfigFile)
QWEN3 = ModernArchitecture("qwen3", "Qwen3", "Qwen2", _CAUSAL, own=Qwen3Config, config_file=Qwen3ConfigFile)
OLMO2 = ModernArchitecture(
    "olmo2", "Olmo2", "PreTrained", _CAUSAL, own=Olmo2Config, config_file=Olmo2ConfigFile, layer={**_LAYER, **_AFTER}
)
GEMMA3 = ModernArchitecture(
    "gemma3_text",
    "Gemma3",
    "Gemma",
    _CAUSAL,
    own=Gemma3Config,
    config_file=Gemma3ConfigFile,
    layer={**_LAYER, **_AFTER, "ffn_norm": ("pre_feedforward_layernorm",)},
    shifted_norms=True,
)
ARCHITECTURES = {
    architecture.own.model_fields["kind"].default: architecture
    for architecture in (MODERNBERT, EUROBERT, LLAMA, QWEN2, QWEN3, OLMO2, GEMMA3)
}
