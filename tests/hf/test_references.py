"""A base is named, not copied: what is touched is taken, another file is not, and what is computed
is proved.
"""

import dataclasses
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from ds_minimodel.artifacts import base
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.common.errors import UserError
from ds_minimodel.export.folder import export_hf

from .conftest import randomise
from .refusing import refused
from .test_decoders import save_llama

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
    "modernbert": dict(num_hidden_layers=4, local_attention=12),
}


def save(folder, family, dtype=torch.float32, **changes):
    """A model of a family, with weights that hide nothing, and no tokenizer."""
    config = AutoConfig.for_model(family, **SIZES | IDS | FAMILIES[family] | changes)
    auto = AutoModelForMaskedLM if family == "modernbert" else AutoModelForCausalLM
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
    assert tensors and {path.name for path in ours.iterdir()} == {"manifest.json", "tokenizer"}
    for path in theirs.iterdir():
        os.utime(path, (1, 1))
    shutil.copy(theirs / "tokenizer.json", theirs / "copy")
    (theirs / "copy").rename(theirs / "tokenizer.json")
    (theirs / "README.md").write_text("new")
    torch.testing.assert_close(dict(load_model(ours)[0].tensors), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "config.json", "tokenizer.json"])
def test_another_file_is_refused(model, name):
    theirs, ours, _ = model
    content = bytearray((theirs / name).read_bytes())
    content[len(content) // 2] ^= 1
    (theirs / name).write_bytes(content)
    with pytest.raises(
        UserError,
        match=f"{name}: another file than when this was begun .*; put it back, or begin anew",
    ):
        load_model(ours)


def test_weights_that_came_beside_those_of_the_reference_are_not_read(model):
    """transformers, and a new reference, would take the safetensors first."""
    theirs, ours, _ = model
    save_file({"other": torch.zeros(2)}, theirs / "model.safetensors")
    with pytest.raises(UserError, match="its weights lie in other files than when this was begun"):
        load_model(ours)


def test_a_model_that_was_moved_is_missed(model):
    theirs, ours, _ = model
    theirs.rename(theirs.with_name("elsewhere"))
    with pytest.raises(
        UserError, match="No such file or directory; put the model back that this is over"
    ):
        load_model(ours)


@pytest.mark.parametrize(
    "family, dtype", [("llama", "bfloat16"), ("llama", "float16"), ("gemma3_text", "bfloat16")]
)
def test_numbers_come_out_in_the_type_that_they_came_in(text_file, tmp_path, family, dtype):
    theirs = save(save_llama(text_file, tmp_path / "theirs", "$A"), family, getattr(torch, dtype))
    refer(theirs, tmp_path / "in")
    export_hf(tmp_path / "in", tmp_path / "same")
    export_hf(tmp_path / "in", tmp_path / "wide", dtype="fp32")
    before, same, wide = (
        load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "same", "wide")
    )
    assert before.keys() == same.keys() == wide.keys()
    for name, tensor in before.items():
        assert (
            tensor.dtype == same[name].dtype == getattr(torch, dtype)
            and wide[name].dtype == torch.float32
        )
        torch.testing.assert_close(same[name], tensor, rtol=0, atol=1e-6 if "norm" in name else 0)
    configs = {name: AutoConfig.from_pretrained(tmp_path / name).dtype for name in ("same", "wide")}
    assert configs == {"same": getattr(torch, dtype), "wide": torch.float32}


@pytest.mark.parametrize(
    "family, changes, words",
    [
        (
            "llama",
            {"attention_bias": True},
            "self_attn.q_proj.bias' is not 0, and no llama here has it",
        ),
        ("gemma3_text", {"use_bidirectional_attention": True}, "logits of up to"),
        ("gemma3_text", {"final_logit_softcapping": 1.0}, "logits of up to"),
        ("modernbert", {"mlp_bias": True}, "mlp.Wi.bias' is not 0"),
        ("modernbert", {"decoder_bias": False}, "no tensor decoder.bias; a modernbert here has it"),
    ],
)
def test_a_setting_that_is_not_computed_is_refused(tmp_path, family, changes, words):
    """As models/test_modern.py has it of those that a configuration shows."""
    refused(save(tmp_path / "hf", family, **changes), tmp_path / "out", words)


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
