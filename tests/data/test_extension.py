"""Vocabularies that are extended: what a new language gets, and that the base's text is cut as before."""

import json

import pytest
from tokenizers import Tokenizer

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_manifest
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.data.extension import extend_tokenizer, read_extension
from ds_minimodel.data.tokenizer import JSON_FILE, open_tokenizer
from ds_minimodel.data.tokenizer_training import train_tokenizer

ENGLISH = ["the small boat sees the great harbour", "a new wind finds the old bridge", "great boats, small bridges"]
GERMAN = [
    "das kleine Boot sieht den großen Hafen",
    "ein neuer Wind findet die alte Brücke",
    "kleine Boote, große Brücken",
]
ROWS, NEW = 330, 25


def write_lines(path, lines):
    path.write_text("\n".join(lines * 5) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def texts(tmp_path):
    return write_lines(tmp_path / "en.txt", ENGLISH), write_lines(tmp_path / "de.txt", GERMAN)


@pytest.fixture
def base(texts, tmp_path):
    """A byte-level vocabulary of English with a chat template beside it; its embeddings have more rows than ids."""
    train_tokenizer([texts[0]], tmp_path / "trained", 300, 1.0, 5000, kind="byte-bpe")
    tokenizer, folder = open_tokenizer(tmp_path / "trained"), tmp_path / "base"
    folder.mkdir()
    (folder / JSON_FILE).write_bytes(tokenizer.path.read_bytes())
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    write_manifest(folder, kind="tokenizer", **tokenizer.vocabulary.facts())
    return folder


def extended(base, texts, out, number=NEW, guard=True):
    extend_tokenizer(base, ROWS, [texts[1]], [texts[0]] if guard else [], out, number)
    return open_tokenizer(out)


def test_the_bases_text_is_cut_as_before_and_the_new_language_into_fewer_pieces(base, texts, tmp_path):
    old, new = open_tokenizer(base), extended(base, texts, tmp_path / "new")
    assert new.encode(ENGLISH) == old.encode(ENGLISH)
    assert new.vocabulary == Vocabulary(ROWS + NEW, **old.vocabulary.special, kept=ROWS)
    for line, before, after in zip(GERMAN, old.encode(GERMAN), new.encode(GERMAN), strict=True):
        assert new.decode(after) == line and len(after) < len(before)
        assert all(id < 300 or id >= ROWS for id in after) and max(after) >= ROWS
    assert (tmp_path / "new/chat_template.jinja").read_text() == "{{ messages }}"


def test_what_pieces_bring_is_known_before_they_are_made(base, texts, tmp_path):
    found = read_extension(base, [texts[1]], [texts[0]], 1000)
    lines = texts[1].read_text().split("\n")
    assert found.words == sum(len(line.split()) for line in lines)
    assert found.num_bytes == sum(len(line.encode()) for line in lines)
    for number in (0, 1, NEW, len(found.merges)):
        cut = extended(base, texts, tmp_path / str(number), number) if number else open_tokenizer(base)
        assert found.tokens_with(number) == sum(map(len, cut.encode(lines)))
    assert [*found.counts] == sorted(found.counts, reverse=True) and found.counts[-1] >= 2


def test_pieces_of_the_source_text_are_left_out(base, texts, tmp_path):
    write_lines(texts[1], [*GERMAN, *["harbour"] * 9])  # the most frequent word of all
    assert " harbour".replace(" ", "▁") not in extended(base, texts, tmp_path / "guarded").pieces()
    alone = extended(base, texts, tmp_path / "alone", guard=False)
    assert alone.encode(ENGLISH) != open_tokenizer(base).encode(ENGLISH)


def test_the_same_text_gives_the_same_pieces(base, texts, tmp_path):
    first, again = (extended(base, texts, tmp_path / name).path.read_bytes() for name in ("first", "again"))
    assert first == again


def test_tokens_behind_the_models_pieces_keep_their_ids(base, texts, tmp_path):
    """As Llama 3 and Qwen have theirs, which the library would number after the new pieces."""
    file = Tokenizer.from_file(str(base / JSON_FILE))
    file.add_special_tokens(["<|end|>"])
    (id,) = file.encode("<|end|>").ids
    file.save(str(base / JSON_FILE))
    write_manifest(base, kind="tokenizer", **Vocabulary(id + 1, eos=id).facts())
    new = extended(base, texts, tmp_path / "new")
    assert Tokenizer.from_file(str(new.path)).encode("<|end|>Boot").ids[0] == id == new.vocabulary.eos
    assert new.encode(ENGLISH) == open_tokenizer(base).encode(ENGLISH)


def test_the_old_vocabulary_cuts_every_new_piece(base, texts, tmp_path):
    """What new rows begin with; a piece may be part of a character."""
    write_lines(texts[1], ["βββ γγγ"] * 9)
    old, new = open_tokenizer(base), extended(base, texts, tmp_path / "new", 3)
    pieces = new.pieces()[ROWS:]
    parts = old.cut(pieces)
    assert "<0xCE>" in "".join(old.pieces()) and all(len(ids) > 1 for ids in parts)
    assert [[old.pieces()[id] for id in ids] for ids in old.cut(["<0xCE><0xB2>", "β"])] == [["<0xCE>", "<0xB2>"]] * 2


def test_a_vocabulary_of_another_kind_and_a_poor_text_are_refused(base, texts, tmp_path):
    train_tokenizer([texts[0]], tmp_path / "unigram", 30, 1.0, 5000)
    with pytest.raises(UserError, match="a SentencePiece vocabulary, and only byte-level BPE is extended"):
        extended(tmp_path / "unigram", texts, tmp_path / "new")
    content = json.loads((base / JSON_FILE).read_text())
    content["model"]["byte_fallback"] = True
    (base / JSON_FILE).write_text(json.dumps(content))
    write_manifest(base, kind="tokenizer", **Vocabulary(300).facts())
    with pytest.raises(UserError, match="a BPE vocabulary, and only byte-level BPE is extended"):
        extended(base, texts, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_more_pieces_than_the_text_supports(base, texts, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=9000: .* supports at most \d+ pieces beside the base's"):
        extended(base, texts, tmp_path / "new", 9000)
