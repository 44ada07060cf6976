"""A base is named, not copied: what is touched is taken, another file is not, and what is computed
is proved.
"""

import copy
import dataclasses
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.integrations import hub_kernels

from ds_minimodel.artifacts import base
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.export.folder import export_hf
from ds_minimodel.hf.names import ARCHITECTURES
from tests.helpers.files import read_json
from tests.helpers.foreign_models import save_llama
from tests.helpers.refusals import refuses

from .conftest import randomise
from .refusing import change, refused

SIZES = dict(
    hidden_size=16,
    intermediate_size=24,
    num_attention_heads=2,
    vocab_size=330,
    max_position_embeddings=128,
)
IDS = dict(bos_token_id=0, eos_token_id=2, pad_token_id=1, cls_token_id=0, sep_token_id=2)
GEMMA = dict(
    head_dim=8,
    num_key_value_heads=1,
    num_hidden_layers=7,
    sliding_window=8,
    query_pre_attn_scalar=8,
)
FAMILIES = {
    "llama": dict(num_hidden_layers=3, num_key_value_heads=1),
    "gemma3_text": GEMMA,
    "qwen3": dict(num_hidden_layers=2, num_key_value_heads=2),
    "modernbert": dict(num_hidden_layers=4, local_attention=12),
    "xlm-roberta": dict(num_hidden_layers=2),
}


def save(folder, family, dtype=torch.float32, **changes):
    """A model of a family, with weights that hide nothing, and no tokenizer."""
    config = AutoConfig.for_model(family, **SIZES | IDS | FAMILIES[family] | changes)
    is_encoder = family in ("modernbert", "xlm-roberta")
    auto = AutoModelForMaskedLM if is_encoder else AutoModelForCausalLM
    randomise(auto.from_config(config)).to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture
def model(xlm_r_json, tmp_path):
    """(Hugging Face's folder, ours, what ours holds)"""
    theirs = shutil.copytree(xlm_r_json, tmp_path / "theirs")
    refer(theirs, tmp_path / "ours", "en")
    return theirs, tmp_path / "ours", dict(load_model(tmp_path / "ours")[0].tensors)


def test_what_was_touched_or_lies_beside_it_is_taken(model):
    theirs, ours, tensors = model
    assert tensors
    assert {path.name for path in ours.iterdir()} == {"manifest.json", "tokenizer"}
    for path in theirs.iterdir():
        os.utime(path, (1, 1))
    shutil.copy(theirs / "tokenizer.json", theirs / "copy")
    (theirs / "copy").rename(theirs / "tokenizer.json")
    (theirs / "README.md").write_text("new")
    assert_close(dict(load_model(ours)[0].tensors), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "config.json", "tokenizer.json"])
def test_another_file_is_refused(model, name):
    theirs, ours, _ = model
    content = bytearray((theirs / name).read_bytes())
    content[len(content) // 2] ^= 1
    (theirs / name).write_bytes(content)
    with refuses(f"{name}: another file than when this was begun .*; put it back, or begin anew"):
        load_model(ours)


def test_weights_that_came_beside_those_of_the_reference_are_not_read(model):
    """transformers, and a new reference, would take the safetensors first."""
    theirs, ours, _ = model
    save_file({"other": torch.zeros(2)}, theirs / "model.safetensors")
    with refuses("its weights lie in other files than when this was begun"):
        load_model(ours)


def test_a_model_that_was_moved_is_missed(model):
    theirs, ours, _ = model
    theirs.rename(theirs.with_name("elsewhere"))
    with refuses("No such file or directory; put the model back that this is over"):
        load_model(ours)


@pytest.mark.parametrize(
    "family, dtype", [("llama", "bfloat16"), ("llama", "float16"), ("gemma3_text", "bfloat16")]
)
def test_numbers_come_out_in_the_type_that_they_came_in(text_file, tmp_path, family, dtype):
    theirs = save(save_llama(text_file, tmp_path / "theirs", "$A"), family, getattr(torch, dtype))
    refer(theirs, tmp_path / "in")
    export_hf(tmp_path / "in", tmp_path / "same")
    export_hf(tmp_path / "in", tmp_path / "wide", dtype="fp32")
    before = load_file(tmp_path / "theirs/model.safetensors")
    same = load_file(tmp_path / "same/model.safetensors")
    wide = load_file(tmp_path / "wide/model.safetensors")
    assert before.keys() == same.keys() == wide.keys()
    for name, tensor in before.items():
        assert tensor.dtype == same[name].dtype == getattr(torch, dtype)
        assert wide[name].dtype == torch.float32
        assert_close(same[name], tensor, rtol=0, atol=1e-6 if "norm" in name else 0)
    configs = {name: AutoConfig.from_pretrained(tmp_path / name).dtype for name in ("same", "wide")}
    assert configs == {"same": getattr(torch, dtype), "wide": torch.float32}


@pytest.mark.parametrize(
    "family, key, value",
    [
        ("llama", "attention_bias", True),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gemma3_text", "final_logit_softcapping", 1.0),
        ("modernbert", "mlp_bias", True),
        ("modernbert", "decoder_bias", False),
        # That no configuration of the family has, and transformers' shared code reads.
        ("llama", "sliding_window", 4),
        ("llama", "is_causal", False),
        ("llama", "attention_chunk_size", 4),
        ("qwen3", "kv_sharing_modes", {"1": 0}),
        ("llama", "per_layer_config", {"1": {"num_key_value_heads": 1}}),
        ("xlm-roberta", "is_decoder", True),
    ],
)
def test_a_setting_that_is_not_computed_is_refused(tmp_path, family, key, value):
    """As models/test_modern.py has it of those that our configuration has a field for."""
    folder = save(tmp_path / "hf", family)
    change(folder / "config.json", **{key: value})
    refused(folder, tmp_path / "out", f"{key} {value} is a setting that is not computed here")


def test_a_setting_that_decides_another_is_refused(tmp_path):
    folder = save(tmp_path / "hf", "llama")
    change(folder / "config.json", partial_rotary_factor=0.5)
    refused(folder, tmp_path / "out", "rope_parameters", "partial_rotary_factor", "not computed")


def test_other_weights_that_a_configuration_names_are_refused(tmp_path):
    """transformers reads them in place of model.safetensors, which alone is proved and trained."""
    folder = save(tmp_path / "hf", "llama")
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    change(folder / "config.json", transformers_weights="other.safetensors")
    refused(folder, tmp_path / "out", "transformers_weights")


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_no_kernel_of_a_configuration_is_loaded(text_file, tmp_path, monkeypatch, key):
    """transformers fetches and runs code of the Hub for such a name."""
    asked = []
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *names, **_: asked.append(names))
    folder = save_llama(text_file, tmp_path / "hf", "$A")
    change(folder / "config.json", **{key: "someone/kernel@main:run"})
    refer(folder, tmp_path / "out")
    module = base.module_of(folder)
    assert module.config._attn_implementation == "sdpa"
    assert not asked


def test_notes_in_a_configuration_change_nothing(text_file, tmp_path):
    notes = dict(unsloth_version="1", rope_interleaved=False, num_labels=10**9, return_dict=False)
    notes |= dict(attention_dropout=0.5, model_name="m", pretraining_tp=2, output_attentions=True)
    folder = save_llama(text_file, tmp_path / "hf", "$A")
    before = base.module_of(folder)(torch.arange(5)[None]).logits
    change(folder / "config.json", **notes)
    refer(folder, tmp_path / "out")
    assert_close(base.module_of(folder)(torch.arange(5)[None]).logits, before)


def test_the_proof_writes_with_a_cache(tmp_path, monkeypatch):
    """A window that transformers' cache alone obeys."""
    found = base.config_of(save(tmp_path / "hf", "llama"))
    theirs = copy.deepcopy(found.hf_config)
    theirs.sliding_window = 4
    other = dataclasses.replace(found, hf_config=theirs)
    monkeypatch.setattr(base, "_read_config", lambda *_: other)
    refused(tmp_path / "hf", tmp_path / "out", "logits of up to")


def test_every_key_that_is_written_is_one_that_is_read():
    """Of a folder of ours, or transformers would be given another model than we wrote."""
    for architectures in ARCHITECTURES.values():
        for architecture in architectures:
            config = architecture.config_class()
            keys = architecture.config_json(config, 50).keys() - {"model_type", "initializer_range"}
            assert all(map(architecture.reads, keys)), keys


@pytest.mark.parametrize(
    "family, changes",
    [
        *(("llama", {"rotary_base": 9e3}), ("llama", {"norm_eps": 1e-2})),
        *(
            ("gemma3_text", {key: value})
            for key, value in dict(window=9, local_base=9e3, rotary_base=9e5).items()
        ),
        *(
            ("modernbert", {key: value})
            for key, value in dict(window=7, local_base=9e3, global_base=9e4).items()
        ),
    ],
)
def test_the_proof_sees_every_layer_of_its_kind_and_past_its_window(
    tmp_path, monkeypatch, family, changes
):
    """A body that is nearly the model's: by one position of a window, or angles that turn a little
    faster.
    """
    found = base.config_of(save(tmp_path / "hf", family))
    assert all(getattr(found.config, name) != value for name, value in changes.items())
    other = dataclasses.replace(found, config=found.config.model_copy(update=changes))
    monkeypatch.setattr(base, "_read_config", lambda *_: other)
    refused(tmp_path / "hf", tmp_path / "out", "logits of up to")


# Tensors in several files, and under several names.


@pytest.fixture
def shards(tmp_path):
    """A folder of a Llama in parts, and what its index says."""
    whole = save(tmp_path / "whole", "llama", tie_word_embeddings=False)
    folder = tmp_path / "hf"
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(folder, max_shard_size="12KB")
    return folder, read_json(folder / "model.safetensors.index.json")["weight_map"]


def copy_into(folder, name, part, change):
    """Put a tensor into another part, too, changed."""
    index = read_json(folder / "model.safetensors.index.json")["weight_map"]
    tensor = load_file(folder / index[name])[name]
    save_file(load_file(folder / part) | {name: change(tensor)}, folder / part, {"format": "pt"})


@pytest.mark.parametrize("place", [0, -1])
def test_a_tensor_in_two_parts(shards, place, tmp_path):
    """transformers takes the one that it reads last, the index names the other."""
    folder, index = shards
    name = "model.layers.1.mlp.up_proj.weight"
    part = sorted({*index.values()} - {index[name]})[place]
    before = base.module_of(folder).state_dict()
    copy_into(folder, name, part, torch.clone)
    assert_close(base.module_of(folder).state_dict(), before, rtol=0, atol=0)
    copy_into(folder, name, part, torch.neg)
    refused(folder, tmp_path / "out", part, name, f"names another one in {index[name]}")


def test_two_names_of_one_tensor(tmp_path):
    """A merge after a resize leaves a tied model with another output."""
    folder = save(tmp_path / "hf", "llama", tie_word_embeddings=False)
    tensors = load_file(folder / "model.safetensors")
    change(folder / "config.json", tie_word_embeddings=True)
    words = "lm_head.weight differs from model.embed_tokens.weight", "tie_word_embeddings"
    refused(folder, tmp_path / "out", *words)
    table = tensors["model.embed_tokens.weight"]
    for is_tied, output in ((True, table.clone()), (True, None), (False, None)):
        change(folder / "config.json", tie_word_embeddings=is_tied)
        kept = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
        if output is not None:
            kept["lm_head.weight"] = output
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
        if is_tied:
            base.check_base(folder)
    words = "no tensor lm_head.weight", "or config.json tie_word_embeddings true"
    refused(folder, tmp_path / "out", *words)


def test_a_whole_file_beside_an_index(shards, tmp_path):
    folder, _ = shards
    shutil.copy(tmp_path / "whole/model.safetensors", folder)
    refused(folder, tmp_path / "out", "model.safetensors.index.json beside it names others")
