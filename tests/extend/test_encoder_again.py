"""An embedding model extended again: after kills, for longer, with another language; what it takes
besides.
"""

import signal

import pytest

from ds_minimodel.common.errors import UserError

from ..forks import KILLED_AFTER, Fork
from ..pipeline.sentence_world import make_sentence_world, pairs_of, write_pairs
from .test_encoder import call, found, vectors_of

MOMENTS = (
    "the-pairs-of-xx",  # the corpus
    "recipe.yaml",
    "xx",  # the vocabulary
    "model",  # as it is aligned
    "recipe.yaml",  # with its length
    "the-targets-of-xx.job.json",
    "pack",  # trained
    "model",
    "xx.json",  # what is looked at
    "report",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("again")
    make_sentence_world(folder)
    return folder


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_kill_at_any_moment_changes_no_bit(folder):
    call(folder, "whole", tokens=3000)
    command = ["extend", folder / "base", "--pairs", folder / "help.tsv", "--language", "xx"]
    command += ["--out", folder / "killed", "--tokens", "3000"]
    for moment in MOMENTS:
        kill = Fork(KILLED_AFTER, moment, [*map(str, command)])
        kill.wait()
        assert kill.returncode == -signal.SIGKILL, (moment, kill.communicate()[1])
    call(folder, "killed", tokens=3000)
    assert files_of(folder / "killed/model") == files_of(folder / "whole/model")


def test_a_longer_training_goes_on_from_a_shorter_one(folder):
    call(folder, "longer", tokens=3000)
    first = (folder / "longer/run/adapt/bl_base/xx/run/metrics.jsonl").read_text().splitlines()
    call(folder, "longer", tokens=6000)
    rows = (folder / "longer/run/adapt/bl_base/xx/run/metrics.jsonl").read_text().splitlines()
    stable = int(0.8 * len(first))
    assert len(rows) > len(first)
    assert [row.split(', "lr"')[0] for row in rows[: stable - 1]] == [
        row.split(', "lr"')[0] for row in first[: stable - 1]
    ]
    assert found(folder / "longer/model") > 0.9


def test_a_second_language_leaves_the_first_one_as_it_is(folder):
    """The model of one call is the base of another."""
    call(folder, "first", tokens=3000)
    swapped = [(line, words.replace("z", "y")) for line, words in pairs_of(320, seed=1)]
    write_pairs(folder / "yy.tsv", swapped)
    call(
        folder,
        "second",
        model=folder / "first/model",
        pairs=[folder / "yy.tsv"],
        language="yy",
        tokens=0,
    )
    lines = [target for _, target in pairs_of(40, seed=5)]
    vectors = vectors_of(folder / "first/model", lines), vectors_of(folder / "second/model", lines)
    assert (vectors[0] == vectors[1]).all()
    assert found(folder / "second/model") == found(folder / "first/model") > 0.9


@pytest.mark.parametrize("options", [{"mini": "1+1"}, {"train": "lora"}, {"train": "all"}], ids=str)
def test_other_ways_to_train_find_as_much(options, folder):
    out = "-".join(map(str, *options.items()))
    call(folder, out, tokens=3000, **options)
    assert found(folder / out / "model") > 0.9


def test_another_file_of_pairs_is_refused(folder):
    write_pairs(folder / "mine.tsv", pairs_of(200, seed=3))
    call(folder, "other", pairs=[folder / "mine.tsv"], tokens=0)
    write_pairs(folder / "mine.tsv", pairs_of(200, seed=4))
    with pytest.raises(UserError, match=r"mine\.tsv \(--pairs\): another file than"):
        call(folder, "other", pairs=[folder / "mine.tsv"], tokens=0)
