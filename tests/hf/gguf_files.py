"""Models in GGUF files, as llama.cpp has them."""

import gguf
import numpy as np
from safetensors.torch import load_file

from tests.helpers.files import read_json


def write_gguf(folder, path, pre="smollm", split=0, facts=(), tensors=(), tokens=None):
    """The model in `folder` as llama.cpp has it. facts, tensors: others than those of the folder,
    None to leave out.

    Rows of a Llama's queries and keys are in pairs of rotary positions; Gemma's norms are what is
    multiplied with.
    """
    config = read_json(folder / "config.json")
    facts = dict(facts)
    tensors = dict(tensors)
    kind = config["model_type"].removesuffix("_text")
    values = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "vocab_size": config["vocab_size"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"].get(
            "full_attention", config["rope_parameters"]
        )["rope_theta"],
    }
    if kind == "gemma3":
        values["attention.sliding_window"] = config["sliding_window"]
    if tokens is None:
        model = read_json(folder / "tokenizer.json")["model"]
        tokens = {"model": "gpt2", "pre": pre, "tokens": [*model["vocab"]]}
        tokens |= {
            "merges": [" ".join(merge) for merge in model["merges"]],
            "eos_token_id": 0,
            "bos_token_id": 1,
        }
    values = {f"{kind}.{key}": value for key, value in values.items()}
    values |= {f"tokenizer.ggml.{key}": value for key, value in tokens.items()}
    writer = gguf.GGUFWriter(path, kind, split_max_tensors=split)
    for key, value in (values | facts).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            add = {
                str: writer.add_string,
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
            }
            add[type(value)](key, value)
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind),
        config["num_hidden_layers"],
    )
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if kind == "llama" and ("attn_q" in name or "attn_k" in name):
            heads = config["num_attention_heads" if "attn_q" in name else "num_key_value_heads"]
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        if kind == "gemma3" and name.endswith("norm.weight"):
            tensor = tensor + 1
        if name not in tensors:
            writer.add_tensor(name, np.ascontiguousarray(tensor.numpy()))
    for name, tensor in tensors.items():
        if tensor is not None:
            writer.add_tensor(name, np.asarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
