"""ModernBERT and EuroBERT: imports and exports answer as Hugging Face's library does, with the
base's own tokenizer.
"""

import json

import numpy as np
import pytest
import torch
import transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from torch.testing import assert_close
from transformers import AutoModelForMaskedLM, AutoTokenizer

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_body
from ds_minimodel.evaluation.classification import encode_table
from ds_minimodel.evaluation.tables import Records
from ds_minimodel.export.folder import export_hf
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer
from tests.helpers.files import read_json
from tests.helpers.foreign_models import FAMILIES, save_model, save_modernbert
from tests.helpers.refusals import refuses
from tests.hf.conftest import varied_lines

from .conftest import ODD_TEXTS, TEXTS, save_task_model


@pytest.fixture(scope="module")
def base(text_file, tmp_path_factory):
    """(Hugging Face's folder, ours): special tokens behind the pieces, and more rows than ids."""
    folder = tmp_path_factory.mktemp("modernbert")
    save_modernbert(text_file, folder / "theirs")
    refer(folder / "theirs", folder / "ours", "en")
    return folder / "theirs", folder / "ours"


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits[batch["attention_mask"].bool()]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_exported_is_what_was_imported(family, text_file, tmp_path):
    theirs = tmp_path / "theirs"
    ours = tmp_path / "ours"
    save_modernbert(text_file, theirs, family)
    refer(theirs, ours, "en")
    export_hf(ours, tmp_path / "out")
    before = AutoModelForMaskedLM.from_pretrained(theirs).eval()
    after = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    old = AutoTokenizer.from_pretrained(theirs)
    new = AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = [*TEXTS[:6], "the [MASK] sees", "a" * 100]
    batch = old(texts, padding=True, truncation=True, max_length=60, return_tensors="pt")
    again = new(texts, padding=True, truncation=True, max_length=60, return_tensors="pt")
    assert batch["input_ids"].equal(again["input_ids"])
    assert type(after) is type(before)
    assert_close(logits(after, again), logits(before, batch), atol=0, rtol=0)


def like_gemmas(text_file):
    """Gemma 2's and mmBERT's structure: spaces become ▁, no words, what has no piece is spelt by
    its bytes.
    """
    special = "<pad> <eos> <bos> <unk> <mask>".split()
    spelt = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train(
        [str(text_file)], trainers.BpeTrainer(vocab_size=520, special_tokens=special + spelt)
    )
    content = json.loads(trained.to_str())
    content["added_tokens"] = content["added_tokens"][: len(special)]
    content["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token in ("\n", "\n\n", "▁▁", "<table>")]
    )
    return tokenizer


def test_a_tokenizer_like_mmberts(text_file, tmp_path):
    """It is kept, and loses nothing but a literal ▁; one that joins pairs otherwise than the model
    is refused.
    """
    special = "<unk> <bos> <eos> <pad> <mask>".split()
    pairs = {"kept": "<bos> $A <eos> $B <eos>", "refused": "<bos> $A <eos> <bos> $B <eos>"}
    for name, pair in pairs.items():
        save_model(tmp_path / name, like_gemmas(text_file), "<bos> $A <eos>", pair, special)
    with refuses("which is not as a modernbert has them here"):
        refer(tmp_path / "refused", tmp_path / "none")
    refer(tmp_path / "kept", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "out")
    old = AutoTokenizer.from_pretrained(tmp_path / "kept")
    new = AutoTokenizer.from_pretrained(tmp_path / "out")
    tokenizer = open_tokenizer(tmp_path / "ours")
    sizes = np.array(tokenizer.num_bytes())
    lines = [*TEXTS, *ODD_TEXTS, *varied_lines(200)]
    for line, ids in zip(lines, tokenizer.encode(lines), strict=True):
        assert ids == old(line, add_special_tokens=False, split_special_tokens=True)["input_ids"], (
            line
        )
        assert old(line)["input_ids"] == new(line)["input_ids"]
        assert new.decode(ids) == line.replace("▁", " ")
        assert sizes[ids].sum() == len(line.replace("▁", " ").encode())
    counterexample = "' ▁a▁▁b ##c Ġd @@ </w' of a text comes back as '  a  b ##c Ġd @@ </w'"
    assert tokenizer.vocabulary.roundtrip_counterexample == counterexample


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_sentence_transformers_is_told_to_pool_the_last_states(base, tmp_path, pool):
    _, ours = base
    export_hf(ours, tmp_path / "out", pool=pool)
    paths = tmp_path / "out/modules.json", tmp_path / "out/1_Pooling/config.json"
    modules, pooling = (read_json(path) for path in paths)
    assert [part["type"].rpartition(".")[2] for part in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    assert pooling["pooling_mode_mean_tokens"] == (pool == "mean")
    with refuses("--pool max: there are mean, first"):
        export_hf(ours, tmp_path / "other", pool="max")


TASKS = [
    ("sentence-pair", ["no", "yes"], "SequenceClassification"),
    ("qa", None, "QuestionAnswering"),
]


@pytest.mark.parametrize("kind, labels, name", TASKS)
def test_task_models_are_theirs(base, tmp_path, kind, labels, name):
    """A task's scores are of what the body's own prediction head makes, as in Hugging Face's
    classes.

    EuroBERT's, too: tests/torture/test_kinds.py.
    """
    _, ours = base
    module = save_task_model(ours, kind, labels, tmp_path / "model")
    export_hf(tmp_path / "model", tmp_path / "out", ours)
    model = getattr(transformers, f"ModernBertFor{name}").from_pretrained(tmp_path / "out").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")(
        "the wind", "the small boat sees", return_tensors="pt"
    )
    first = {"loss_positions": torch.zeros(1, 1, dtype=torch.int64)}
    given = {"tokens": batch["input_ids"]} | (first if kind == "sentence-pair" else {})
    with torch.no_grad():
        found = module.logits(given)
        expected = model(**batch)
    if kind == "qa":
        expected.logits = torch.stack((expected.start_logits, expected.end_logits), -1)
    assert_close(found, expected.logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind, size", [("unigram", 260), ("byte-bpe", 330)])
def test_a_new_language_has_the_bases_special_tokens(base, text_file, tmp_path, kind, size):
    """Trained for the base, packed and exported: it answers to [MASK], and joins pairs as tasks
    here do.
    """
    _, ours = base
    body = load_body(ours)
    of_base = open_tokenizer(ours)
    train_tokenizer([text_file], tmp_path / "tokenizer", size, 1.0, 5000, kind=kind, base=of_base)
    tokenizer = open_tokenizer(tmp_path / "tokenizer")
    read = tokenizer._tokenizer if kind == "byte-bpe" else tokenizer._model
    assert tokenizer.special == of_base.special
    assert tokenizer.split == (of_base.split if kind == "byte-bpe" else None)
    adaptation = body.adaptation("de", {"tokens": torch.randn(size, 16), "bias": torch.randn(size)})
    save_adaptation(tmp_path / "pack", adaptation, tmp_path / "tokenizer")
    export_hf(ours, tmp_path / "out", tmp_path / "pack")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    vocabulary = tokenizer.vocabulary
    assert theirs.mask_token == "[MASK]"
    assert theirs.mask_token_id == vocabulary.mask == size - 1
    for text in [*TEXTS, *ODD_TEXTS, "the [MASK] sees", "[MASK][MASK] and"]:
        parts = text.split("[MASK]")
        before = [part.rstrip() if tokenizer.mask_takes_space else part for part in parts[:-1]]
        ids = [
            id for part in tokenizer.encode([*before, parts[-1]]) for id in (vocabulary.mask, *part)
        ][1:]
        assert theirs(text)["input_ids"] == [vocabulary.bos, *ids, vocabulary.eos]
        assert {vocabulary.unk, vocabulary.mask} & {*ids} or theirs.decode(ids) == read.decode(ids)
    pairs = encode_table(
        tokenizer, Records((TEXTS[:6], TEXTS[6:]), [0] * 6, ()), 500, body.config.separators
    )
    expected = [id for pair in zip(TEXTS[:6], TEXTS[6:]) for id in theirs(*pair)["input_ids"]]
    assert pairs.tokens.tolist() == expected
    assert expected.count(vocabulary.eos) == 12
