"""Retrieval: parallel files, neighbours, references, and what a recipe may say of such a task."""

from dataclasses import replace

import numpy as np
import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.recipe.schema import Task
from ds_minimodel.steps.training import task_inputs
from ds_minimodel.tasks import KINDS, retrieval
from ds_minimodel.tasks.retrieval import read_bitext, sentences_of

from ..recipes import recipe_of

RETRIEVAL = KINDS["retrieval"]
SETTINGS = Task(kind="retrieval", test={"de": "de"}, translations={"de": "en"})


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    return write


def test_lines_are_pairs_and_what_is_spelt_alike_is_one(write):
    de = write("de", "\ufeffdas Haus\r\nder Hund\n\n  das Haus \nein\x85Wort\n")
    en = write("en", "the house\nthe dog\n\nthe building\na word")
    records = read_bitext(de, en)
    assert records.sentences == ["das Haus", "der Hund", "ein\x85Wort"]
    assert records.translations == ["the house", "the dog", "the building", "a word"]
    assert records.pairs.tolist() == [[0, 0], [1, 1], [0, 2], [2, 3]]


@pytest.mark.parametrize(
    "de, en, message",
    [
        ("a\nb\n", "a\n", "de: has 2 lines, .*en 1; line n of one must translate line n of the other"),
        ("a\n \n", "a\nb\n", "de:2: empty, where .*en has a sentence"),
        ("", "", "de: no sentences; a task needs some"),
        ("a\nb\0\n", "a\nb\n", "de:2: a NUL character"),
        (b"a\n\xff\n", "a\nb\n", "de:2: not UTF-8"),
    ],
)
def test_files_that_are_not_parallel_are_refused(write, de, en, message):
    with pytest.raises(UserError, match=message):
        read_bitext(write("de", de), write("en", en))


def test_a_vocabulary_without_what_begins_a_text_has_no_vector_of_it():
    with pytest.raises(UserError, match="has no token that begins a text .bos., which a sentence's vector needs"):
        sentences_of(Vocabulary(9, eos=2), [[5]], 8, "first")


def score(records, own, of_source):
    """Scores for the vectors of the sentences and of their translations."""
    records = RETRIEVAL.with_source(records, lambda side: (None, [(np.arange(len(side.sentences)), of_source)]))
    return RETRIEVAL.score(SETTINGS, "de", records, None, [(np.arange(len(own)), own)])


def brute_force(own, of_source, pairs):
    """Percent of the lines whose nearest neighbour is one of the sentence's translations, in both directions."""

    def one(queries, candidates, pairs):
        cosines = [
            [q @ c / np.linalg.norm(q) / np.linalg.norm(c) for c in candidates.astype(float)]
            for q in queries.astype(float)
        ]
        return 100 * np.mean([[query, int(np.argmax(cosines[query]))] in pairs for query, _ in pairs])

    there = one(own, of_source, pairs)
    back = one(of_source, own, [pair[::-1] for pair in pairs])
    return {"score": (there + back) / 2, "to_source": there, "from_source": back}


def test_scores_are_those_of_a_plain_search_in_blocks_too(write, monkeypatch):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 30, 60)
    records = read_bitext(
        write("de", "".join(f"d{number}\n" for number in numbers)),
        write("en", "".join(f"e{number} {line % 3}\n" for line, number in enumerate(numbers))),
    )
    of_source = rng.normal(size=(len(records.translations), 4)).astype(np.float32)
    own = np.zeros((len(records.sentences), 4), np.float32)
    own[records.pairs[:, 0]] = of_source[records.pairs[:, 1]] + rng.normal(size=(60, 4)) / 2
    expected = brute_force(own, of_source, records.pairs.tolist())
    assert 20 < expected["to_source"] < 90 and expected["to_source"] != expected["from_source"]
    assert score(records, own, of_source) == pytest.approx(expected)
    monkeypatch.setattr(retrieval, "_BLOCK", 100)  # two or three queries at a time
    assert score(records, own, of_source) == pytest.approx(expected)


def test_equally_near_ones_share_and_their_order_is_nothing(write):
    records = read_bitext(write("de", "a\nb\nc\nd\n"), write("en", "A\nB\nC\nD\n"))
    assert score(records, np.ones((4, 2)), np.ones((4, 2)))["score"] == 25  # all the same: a guess
    vectors = np.array([[1, 0], [0, 1], [1, 0], [-1, 0]], np.float32)
    assert score(records, vectors, vectors)["to_source"] == 75  # a and c are one half each
    order = np.array([2, 3, 0, 1])
    mixed = replace(records, pairs=np.stack([order, order], 1))
    assert score(mixed, vectors, vectors) == score(records, vectors, vectors)


def test_references(write):
    paths = write("de", "Hund und Katze\nHaus\nBahn\nZug\n"), write("en", "Katze, Hund\nHaus\nBahnen\nforest\n")
    task = Task(kind="retrieval", test={"de": paths[0]}, translations={"de": paths[1]})
    found = RETRIEVAL.references(task, task.test, "en")
    assert found == {"chance": {"de": 25.0}, "TF-IDF of letters": {"de": pytest.approx(81.25)}}


def test_how_others_are_finetuned_does_not_decide_it(write):
    files = [write("de", "de"), write("en", "en")]

    def inputs(lr, **keys):
        task = {"kind": "retrieval", "test": {"de": files[0]}, "translations": {"de": files[1]}, **keys}
        return task_inputs(recipe_of(["bl_base"], finetune={"lr": lr, "tasks": {"tatoeba": task}}), "tatoeba", files)

    assert inputs(1e-5) == inputs(1e-3) != inputs(1e-5, depth=8)
    assert files[1] not in str(inputs(1e-5))  # by its content
