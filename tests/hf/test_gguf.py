"""A model in one GGUF file comes in as the folder does that it was made of."""

import json

import gguf
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ds_minimodel.common.errors import UserError
from ds_minimodel.hf.convert import import_model

from . import test_decoders

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder, path):
    """The Llama in `folder` as llama.cpp has it: rows of queries and keys are in pairs of rotary positions."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*tokenizer["vocab"]])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)

    def paired(rows):
        heads = config["num_attention_heads"]
        return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)

    writer.add_tensor("token_embd.weight", tensors["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", tensors["model.norm.weight"].numpy())
    for layer in range(config["num_hidden_layers"]):
        for name, theirs in NAMES.items():
            rows = tensors[f"model.layers.{layer}.{name}.weight"]
            rows = paired(rows) if name in ("self_attn.q_proj", "self_attn.k_proj") else rows
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", rows.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_it_comes_in_as_its_folder_does(text_file, tmp_path):
    folder = test_decoders.save_llama(text_file, tmp_path / "theirs", "$A")
    write_gguf(folder, tmp_path / "tiny.gguf")
    import_model(tmp_path / "tiny.gguf", tmp_path / "new/out")
    import_model(folder, tmp_path / "again")
    for part in ("body/model", "pack/embeddings"):
        one, other = (load_file(tmp_path / name / f"{part}.safetensors") for name in ("new/out", "again"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    manifest = json.loads((tmp_path / "new/out/pack/manifest.json").read_text())
    assert manifest["imported_from"] == "tiny" and "base_model" not in manifest, "a file's name is none on the Hub"
    text = text_file.read_text()[:300]
    one, other = (AutoTokenizer.from_pretrained(tmp_path / place)(text) for place in ("new/out/pack", "theirs"))
    assert one["input_ids"] == other["input_ids"]


def test_what_is_none_is_refused(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GG")
    with pytest.raises(UserError, match="bad.gguf: not a GGUF file"):
        import_model(path, tmp_path / "out")
    path.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(UserError, match="bad.gguf: not a GGUF file"):
        import_model(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
