"""study/word_vectors.py: word pairs out of a dictionary in dictd's form, and vectors that a recipe can name."""

import gzip
import importlib.util
import sys

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.vectors import read_dictionary, read_vectors
from tests.docs import import_script

ENTRIES = {
    "00databaseshort": "00databaseshort\nEnglish-German FreeDict Dictionary\n",
    "absence": "absence /absəns/\n1. Abwesenheit <fem>, Fehlen [law]\n2. Mangel (an etwas); kein Wort\n",
    "grinning face": "grinning face\nGrinsemännchen\n",
    "sea": "sea\nSee, Meer\nSee: {ocean}\nNote: Wasser\n",
    "house": "house /haʊs/\n\nHaus <neut>\n   Synonym: {home}\nHeim\n",
}
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def in_base_64(number):
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 64)
        digits = DIGITS[digit] + digits
    return digits


@pytest.fixture
def script():
    return import_script("study/word_vectors.py")


@pytest.fixture
def package(tmp_path):
    """Folder of an unpacked dictionary."""
    folder = tmp_path / "package/usr/share/dictd"
    folder.mkdir(parents=True)
    text, lines = b"", []
    for word, entry in ENTRIES.items():
        packed = entry.encode()
        lines.append(f"{word}\t{in_base_64(len(text))}\t{in_base_64(len(packed))}\n")
        text += packed
    (folder / "freedict-eng-deu.index").write_text("".join(lines))
    (folder / "freedict-eng-deu.dict.dz").write_bytes(gzip.compress(text))
    return tmp_path / "package"


def test_single_words_and_their_translations_are_taken_without_remarks_and_synonyms(script, package, tmp_path):
    (document,) = script.dictionary_documents("de", package)
    pairs = ["absence\tAbwesenheit", "absence\tFehlen", "absence\tMangel", "sea\tSee", "sea\tMeer", "house\tHaus"]
    assert document["lines"] == pairs
    (tmp_path / "pairs.txt").write_text("".join(f"{line}\n" for line in pairs))
    assert read_dictionary(tmp_path / "pairs.txt")[-1] == ("house", "Haus")


def test_vectors_are_those_of_the_text_s_words_the_most_frequent_first(script, tmp_path):
    pytest.importorskip("gensim")
    sentences = script.words_of([["the house, the home", "the house"]] * 4)
    words = script.train_word_vectors(sentences, tmp_path / "new/en.vec")
    assert words[0] == "the" and set(words) == {"the", "house", "home", ","}
    assert read_vectors(tmp_path / "new/en.vec").words == words
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["en.vec"]
    with pytest.raises(UserError, match="its text has no word 3 times"):
        script.train_word_vectors([["once"]], tmp_path / "none.vec")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("languages={source: de, targets: [en]}", "give word pairs of your own as adapt.dictionaries"),
        ("languages={source: en, targets: [xx]}", "language xx: no dictionary of it is known here"),
        ("languages={source: en, targets: [de]}", "pip install 'ds_minimodel[focus]'"),
        ("languages={source: en, targets: [el]}", "el.txt: no such text file"),
        ("languages={source: en, targets: [fr]}", "fr.txt: holds no text"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_line(script, override, message, tmp_path, monkeypatch, capsys):
    find, is_there = importlib.util.find_spec, "gensim" not in message and "focus" not in message
    spec = {"gensim": object() if is_there else None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec[name] if name in spec else find(name))
    (tmp_path / "en.txt").write_text("a house\n")
    (tmp_path / "fr.txt").write_text("\n\n")
    names = ", ".join(f"{name}: {tmp_path}/{name}.txt" for name in ("en", "de", "xx", "el", "fr"))
    texts = f"data.text={{{names}}}"
    arguments = ["quickstart", f"{tmp_path}/out", "finetune.tasks={}", texts, override]
    monkeypatch.setattr(sys, "argv", ["word_vectors.py", *arguments])
    assert script.main() == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "out").exists()
