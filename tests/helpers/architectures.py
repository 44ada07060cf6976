"""Configurations of Hugging Face's for every kind of body."""

import transformers

from ds_minimodel.hf.names import ARCHITECTURES

SIZES = dict(
    vocab_size=90,
    hidden_size=32,
    intermediate_size=40,
    num_attention_heads=4,
    max_position_embeddings=64,
)
IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
THETA = {"rope_type": "default", "rope_theta": 5e4}
BASES = {"full_attention": THETA, "sliding_attention": {**THETA, "rope_theta": 1e3}}
SCALED = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3 = {**THETA, **SCALED, "original_max_position_embeddings": 16}
LINEAR = {**THETA, "rope_type": "linear", "factor": 4.0}
GEMMA = dict(
    num_key_value_heads=1,
    head_dim=16,
    sliding_window=8,
    query_pre_attn_scalar=24,
    rope_parameters=BASES,
)


# Kind, layers, keys of config.json.
SHAPES = {
    "roberta": (
        "roberta",
        3,
        dict(type_vocab_size=1, pad_token_id=1, bos_token_id=0, layer_norm_eps=1e-5),
    ),
    "modernbert as published": ("modernbert", 7, dict(local_attention=16)),
    "modernbert, all global": (
        "modernbert",
        2,
        dict(global_attn_every_n_layers=1, local_attention=4),
    ),
    "modernbert, other bases": ("modernbert", 4, dict(local_attention=6, rope_parameters=BASES)),
    "eurobert": ("eurobert", 3, dict(num_key_value_heads=2, rope_parameters=THETA)),
    "eurobert, tied": ("eurobert", 3, dict(tie_word_embeddings=True)),
    "llama, angles scaled": (
        "llama",
        3,
        dict(num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=LLAMA3),
    ),
    "llama, untied": ("llama", 3, dict(num_key_value_heads=2, rope_parameters=LINEAR)),
    "qwen2": ("qwen2", 3, dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": ("qwen3", 3, dict(num_key_value_heads=2, head_dim=12, tie_word_embeddings=True)),
    "olmo2": ("olmo2", 3, dict(num_key_value_heads=2, rope_parameters=THETA)),
    "gemma3": ("gemma3", 7, GEMMA),
}


def config_of(shape, **changes):
    """Hugging Face's configuration."""
    kind, num_layers, keys = SHAPES[shape]
    values = {**SIZES, **IDS, "num_hidden_layers": num_layers, **keys, **changes}
    return transformers.AutoConfig.for_model(ARCHITECTURES[kind][0].model_type, **values)
