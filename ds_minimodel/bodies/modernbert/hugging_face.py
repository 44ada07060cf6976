"""ModernBERT as Hugging Face's library writes it: configuration and names of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from torch import Tensor

from ds_minimodel.bodies.body import INIT_STD
from ds_minimodel.bodies.config import BodyConfig
from ds_minimodel.bodies.hugging_face import Architecture, Shapes, checked_config, converted, remove_copy
from ds_minimodel.bodies.modernbert import ModernBertConfig
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored
from ds_minimodel.common.sections import Few, Probability, Size

_LAYER = {
    "attention_norm": "attn_norm",
    "qkv": "attn.Wqkv",
    "attention_out": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_in": "mlp.Wi",
    "ffn_out": "mlp.Wo",
}
_HEAD = {"final_norm": "model.final_norm", "dense": "head.dense", "norm": "head.norm"}
_TOKENS = "model.embeddings.tok_embeddings.weight"
_KINDS = {"full_attention": True, "sliding_attention": False}


class _Rotary(Stored):
    model_config = ConfigDict(extra="forbid")

    rope_type: Literal["default"] = "default"
    rope_theta: Annotated[float, Field(ge=1, le=1e9, strict=False)]


class _RotaryByKind(Stored):
    model_config = ConfigDict(extra="forbid")

    full_attention: _Rotary = _Rotary(rope_theta=160_000.0)
    sliding_attention: _Rotary = _Rotary(rope_theta=10_000.0)


class ModernBertConfigFile(Stored):
    """Of config.json what decides the model: what is served, with ModernBertConfig's defaults for absent keys."""

    model_config = ConfigDict(validate_default=True)

    hidden_activation: Literal["gelu"] = "gelu"
    classifier_activation: Literal["gelu"] = "gelu"
    norm_eps: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    norm_bias: Literal[False] = False
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    classifier_bias: Literal[False] = False
    decoder_bias: Literal[True] = True
    tie_word_embeddings: Literal[True] = True
    rope_scaling: None = None
    rope_parameters: _RotaryByKind | None = None
    global_rope_theta: Annotated[float, Field(ge=1, le=1e9, strict=False)] = 160_000.0
    local_rope_theta: Annotated[float, Field(ge=1, le=1e9, strict=False)] = 10_000.0
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    global_attn_every_n_layers: Few = 3
    local_attention: Annotated[int, Field(ge=0, le=10**7)] = 128
    vocab_size: Size = 50_368
    num_hidden_layers: Few = 22
    hidden_size: Size = 768
    num_attention_heads: Few = 12
    intermediate_size: Size = 1152
    max_position_embeddings: Size = 8192
    attention_dropout: Annotated[Probability, Field(strict=False)] = 0.0
    embedding_dropout: Annotated[Probability, Field(strict=False)] = 0.0
    mlp_dropout: Annotated[Probability, Field(strict=False)] = 0.0


@dataclass(frozen=True)
class ModernBertArchitecture(Architecture):
    """ModernBERT."""

    @property
    def config_file(self) -> type[Stored]:
        return ModernBertConfigFile

    def config(self, file: Any, where: Path) -> tuple[BodyConfig, int]:
        every = file.global_attn_every_n_layers
        if file.layer_types is not None:
            found = [_KINDS[kind] for kind in file.layer_types]
            later = [index for index, is_global in enumerate(found) if is_global and index]
            every = later[0] if later else max(every, file.num_hidden_layers)
            if found != [index % every == 0 for index in range(file.num_hidden_layers)]:
                raise UserError(f"{where}: layer_types: only every so many layers, from the first on, may see all")
        bases = file.rope_parameters
        config = checked_config(
            ModernBertConfig,
            where,
            num_layers=file.num_hidden_layers,
            hidden_size=file.hidden_size,
            num_heads=file.num_attention_heads,
            ffn_size=file.intermediate_size,
            max_positions=file.max_position_embeddings,
            dropout=float(max(file.mlp_dropout, file.embedding_dropout)),
            attention_dropout=float(file.attention_dropout),
            norm_eps=file.norm_eps,
            window=file.local_attention // 2,
            global_every=every,
            global_base=float(bases.full_attention.rope_theta if bases else file.global_rope_theta),
            local_base=float(bases.sliding_attention.rope_theta if bases else file.local_rope_theta),
        )
        return config, file.vocab_size

    def config_json(self, config: BodyConfig, vocab_size: int) -> dict[str, Any]:
        assert isinstance(config, ModernBertConfig)
        kinds = [
            "full_attention" if config.is_global(index) else "sliding_attention" for index in range(config.num_layers)
        ]
        return {
            "model_type": self.model_type,
            "vocab_size": vocab_size,
            "num_hidden_layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.ffn_size,
            "max_position_embeddings": config.max_positions,
            "hidden_activation": "gelu",
            "norm_eps": config.norm_eps,
            "layer_types": kinds,
            "global_attn_every_n_layers": config.global_every,
            "local_attention": 2 * config.window,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": config.global_base},
                "sliding_attention": {"rope_type": "default", "rope_theta": config.local_base},
            },
            "initializer_range": INIT_STD,
            "attention_dropout": config.attention_dropout,
            "embedding_dropout": config.dropout,
            "mlp_dropout": config.dropout,
            "tie_word_embeddings": True,
        }

    def from_theirs(
        self, tensors: dict[str, Tensor], config: BodyConfig, shapes: Shapes, where: Path
    ) -> dict[str, Tensor]:
        theirs = dict(tensors)
        remove_copy(theirs, "decoder.weight", _TOKENS, where)
        names = self._names(config, self.language_model_head(config.num_layers))
        return converted(theirs, names, shapes, where, "ModernBERT")

    def to_theirs(self, tensors: dict[str, Tensor], config: BodyConfig, head: Mapping[str, str]) -> dict[str, Tensor]:
        return {theirs: tensors[ours].contiguous() for ours, (theirs,) in self._names(config, head).items()}

    def language_model_head(self, depth: int) -> dict[str, str]:
        return {f"body.heads.{depth}.{ours}": theirs for ours, theirs in _HEAD.items()}

    def _names(self, config: BodyConfig, head: Mapping[str, str]) -> dict[str, list[str]]:
        """Each of our parameters -> theirs. A task's model has the body's last head; its scores are `classifier`."""
        found = {"pack.tokens": [_TOKENS], "body.embedding_norm.weight": ["model.embeddings.norm.weight"]}
        if any(name.startswith("body.heads.") for name in head):
            found["pack.bias"] = ["decoder.bias"]
        else:
            head = {**self.language_model_head(config.num_layers), "out": "classifier"}
            found["out.bias"] = ["classifier.bias"]
        found |= {f"{ours}.weight": [f"{theirs}.weight"] for ours, theirs in head.items()}
        for layer in range(config.num_layers):
            for ours, theirs in _LAYER.items():
                if layer or ours != "attention_norm":
                    found[f"body.layers.{layer}.{ours}.weight"] = [f"model.layers.{layer}.{theirs}.weight"]
        return found


MODERNBERT = (ModernBertArchitecture("modernbert", "ModernBert", "ModernBert"),)
