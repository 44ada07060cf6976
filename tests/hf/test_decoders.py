"""Decoders' tokenizers: what begins a text, what a new language takes over, and that generation
reads the same ids.
"""

import pytest
import torch
import transformers
from transformers import AutoTokenizer, LlamaForCausalLM

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_body
from ds_minimodel.export.folder import export_hf
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer
from tests.helpers.foreign_models import BEGIN, END, save_llama
from tests.helpers.refusals import refuses

from .conftest import ODD_TEXTS, TEXTS


@pytest.mark.parametrize(
    "single, special", [(f"{BEGIN} $A", {"bos": BEGIN, "eos": END}), ("$A", {"eos": END})]
)
def test_a_text_begins_as_the_base_begins_it(text_file, tmp_path, single, special):
    """Llama's with a token, Qwen's and SmolLM2's with none, whatever the tokenizer names; so does a
    new language's.
    """
    theirs = save_llama(text_file, tmp_path / "theirs", single)
    refer(theirs, tmp_path / "ours", "en")
    of_base = open_tokenizer(tmp_path / "ours")
    assert of_base.special == special
    assert of_base.vocabulary.roundtrip_counterexample is None
    assert "bos" in special or of_base.num_bytes()[1] == 0, "special, without a role"
    train_tokenizer([text_file], tmp_path / "new", 320, 1.0, 5000, kind="byte-bpe", base=of_base)
    tokenizer = open_tokenizer(tmp_path / "new")
    assert tokenizer.special == special
    assert tokenizer.split == of_base.split
    body = load_body(tmp_path / "ours")
    pack = body.adaptation("de", {"tokens": torch.randn(320, 16)})
    save_adaptation(tmp_path / "pack", pack, tmp_path / "new")
    export_hf(tmp_path / "ours", tmp_path / "same")
    export_hf(tmp_path / "ours", tmp_path / "out", tmp_path / "pack")
    old = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    same = AutoTokenizer.from_pretrained(tmp_path / "same")
    new = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in [*TEXTS, *ODD_TEXTS, "1234"]:
        assert old(text)["input_ids"] == same(text)["input_ids"]
        ids = new(text)["input_ids"]
        assert ids == [*tokenizer.vocabulary.frame[0], *tokenizer.encode([text])[0]]
        assert new.decode([*ids, tokenizer.vocabulary.eos], skip_special_tokens=True) == text
    assert len(tokenizer.encode(["1234"])[0]) == 4


def test_a_text_that_ends_before_it_goes_on_is_refused(text_file, tmp_path):
    theirs = save_llama(text_file, tmp_path / "theirs", f"$A {END}")
    with refuses("which is not as a llama has them here"):
        refer(theirs, tmp_path / "ours")


def test_a_chat_model_comes_out_as_it_came_in(text_file, tmp_path):
    """Template, settings of generation, and every special token, some of which no role here has."""
    theirs = save_llama(text_file, tmp_path / "theirs", "$A")
    tokenizer = AutoTokenizer.from_pretrained(theirs)
    tokenizer.add_special_tokens(
        {"pad_token": END, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    tokenizer.padding_side = "left"
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(theirs)
    model = LlamaForCausalLM.from_pretrained(theirs)
    model.resize_token_embeddings(len(tokenizer))
    model.config.update({"bos_token_id": 1, "eos_token_id": [0, 331], "pad_token_id": 0})
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=1, eos_token_id=[0, 331], temperature=0.6, do_sample=True
    )
    model.save_pretrained(theirs)
    refer(theirs, tmp_path / "ours", "en")
    export_hf(tmp_path / "ours", tmp_path / "out")
    old = AutoTokenizer.from_pretrained(theirs)
    new = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]
    assert old.apply_chat_template(messages) == new.apply_chat_template(messages)
    for what in (
        "special_tokens_map",
        "all_special_ids",
        "padding_side",
        "model_max_length",
        "chat_template",
    ):
        assert getattr(old, what) == getattr(new, what)
    assert old(TEXTS, padding=True)["input_ids"] == new(TEXTS, padding=True)["input_ids"]
    for read in (transformers.AutoConfig, transformers.GenerationConfig):
        before = read.from_pretrained(theirs).to_dict()
        after = read.from_pretrained(tmp_path / "out").to_dict()
        ids = [
            key
            for key in before
            if key.endswith("_token_id") or key in ("temperature", "do_sample")
        ]
        assert {key: before[key] for key in ids} == {key: after[key] for key in ids}
