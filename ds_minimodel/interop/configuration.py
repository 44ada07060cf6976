"""Conversion between Hugging Face's config.json and our BodyConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json
from ds_minimodel.common.vocabulary import BOS, EOS, PAD
from ds_minimodel.model.transformer import FIRST_POSITION, INIT_STD, LAYER_NORM_EPS, BodyConfig

# What a checkpoint must have: (key, what RobertaConfig takes where the key is absent, the values served).
_REQUIRED = (
    ("hidden_act", "gelu", ("gelu",)),
    ("layer_norm_eps", 1e-12, (LAYER_NORM_EPS,)),
    ("type_vocab_size", 2, (1,)),
    ("position_embedding_type", "absolute", ("absolute", None)),
    ("is_decoder", False, (False,)),
    ("add_cross_attention", False, (False,)),
    ("tie_word_embeddings", True, (True,)),
    ("bos_token_id", BOS, (BOS,)),
    ("pad_token_id", PAD, (PAD,)),
    ("eos_token_id", EOS, (EOS,)),
)
_SIZES = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def read_config(folder: str | Path) -> tuple[BodyConfig, int]:
    """(BodyConfig with its head on the last layer, vocabulary's size) of a RoBERTa or XLM-R folder.

    Raises UserError where the architecture is another or has a setting that the body does not have.
    """
    path = Path(folder) / "config.json"
    config = read_json(path)
    if config.get("model_type") not in ("roberta", "xlm-roberta"):
        raise UserError(f"{path}: model_type {config.get('model_type')}; import-hf takes roberta and xlm-roberta")
    for key, default, served in _REQUIRED:
        value = config.get(key, default)
        if value not in served:
            raise UserError(f"{path}: {key} {value} is not supported, only {served[0]}")
    for key in _SIZES:
        if not isinstance(config.get(key), int) or config[key] < 1:
            raise UserError(f"{path}: {key} must be a whole number above 0, not {config.get(key)}")
    vocab_size, layers, hidden, heads, ffn, positions = (config[key] for key in _SIZES)
    if hidden % heads or positions <= FIRST_POSITION:
        raise UserError(
            f"{path}: hidden_size must be a multiple of num_attention_heads, and "
            f"max_position_embeddings above {FIRST_POSITION}"
        )
    return BodyConfig(
        layers,
        hidden,
        heads,
        ffn,
        positions - FIRST_POSITION,
        (layers,),
        config.get("hidden_dropout_prob", 0.1),
        config.get("attention_probs_dropout_prob", 0.1),
    ), vocab_size


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
