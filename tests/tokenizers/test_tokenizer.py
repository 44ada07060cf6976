"""Vocabularies: ids, text that looks special, offsets into the original text, determinism,
refusals.
"""

import itertools
import random
import re
import unicodedata

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from ds_minimodel.tokenizers.tokenizer import PROBES, open_tokenizer
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer
from tests.helpers.refusals import refuses

SENTENCES = 100_000


@pytest.fixture(scope="module")
def by_bytes(byte_folder):
    return open_tokenizer(byte_folder)


@pytest.mark.parametrize("kind", ["tokenizer", "by_bytes"])
def test_the_ids_are_fairseqs(request, kind):
    tokenizer = request.getfixturevalue(kind)
    pieces = tokenizer.pieces()
    assert pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.vocabulary.special == {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 599}
    assert pieces[-1] == tokenizer.special["mask"] == "<mask>"
    assert len(pieces) == len(set(pieces)) == tokenizer.vocabulary.size == 600


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
    assert len(set(pieces)) == 600
    assert pieces.index("<mask>") == 599
    assert pieces.index("<s>") == 0


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
        *(
            "  zwei   Wörter\tund ﬁn ",
            "Ｆｕｌｌ　ｗｉｄｔｈ",
            "e\u0301 ½ ㍿ abc",
            "人😀山 \u200b川",
        ),
        *("a\u0301\u0301b", " ﬁ ﬀ ㍻ Ⅳ ", "", "   "),
    ],
)
def test_offsets_survive_normalisation(tokenizer, text):
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode([text])[0]
    assert len(ids) == len(spans)
    assert spans == sorted(spans)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    covered = set().union(*(range(*span) for span in spans))
    visible = {
        index
        for index, sign in enumerate(text)
        if unicodedata.normalize("NFKC", sign).strip("\u200b").strip()
    }
    assert visible <= covered
    assert all(start < end for id, (start, end) in zip(ids, spans) if tokenizer.pieces()[id] != "▁")


# First characters of scripts, controls, marks, symbols and planes, most of which is unassigned; and
# strings as a whole.
RANGES = [
    0,
    0x20,
    0x7F,
    0x250,
    0x300,
    0x370,
    0x1000,
    0x2000,
    0x2070,
    0x2580,
    0x25A0,
    0x3000,
    0xA000,
    0xD800,
]
WHOLE = [
    "\r\n",
    "  ",
    "\t ",
    "<mask>",
    "</s>",
    "<0x41>",
    "Ġ",
    "👩‍🚀",
    "e\u0301\u0323",
    "1234567",
    "don't",
    " ",
    "\0",
]


def strings_of_many_scripts(count):
    draw = random.Random(0)
    ranges = [
        *itertools.pairwise(RANGES),
        (0xE000, 0x10000),
        (0x1F300, 0x1FB00),
        (0x10000, 0x110000),
    ]
    for _ in range(count):
        some = draw.sample(ranges, 3)
        parts = (chr(draw.randrange(*draw.choice(some))) for _ in range(draw.randint(1, 12)))
        yield "".join(draw.choice(WHOLE) if draw.random() < 0.2 else part for part in parts)


def test_byte_level_pieces_lose_nothing(by_bytes):
    """Neither a character nor, in the bytes that ids stand for, a byte."""
    texts = [*strings_of_many_scripts(10_000), *PROBES]
    theirs = Tokenizer.from_file(str(by_bytes.path))
    sizes = np.array(by_bytes.num_bytes())
    special = {*by_bytes.vocabulary.special_ids}
    for text, ids in zip(texts, by_bytes.encode(texts), strict=True):
        assert theirs.decode(ids) == text
        assert sizes[ids].sum() == len(text.encode())
        assert not special & {*ids}
    by_bytes.vocabulary.require_lossless("this test")
    assert len({id for ids in by_bytes.encode(texts) for id in ids}) > 300  # bytes and pieces


def test_unigram_tokens_stand_for_the_bytes_of_the_text(corpus, tokenizer):
    """And for a space before each line, which SentencePiece adds."""
    sizes = np.array(tokenizer.num_bytes())
    for line, ids in zip(corpus[0], tokenizer.encode(corpus[0])):
        assert tokenizer.vocabulary.unk not in ids
        assert sizes[ids].sum() == len(line.encode()) + 1


def test_unigram_pieces_lose_and_say_so(tokenizer):
    assert (
        SentencePieceProcessor(model_file=str(tokenizer.path)).decode(tokenizer.encode(["ﬁ  ꙮ"])[0])
        != "ﬁ  ꙮ"
    )
    with refuses("it normalises text, and what has no token is unknown to it"):
        tokenizer.vocabulary.require_lossless("this test")


def test_marks_belong_to_their_letters(tmp_path):
    """And digits come by threes, as GPT-4's."""
    (tmp_path / "text.txt").write_text("हिन्दी में 1234567 लिखना\n" * 50)
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "out", 291, 1.0, SENTENCES, kind="byte-bpe")
    tokenizer = open_tokenizer(tmp_path / "out")
    spelt = [tokenizer.pieces()[id] for id in tokenizer.encode(["हिन्दी में 1234567"])[0]]
    assert spelt == ["हिन्दी", "▁में", "▁", "123", "456", "7"]


@pytest.mark.parametrize(
    "kind, folder", [("unigram", "tokenizer_folder"), ("byte-bpe", "byte_folder")]
)
def test_same_text_gives_the_same_bytes(tmp_path, text_file, request, kind, folder, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    train_tokenizer([text_file], tmp_path / "again", 600, 0.9998, 5000, kind=kind)
    for path in request.getfixturevalue(folder).iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "word", ["a" + "\u0301" * 10**6, "x" * 10**6, "a" + " " * 10**6 + "b", "中" * 300_000]
)
def test_a_word_without_an_end_is_trained_on_in_parts(tmp_path, word):
    """The trainer's time grows with the square of its length: these would take hours."""
    (tmp_path / "text.txt").write_text(f"{word}\nthe old boat sees the old boat\n")
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "out", 265, 1.0, SENTENCES, kind="byte-bpe")
    tokenizer = open_tokenizer(tmp_path / "out")
    assert Tokenizer.from_file(str(tokenizer.path)).decode(tokenizer.encode([word])[0]) == word


def test_lines_are_drawn_from_all_of_the_text(tmp_path):
    lines = [f"{number} {letter * 9}" for letter in "abcd" for number in range(500)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "out", 290, 1.0, 101, kind="byte-bpe")
    assert {f"▁{letter * 9}" for letter in "abcd"} <= {*open_tokenizer(tmp_path / "out").pieces()}


@pytest.mark.parametrize("kind", ["unigram", "byte-bpe"])
def test_sizes_that_the_text_does_not_allow_are_named(tmp_path, text_file, kind):
    with refuses("vocab_size=90000.*at most") as error:
        train_tokenizer([text_file], tmp_path / "out", 90_000, 0.9998, SENTENCES, kind=kind)
    assert not (tmp_path / "out").exists()
    most = int(re.search(r"at most (\d+)", str(error.value))[1])
    train_tokenizer([text_file], tmp_path / "out", most, 0.9998, SENTENCES, kind=kind)
    assert open_tokenizer(tmp_path / "out").vocabulary.size == most
    with refuses("at most"):
        train_tokenizer([text_file], tmp_path / "more", most + 1, 0.9998, SENTENCES, kind=kind)
    with refuses("vocab_size=20.*at least") as error:
        train_tokenizer([text_file], tmp_path / "least", 20, 0.9998, SENTENCES, kind=kind)
    least = int(re.search(r"at least (\d+)", str(error.value))[1])
    train_tokenizer([text_file], tmp_path / "least", least, 0.9998, SENTENCES, kind=kind)


@pytest.mark.parametrize("space", ["", " ", "\u3000"])
def test_lines_that_are_too_long_for_sentencepiece_are_trained_on_in_parts(tmp_path, space):
    """It leaves out those of more than 65,536 bytes, whatever they hold."""
    draw = random.Random(0)
    signs = [chr(0x4E00 + number) for number in range(200)]
    long = "".join(draw.choice(signs) + space * (draw.random() < 0.1) for _ in range(40_000))
    (tmp_path / "text.txt").write_text(f"{long}\nthe old boat\n")
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "out", 215, 1.0, SENTENCES)
    tokenizer = open_tokenizer(tmp_path / "out")
    assert {*signs, *"theoldbat"} <= {sign for piece in tokenizer.pieces() for sign in piece}
    assert tokenizer.vocabulary.unk not in tokenizer.encode([long])[0]


def test_text_without_a_line_for_a_vocabulary(tmp_path):
    (tmp_path / "text.txt").write_text("\u200b\n" * 100)
    with refuses("text.txt: has no line that a vocabulary can be made of"):
        train_tokenizer([tmp_path / "text.txt"], tmp_path / "out", 600, 0.9998, SENTENCES)
