"""Pairs of translations: forms of files, what is left out, what is held out."""

import itertools
from string import ascii_lowercase

import pytest

from ds_minimodel.text.pairs import Pair, PairText, normalised, read_pairs, split_pairs

EN = "The house stands at the end of a long street."
DE = "Das Haus steht am Ende einer langen Straße."


@pytest.fixture
def write(tmp_path):
    def of(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return of


def test_two_columns_are_source_and_target(write):
    (text,) = read_pairs([write("help.tsv", f"{EN}\t{DE}\nHouse\tHaus\n")], ("en", "de"))
    assert text.pairs == [Pair(EN, DE), Pair("House", "Haus")]
    assert text.lines == [Pair(EN, DE)] and text.name == "help"


def lines(number):
    names = ["".join(letters) for letters in itertools.product(ascii_lowercase, repeat=2)][:number]
    return [
        Pair(f"this is the long line of text {name}", f"das ist die Zeile {name}") for name in names
    ]


def test_nothing_that_is_learned_from_shares_a_side_with_a_held_out_line():
    pairs = lines(400)
    planted = [Pair(f" {pair.source.upper()}", f"ganz anders {pair.target}") for pair in pairs]
    planted += [Pair(f"wholly else than {pair.source}", pair.target) for pair in pairs]
    tests = [PairText("test", [Pair("THIS is the long line  of text ab", "etwas anderes")])]
    split = split_pairs([PairText("a", pairs), PairText("b", planted)], tests)
    sides = {normalised(side) for text in split.held_out for pair in text.pairs for side in pair}
    learned = [normalised(side) for text in split.training for pair in text.pairs for side in pair]
    assert len(split.held_out[0].pairs) == 40
    assert sides.isdisjoint(learned)
    assert normalised("this is the long line of text ab") not in learned
