"""Pairs as an artifact of the step corpus."""

import json

import pytest

from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step
from ds_minimodel.text.pairs import normalised
from tests.helpers.refusals import refuses

from .conftest import RECIPE, SECOND

pytestmark = pytest.mark.slow

WORDS = "wave boat fish salt shore wind cow field barn hay seed plough street shop bridge".split()


def write_pairs(path, count, first=0, equal=0):
    """Write lines of which none is another one's, and some that are equal on both sides."""
    numbers = range(first, first + count)
    lines = [
        " ".join(WORDS[number // 15**place % 15] for place in range(5)) + " and the others too"
        for number in numbers
    ]
    rows = [f"{line}\t{line.translate(SECOND)}" for line in lines]
    rows += [f"{line}\t{line}" for line in lines[:equal]]
    path.write_text("\n".join(["en\txx", *rows]))
    return lines


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path))
    for language in ("en", "xx"):
        (tmp_path / f"{language}.txt").write_text("some text of it\n\nand more of it\n")
    return lambda **data: load_recipe(
        tmp_path / "recipe.yaml",
        ["finetune={}", *(f"data.{key}={json.dumps(value)}" for key, value in data.items())],
    )


def test_pairs_are_read_once_and_parted(recipe, tmp_path, capsys):
    lines = write_pairs(tmp_path / "help.tsv", 200, equal=3)
    (tmp_path / "words.tsv").write_text("wave\tqave\nboat\tboqt\nfish\tfosh\n")
    tested = write_pairs(tmp_path / "other.tsv", 20, first=190)
    files = {
        key: {"xx": [str(tmp_path / name) for name in names]}
        for key, names in (("pairs", ["help.tsv", "words.tsv"]), ("test_pairs", ["other.tsv"]))
    }
    of_pairs = recipe(**files)
    run_step(STEPS["corpus"], of_pairs)
    corpus = PairCorpus(tmp_path / "run/corpus/pairs-xx")
    assert [text.name for text in corpus.training] == ["help", "words"]
    assert [len(text.pairs) for text in corpus.tests] == [20]
    assert corpus.training[1].is_dictionary
    assert len(corpus.lines) == len(corpus.pairs) - 3
    held_out = [pair for text in corpus.held_out for pair in text.pairs]
    assert 15 <= len(held_out) <= 20
    learned = {normalised(side) for pair in corpus.pairs for side in pair}
    for pair in (*held_out, *corpus.tests[0].pairs):
        assert learned.isdisjoint(map(normalised, pair))
    assert {pair.source for pair in (*corpus.lines, *held_out)} == {*lines} - {*tested}
    assert "3 equal on both sides" in capsys.readouterr().err

    before = (tmp_path / "run/corpus/pairs-xx/manifest.json").read_bytes()
    run_step(STEPS["corpus"], of_pairs)
    assert (tmp_path / "run/corpus/pairs-xx/manifest.json").read_bytes() == before
    write_pairs(tmp_path / "help.tsv", 201)
    with refuses("made from another recipe or other data"):
        run_step(STEPS["corpus"], of_pairs)


@pytest.mark.parametrize(
    "data, said",
    [
        ({"pairs": {"yy": ["x.tsv"]}}, "data.pairs: yy is not among languages.targets"),
        ({"test_pairs": {"en": "x.tsv"}}, "data.test_pairs: en is not among languages.targets"),
        ({"pairs": {"xx": ["x.tsv"]}, "pair_columns": ["a", "a"]}, "'a' is there twice"),
    ],
)
def test_pairs_of_no_target_are_refused(recipe, data, said):
    with refuses(said):
        recipe(**data)


def test_a_missing_file_of_pairs_is_named(recipe, tmp_path):
    of_pairs = recipe(pairs={"xx": [str(tmp_path / "none.tsv")]})
    with refuses(r"none\.tsv: no such file of pairs"):
        run_step(STEPS["corpus"], of_pairs)
