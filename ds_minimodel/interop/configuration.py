"""Conversion between Hugging Face's config.json and our BodyConfig."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored, read_model
from ds_minimodel.common.vocabulary import BOS, EOS, PAD
from ds_minimodel.data.tokenizer_json import ADVICE
from ds_minimodel.interop.architectures import ARCHITECTURES, Architecture
from ds_minimodel.model.artifacts import Epsilon, Layers, Rate, Size, architecture_fault
from ds_minimodel.model.transformer import INIT_STD, BodyConfig

# A folder that transformers' Trainer made, such as out/checkpoint-500, is none.
_HUB_NAME = re.compile(r"(?!.*checkpoint-[0-9]+$)[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)


class _Config(Stored):
    """Of config.json what decides the model: what is served, with RobertaConfig's defaults for absent keys."""

    model_config = ConfigDict(validate_default=True)

    model_type: str
    hidden_act: Literal["gelu"] = "gelu"
    layer_norm_eps: Epsilon = 1e-12
    type_vocab_size: int = 2
    position_embedding_type: Literal["absolute"] | None = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True
    bos_token_id: int | None = BOS
    pad_token_id: int | None = PAD
    eos_token_id: int | None = EOS
    pruned_heads: Annotated[dict[str, Any], Field(max_length=0)] = {}
    vocab_size: Size
    num_hidden_layers: Layers
    hidden_size: Size
    num_attention_heads: Size
    intermediate_size: Size
    max_position_embeddings: Size
    hidden_dropout_prob: Rate = 0.1
    attention_probs_dropout_prob: Rate = 0.1
    architectures: list[str] | None = None
    id2label: dict[str, str] | None = None
    # Of what the library read that wrote the file: a name on the Hub, or a folder.
    name_or_path: Annotated[object, Field(alias="_name_or_path")] = None

    @field_validator("model_type")
    @classmethod
    def _is_served(cls, value: str) -> str:
        if value not in ARCHITECTURES:
            *first, last = ARCHITECTURES
            raise ValueError(f"model_type {value}; import-hf takes {', '.join(first)} and {last}")
        return value

    @field_validator("architectures")
    @classmethod
    def _names_one(cls, value: list[str] | None) -> list[str] | None:
        if value == []:
            raise ValueError("names no class; import-hf takes masked language models such as RobertaForMaskedLM")
        return value

    @field_validator("type_vocab_size", "bos_token_id", "pad_token_id", "eos_token_id", "max_position_embeddings")
    @classmethod
    def _is_ours(cls, value: int | None, info: ValidationInfo) -> int | None:
        architecture = ARCHITECTURES.get(info.data.get("model_type", ""))
        if architecture is None:
            return value
        ours = {"type_vocab_size": architecture.token_types, **architecture.fixed_ids}
        if value != ours.get(str(info.field_name), value):
            raise ValueError(f"only {ours[str(info.field_name)]} is supported")
        if info.field_name == "max_position_embeddings" and value is not None and value <= architecture.first_position:
            raise ValueError(f"no positions: the first {architecture.first_position} are not used")
        return value


def read_config(folder: str | Path) -> tuple[BodyConfig, int, Architecture, str | None]:
    """Of a Hugging Face folder (BodyConfig with its head on the last layer, vocabulary's size, Architecture, name).

    name: the model's on the Hub, None where config.json does not say it. Raises UserError where the architecture is
    another or has a setting that the body does not have.
    """
    path = Path(folder) / "config.json"
    config = read_model(path, _Config, ADVICE)
    architecture = ARCHITECTURES[config.model_type]
    body = BodyConfig(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings - architecture.first_position,
        (config.num_hidden_layers,),
        config.hidden_dropout_prob,
        config.attention_probs_dropout_prob,
        config.layer_norm_eps,
        config.type_vocab_size,
    )
    fault = architecture_fault(body, "num_attention_heads", "num_hidden_layers")
    if fault:
        raise UserError(f"{path}: {fault}")
    return body, config.vocab_size, architecture, hub_name(config.name_or_path)


def hub_name(value: object) -> str | None:
    """`value` where it has the form of a model's name on the Hub, such as roberta-base or FacebookAI/roberta-base."""
    return value if isinstance(value, str) and _HUB_NAME.fullmatch(value) else None


def config_json(
    architecture: Architecture, task: str, body: BodyConfig, num_layers: int, vocab_size: int, **extra: Any
) -> dict[str, Any]:
    """The content of config.json for Hugging Face's class with the bottom `num_layers` of `body`.

    task: how the class's name ends, ForMaskedLM for example.
    """
    return {
        "architectures": [architecture.classes + task],
        "model_type": architecture.model_type,
        "vocab_size": vocab_size,
        "num_hidden_layers": num_layers,
        "hidden_size": body.hidden_size,
        "num_attention_heads": body.num_heads,
        "intermediate_size": body.ffn_size,
        "max_position_embeddings": body.max_positions + architecture.first_position,
        "hidden_act": "gelu",
        "layer_norm_eps": body.norm_eps,
        "type_vocab_size": body.token_types,
        "initializer_range": INIT_STD,
        "hidden_dropout_prob": body.dropout,
        "attention_probs_dropout_prob": body.attention_dropout,
        "bos_token_id": BOS,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **extra,
    }
