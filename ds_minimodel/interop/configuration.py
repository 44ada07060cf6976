"""Conversion between Hugging Face's config.json and our BodyConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored, read_model
from ds_minimodel.common.vocabulary import BOS, EOS, PAD
from ds_minimodel.data.tokenizer_json import ADVICE
from ds_minimodel.model.artifacts import Layers, Rate, Size, architecture_fault
from ds_minimodel.model.transformer import FIRST_POSITION, INIT_STD, LAYER_NORM_EPS, BodyConfig


class _RobertaConfig(Stored):
    """Of config.json what decides the model: what is served, with RobertaConfig's defaults for absent keys."""

    model_config = ConfigDict(validate_default=True)

    model_type: str
    hidden_act: Literal["gelu"] = "gelu"
    layer_norm_eps: float = 1e-12
    type_vocab_size: int = 2
    position_embedding_type: Literal["absolute"] | None = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True
    bos_token_id: int = BOS
    pad_token_id: int = PAD
    eos_token_id: int = EOS
    pruned_heads: Annotated[dict[str, Any], Field(max_length=0)] = {}
    vocab_size: Size
    num_hidden_layers: Layers
    hidden_size: Size
    num_attention_heads: Size
    intermediate_size: Size
    max_position_embeddings: Annotated[Size, Field(gt=FIRST_POSITION)]
    hidden_dropout_prob: Rate = 0.1
    attention_probs_dropout_prob: Rate = 0.1
    architectures: list[str] | None = None
    id2label: dict[str, str] | None = None

    @field_validator("model_type")
    @classmethod
    def _is_served(cls, value: str) -> str:
        if value not in ("roberta", "xlm-roberta"):
            raise ValueError(f"model_type {value}; import-hf takes roberta and xlm-roberta")
        return value

    @field_validator("layer_norm_eps", "type_vocab_size", "bos_token_id", "pad_token_id", "eos_token_id")
    @classmethod
    def _is_ours(cls, value: float, info: Any) -> float:
        ours = {"layer_norm_eps": LAYER_NORM_EPS, "type_vocab_size": 1}
        ours |= {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}
        if value != ours[info.field_name]:
            raise ValueError(f"only {ours[info.field_name]} is supported")
        return value


def read_config(folder: str | Path) -> tuple[BodyConfig, int]:
    """(BodyConfig with its head on the last layer, vocabulary's size) of a RoBERTa or XLM-R folder.

    Raises UserError where the architecture is another or has a setting that the body does not have.
    """
    path = Path(folder) / "config.json"
    config = read_model(path, _RobertaConfig, ADVICE)
    body = BodyConfig(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings - FIRST_POSITION,
        (config.num_hidden_layers,),
        config.hidden_dropout_prob,
        config.attention_probs_dropout_prob,
    )
    fault = architecture_fault(body)
    if fault:
        raise UserError(f"{path}: num_attention_heads, num_hidden_layers: {fault}")
    return body, config.vocab_size


def config_json(architecture: str, body: BodyConfig, num_layers: int, vocab_size: int, **extra: Any) -> dict[str, Any]:
    """The content of config.json for Hugging Face's class `architecture` with the bottom `num_layers` of `body`."""
    return {
        "architectures": [architecture],
        "model_type": "roberta",
        "vocab_size": vocab_size,
        "num_hidden_layers": num_layers,
        "hidden_size": body.hidden_size,
        "num_attention_heads": body.num_heads,
        "intermediate_size": body.ffn_size,
        "max_position_embeddings": body.max_positions + FIRST_POSITION,
        "hidden_act": "gelu",
        "layer_norm_eps": LAYER_NORM_EPS,
        "type_vocab_size": 1,
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
