"""Packs of several languages that were added to one base, as one."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..forks import done
from ..hf.test_decoders import save_llama
from ..pipeline.conftest import make_world, refused

RECIPE = """
workdir: {folder}/run
systems: [bl_base]
base: {folder}/theirs
languages: {{source: en, targets: [xx, yy]}}
tokenizer: {{vocabulary: extend, vocab_size: 20}}
data: {{workers: 1, text: {{en: {folder}/en.txt, xx: {folder}/xx.txt, yy: {folder}/yy.txt}}}}
adapt: {{steps: 2, batch_size: 8, seq_length: 32, lr: 2e-2}}
engine: {{precision: fp32, micro_batch_size: 4}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with two added languages that share half of their words."""
    folder = tmp_path_factory.mktemp("join")
    path = make_world(folder)
    words = (folder / "xx.txt").read_text()
    (folder / "yy.txt").write_text(words.replace("z", "q").replace("g", "j"))
    save_llama(folder / "en.txt", folder / "theirs", "$A")
    path.write_text(RECIPE.format(folder=folder))
    done("run", path)
    return folder


def model_of(folder):
    return folder / "run/pretrain/bl_base/model"


def packs(folder):
    return [folder / f"run/adapt/bl_base/{language}/pack" for language in ("xx", "yy")]


def test_one_model_reads_both_languages_as_each_pack_does_and_the_sources(folder, tmp_path):
    done("pack", "join", tmp_path / "joined", *packs(folder))
    done("export-hf", model_of(folder), tmp_path / "hf", "--pack", tmp_path / "joined")
    base = AutoTokenizer.from_pretrained(folder / "theirs")
    joined, model = (
        kind.from_pretrained(tmp_path / "hf") for kind in (AutoTokenizer, AutoModelForCausalLM)
    )
    xx, yy = (AutoTokenizer.from_pretrained(pack) for pack in packs(folder))
    texts = {
        language: (folder / f"{language}.txt").read_text()[:900] for language in ("en", "xx", "yy")
    }
    assert joined(texts["en"])["input_ids"] == base(texts["en"])["input_ids"]
    assert joined(texts["xx"])["input_ids"] == xx(texts["xx"])["input_ids"]
    by_base, by_pack, by_both = (len(each(texts["yy"])["input_ids"]) for each in (base, yy, joined))
    assert by_both <= 1.1 * by_pack < by_base
    assert joined.decode(joined(texts["yy"])["input_ids"]) == texts["yy"]
    rows = model.get_input_embeddings().weight
    of_xx, of_yy = (load_file(pack / "embeddings.safetensors")["tokens"] for pack in packs(folder))
    assert len(base) + 20 < len(rows) == len(joined) < len(base) + 40, "shared pieces are one row"
    for piece, id in joined.get_vocab().items():
        if id >= len(base):
            own, of_pack = (of_xx, xx) if piece in xx.get_vocab() else (of_yy, yy)
            assert torch.equal(rows[id], own[of_pack.get_vocab()[piece] - len(base)])


def test_what_cannot_be_joined_is_refused(folder, tmp_path):
    xx = packs(folder)[0]
    assert "is of kind model, not an adaptation" in refused(
        "pack", "join", tmp_path / "a", xx, model_of(folder)
    )
    assert "give each language once" in refused("pack", "join", tmp_path / "a", xx, xx)
    assert "give two packs" in refused("pack", "join", tmp_path / "a", xx)
    assert not (tmp_path / "a").exists()
    assert "in: lies in " in refused("pack", "join", xx / "in", *packs(folder))
