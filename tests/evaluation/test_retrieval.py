"""What finds what among vectors: ranks, shares, intervals, and the files that say what is right."""

import numpy as np
import pytest
from scipy.stats import binomtest

from ds_minimodel.evaluation import KINDS
from ds_minimodel.evaluation.retrieval import (
    RetrievalConfig,
    filled,
    found,
    ranks_of_right,
    vectors_of,
    wilson,
)
from tests.evaluation.conftest import Letters, write
from tests.helpers.refusals import refuses

RETRIEVAL = KINDS["retrieval"]
SETTINGS = RetrievalConfig(kind="retrieval", test={"de": "de"})


def ranks_by_brute_force(queries, documents, right):
    """For each query with a right document, how many wrong ones are as near, and one."""
    ranks = []
    for query in sorted({query for query, _ in right}):
        mine = {document for asked, document in right if asked == query}
        nearness = [sum(a * b for a, b in zip(queries[query], row)) for row in documents]
        best = max(nearness[document] for document in mine)
        wrong = [near for index, near in enumerate(nearness) if index not in mine]
        ranks.append(1 + sum(near >= best for near in wrong))
    return ranks


@pytest.mark.parametrize("seed", range(5))
def test_places_are_those_of_a_brute_force_with_ties(seed):
    rng = np.random.default_rng(seed)
    # Small whole numbers: many documents are exactly as near as the right one.
    queries = rng.integers(-2, 3, (40, 3)).astype(np.float32)
    documents = rng.integers(-2, 3, (60, 3)).astype(np.float32)
    pairs = {(int(q), int(d)) for q, d in zip(rng.integers(0, 40, 70), rng.integers(0, 60, 70))}
    right = np.array(sorted(pairs, key=lambda pair: pair[::-1]))
    expected = ranks_by_brute_force(queries.tolist(), documents.tolist(), pairs)
    assert ranks_of_right(queries, documents, right).tolist() == expected
    ways = found(queries, documents, right)
    assert ways.recall_at_1 == pytest.approx(100 * np.mean([rank == 1 for rank in expected]))
    assert ways.recall_at_10 == pytest.approx(100 * np.mean([rank <= 10 for rank in expected]))
    assert ways.mrr == pytest.approx(100 * np.mean([1 / rank for rank in expected]))
    assert ways.queries == len({query for query, _ in pairs})
    assert ways.candidates == 60


def test_blocks_of_queries_change_no_place(monkeypatch):
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(2, 50, 8)).astype(np.float32)
    right = np.stack([rng.permutation(50), rng.permutation(50)], axis=1)
    whole = ranks_of_right(queries, documents, right)
    monkeypatch.setattr("ds_minimodel.evaluation.retrieval.BLOCK", 7)
    assert (ranks_of_right(queries, documents, right) == whole).all()


def test_a_model_that_gives_all_texts_one_vector_finds_nothing():
    same = np.ones((100, 4), np.float32)
    pairs = np.stack([np.arange(100)] * 2, axis=1)
    assert ranks_of_right(same, same, pairs).tolist() == [100] * 100


def test_what_is_as_near_but_for_rounding_counts_against_the_model():
    queries = np.array([[1.0, 0.0]], np.float32)
    documents = np.array([[0.5, 0], [0.5 - 2e-8, 0], [0.49, 0]], np.float32)
    assert ranks_of_right(queries, documents, np.array([[0, 0]])).tolist() == [2]


def test_a_vector_that_is_no_number_is_never_first():
    queries = np.eye(3, dtype=np.float32)
    documents = np.eye(3, dtype=np.float32)
    documents[1] = np.nan
    pairs = np.stack([np.arange(3)] * 2, axis=1)
    assert ranks_of_right(queries, documents, pairs).tolist() == [2, 3, 2]


@pytest.mark.parametrize("right, count", [(0, 10), (714, 1000), (229, 229), (1, 3)])
def test_the_interval_is_wilsons(right, count):
    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson(right / count, count) == pytest.approx(tuple(expected), abs=1e-5)


def test_a_text_in_several_rows_is_one_with_all_that_belongs_to_it(tmp_path):
    rows = [("a", "x"), ("b", "y"), ("a", "y"), ("", "z"), ("c", ""), ("a", "x")]
    path = write(tmp_path / "t.jsonl", [{"query": q, "document": d} for q, d in rows])
    records = RETRIEVAL.read(path, SETTINGS, language="de", labels=None)
    assert records.queries == ["a", "b", "c"]
    assert records.documents == ["x", "y", "z"]
    assert records.right.tolist() == [[0, 0], [1, 1], [0, 1]]


def test_columns_may_have_other_names(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"heading": "a", "page": "x"}])
    named = {"query": "heading", "document": "page"}
    task = RetrievalConfig(kind="retrieval", test={}, columns=named)
    assert RETRIEVAL.read(path, task, language="de", labels=None).documents == ["x"]


@pytest.mark.parametrize(
    "rows, said",
    [
        ([{"query": " ", "document": ""}], "t.jsonl:1: a row has a query and a document"),
        ([{"query": "a", "document": ""}], "no query with a document"),
        ([{"query": "a"}], "no 'document'"),
    ],
)
def test_a_file_that_asks_nothing_is_refused(rows, said, tmp_path):
    with refuses(said):
        RETRIEVAL.read(write(tmp_path / "t.jsonl", rows), SETTINGS, language="de", labels=None)


def test_texts_stand_after_their_prompts_and_are_cut(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"query": "ab", "document": "cdefgh"}])
    prompts = {"query": "q:"}
    task = RetrievalConfig(kind="retrieval", test={}, prompts=prompts)
    records = RETRIEVAL.read(path, task, language="de", labels=None)
    examples = RETRIEVAL.encode(Letters(), records, task, max_length=6).examples
    query, document = np.split(examples.tokens, examples.bounds[1:-1])
    assert query.tolist() == [1, *map(ord, "q:ab"), 2]
    assert document.tolist() == [1, *map(ord, "cdef"), 2]


def test_scores_are_of_both_ways(tmp_path):
    rows = [{"query": "a", "document": "x"}, {"query": "b", "document": "y"}]
    rows.append({"query": "", "document": "z"})
    records = RETRIEVAL.read(
        write(tmp_path / "t.jsonl", rows), SETTINGS, language="de", labels=None
    )
    encoded = RETRIEVAL.encode(Letters(), records, SETTINGS, max_length=8)
    # "a" is nearest to z, "b" to y; x and y are nearest to their own.
    vectors = np.array([[1, 0], [0, 1], [0.9, 0], [0, 1], [1, 0]], np.float32)
    batches = [(np.array([4, 0]), vectors[[4, 0]]), (np.array([1, 2, 3]), vectors[1:4])]
    assert (vectors_of(batches, 5) == vectors).all()
    scores = RETRIEVAL.score(SETTINGS, "de", records=records, encoded=encoded, logits=batches)
    assert scores["score"] == scores["recall_at_1"] == 50
    assert scores["mrr"] == 75
    assert scores["recall_at_10"] == 100
    assert scores["back_recall_at_1"] == scores["back_mrr"] == 100
    assert scores["candidates"] == 3
    assert scores["back_candidates"] == 2


def test_a_file_is_filled_with_other_texts_on_both_sides():
    pairs = [("a", "x"), ("b", "x")]
    others = [("a", "u"), ("c", "x"), ("d", "v"), ("e", "w")]
    rows = filled(pairs, others, 3)
    assert rows[:2] == [{"query": "a", "document": "x"}, {"query": "b", "document": "x"}]
    assert [row["query"] for row in rows[2:]] == ["c", "", ""]
    assert [row["document"] for row in rows[2:]] == ["", "u", "v"]
