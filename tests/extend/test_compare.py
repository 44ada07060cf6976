"""`compare`: two decoders side by side, one of them an adapter that PEFT has trained."""

import math
import shutil

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ds_minimodel.api import compare_models
from ds_minimodel.evaluation.likelihood import CONTEXT_BYTES
from tests.helpers.commands import refused
from tests.helpers.foreign_models import save_llama

from ..forks import run

TEXT = "zozo gaga zozo mimi\n\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory, text_file):
    """A small Llama in `theirs`, an adapter that PEFT has trained in `adapter`, and one with a
    token more, `adapter-with-token`.
    """
    folder = tmp_path_factory.mktemp("compare")
    save_llama(text_file, folder / "theirs", "$A")
    (folder / "zz.txt").write_text(TEXT * 60)
    torch.manual_seed(0)
    for name, new in (("adapter", []), ("adapter-with-token", ["zozo"])):
        tokenizer = AutoTokenizer.from_pretrained(folder / "theirs")
        model = AutoModelForCausalLM.from_pretrained(folder / "theirs")
        settings = {"r": 4, "target_modules": ["q_proj", "v_proj", "up_proj"]}
        if new:
            tokenizer.add_tokens(new)
            model.resize_token_embeddings(len(tokenizer))
            settings["modules_to_save"] = ["embed_tokens"]
            tokenizer.save_pretrained(folder / name)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
        ids = torch.tensor([tokenizer(TEXT * 3)["input_ids"]])
        optimizer = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.02
        )
        for _ in range(30):
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def in_fp32(monkeypatch):
    """Random weights are far from what bf16 keeps."""
    monkeypatch.setattr("ds_minimodel.extend.compare.decoder_dtype", lambda device: torch.float32)


def test_an_adapter_of_pefts_gains_bits_and_loses_none_elsewhere_unseen(world, text_file):
    texts = {"zz": world / "zz.txt", "en": text_file}
    found = compare_models(world / "theirs", world / "adapter", texts)
    rows = {(row.what, row.unit): row for row in found.measures}
    learned = rows["zz", "bits per byte"]
    assert learned.after < 0.8 * learned.before
    assert rows["zz", "tokens of 4,000 bytes"].before == rows["zz", "tokens of 4,000 bytes"].after
    assert found.asked == 250
    assert rows["right answers to 250 questions (en)", "answers"]
    other = rows["en", "bits per byte"]
    is_worse = other.after > 1.03 * other.before
    assert any(line.startswith("en: ") for line in found.worse) == is_worse

    merged = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(world / "theirs"), world / "adapter"
    ).merge_and_unload()
    merged.save_pretrained(world / "merged")
    AutoTokenizer.from_pretrained(world / "theirs").save_pretrained(world / "merged")
    assert compare_models(world / "theirs", world / "merged", texts) == found


def test_bits_are_those_of_plain_passes(world):
    found = compare_models(world / "theirs", world / "theirs", {"zz": world / "zz.txt"})
    (row,) = (row for row in found.measures if row.unit == "bits per byte")
    assert row.before == row.after
    assert found.lost == 0
    tokenizer = AutoTokenizer.from_pretrained(world / "theirs")
    model = AutoModelForCausalLM.from_pretrained(world / "theirs").eval()
    document = TEXT.strip()
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(document)["input_ids"]]])
    assert len(document) < CONTEXT_BYTES
    assert ids.shape[1] < 62
    with torch.inference_mode():
        loss = model(ids, labels=ids).loss * (ids.shape[1] - 1)
    assert row.before == pytest.approx(float(loss) / math.log(2) / len(document), rel=1e-4)


def test_an_adapter_with_new_tokens_has_fewer_a_page(world):
    found = compare_models(world / "theirs", world / "adapter-with-token", {"zz": world / "zz.txt"})
    rows = {row.unit: row for row in found.measures if row.what == "zz"}
    assert rows["tokens of 4,000 bytes"].after < rows["tokens of 4,000 bytes"].before
    assert rows["bits per byte"].after < rows["bits per byte"].before


def test_the_command_prints_a_page(world):
    code, page, _ = run(f"compare {world}/theirs {world}/adapter --text", f"zz={world / 'zz.txt'}")
    assert code == 0
    assert "| zz, zz.txt | bits per byte | " in page
    assert "**Questions answered**" in page
    assert "- right answers: " in page


def test_mistakes_are_one_line(world, tmp_path):
    theirs = world / "theirs"
    assert "it has the form CODE=FILE" in refused(f"compare {theirs} {theirs} --text zz.txt")
    assert "none.txt: no such text file" in refused(f"compare {theirs} {theirs} --text zz=none.txt")
    adapter = shutil.copytree(world / "adapter", tmp_path / "adapter")
    (adapter / "adapter_model.safetensors").write_bytes(b"damaged")
    assert f"{adapter}: it is no adapter of {theirs}" in refused(f"compare {theirs} {adapter}")
