"""Vocabularies: ids, text that looks special, offsets into the original text, determinism, refusals."""

import re
import unicodedata

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_manifest
from ds_minimodel.data.tokenizer import open_tokenizer, train_tokenizer

SENTENCES = 100_000


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return open_tokenizer(tokenizer_folder)


def test_the_ids_are_fairseqs(tokenizer):
    pieces = tokenizer.pieces()
    assert pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.vocabulary.special == {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 599}
    assert pieces[-1] == tokenizer.mask == "<mask>"
    assert len(pieces) == len(set(pieces)) == tokenizer.vocabulary.size == 600


def test_text_is_read_back(tokenizer, corpus):
    lines = [line for document in corpus for line in document]
    encoded = tokenizer.encode(lines)
    assert [tokenizer.decode(ids) for ids in encoded] == lines
    assert all(4 <= id < tokenizer.vocabulary.mask for ids in encoded for id in ids)


@pytest.mark.parametrize("special", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
def test_text_that_looks_special_is_ordinary(tokenizer, special):
    ids = tokenizer.encode([f"abc {special} abc {special}"])[0]
    assert not {0, 1, 2, tokenizer.vocabulary.mask} & set(ids)
    assert len(ids) > 6


def test_training_text_that_looks_special_makes_no_double_pieces(tmp_path, text_file):
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text() + "\n<mask> <s> </s> <unk> <pad>\n" * 500)
    train_tokenizer([text], tmp_path / "out", 600, 0.9998, SENTENCES)
    pieces = open_tokenizer(tmp_path / "out").pieces()
    assert len(set(pieces)) == 600 and pieces.index("<mask>") == 599 and pieces.index("<s>") == 0


def test_training_says_where_it_is(tmp_path, text_file, corpus, capfd):
    train_tokenizer([text_file], tmp_path / "out", 600, 0.9998, SENTENCES, "tokenizer de")
    *_, last = capfd.readouterr().err.splitlines()
    assert last.startswith(f"tokenizer de: {sum(map(len, corpus)):,} lines, ") and "all read" in last


def test_offsets_of_plain_text_spell_the_pieces(tokenizer, corpus):
    for line in (document[0] for document in corpus[:100]):
        ids, spans = tokenizer.encode_with_offsets(line)
        assert ids == tokenizer.encode([line])[0]
        for id, (start, end) in zip(ids, spans):
            if id != tokenizer.vocabulary.unk:
                assert line[start:end] == tokenizer.pieces()[id].replace("▁", "")


@pytest.mark.parametrize(
    "text",
    [
        "  zwei   Wörter\tund ﬁn ",
        "Ｆｕｌｌ　ｗｉｄｔｈ",
        "e\u0301 ½ ㍿ abc",
        "人😀山 \u200b川",
        "a\u0301\u0301b",
        " ﬁ ﬀ ㍻ Ⅳ ",
        "",
        "   ",
    ],
)
def test_offsets_survive_normalisation(tokenizer, text):
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode([text])[0] and len(ids) == len(spans)
    assert spans == sorted(spans) and all(0 <= start <= end <= len(text) for start, end in spans)
    covered = set().union(*(range(*span) for span in spans))
    visible = {at for at, sign in enumerate(text) if unicodedata.normalize("NFKC", sign).strip("\u200b").strip()}
    assert visible <= covered
    assert all(start < end for id, (start, end) in zip(ids, spans) if tokenizer.pieces()[id] != "▁")


def test_same_text_gives_the_same_bytes(tmp_path, text_file, tokenizer_folder):
    train_tokenizer([text_file], tmp_path / "again", 600, 0.9998, 5000)
    for name in ("tokenizer.model", "manifest.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tokenizer_folder / name).read_bytes()


def test_largest_possible_vocabulary_is_named_and_works(tmp_path, text_file):
    with pytest.raises(UserError, match="vocab_size=90000.*at most") as error:
        train_tokenizer([text_file], tmp_path / "out", 90_000, 0.9998, SENTENCES)
    assert not (tmp_path / "out").exists()
    most = int(re.search(r"at most (\d+)", str(error.value))[1])
    train_tokenizer([text_file], tmp_path / "out", most, 0.9998, SENTENCES)
    assert open_tokenizer(tmp_path / "out").vocabulary.size == most
    with pytest.raises(UserError, match="at most"):
        train_tokenizer([text_file], tmp_path / "more", most + 1, 0.9998, SENTENCES)


@pytest.mark.parametrize("text", [b"word " * 10_000_000, "\u200b\n".encode() * 100])
def test_text_without_a_line_for_a_vocabulary(tmp_path, text):
    (tmp_path / "text.txt").write_bytes(text)
    with pytest.raises(UserError, match="text.txt: no line that a vocabulary can be made of"):
        train_tokenizer([tmp_path / "text.txt"], tmp_path / "out", 600, 0.9998, SENTENCES)


def test_changed_model_files_are_refused(tmp_path, text_file):
    train_tokenizer([text_file], tmp_path / "out", 600, 0.9998, SENTENCES)
    assert read_manifest(tmp_path / "out")["vocab_size"] == 600
    model = tmp_path / "out" / "tokenizer.model"
    data = bytearray(model.read_bytes())
    data[1000] ^= 1
    model.write_bytes(data)
    with pytest.raises(UserError, match="tokenizer.model: damaged"):
        open_tokenizer(tmp_path / "out")
