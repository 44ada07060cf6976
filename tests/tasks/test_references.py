"""Scores that need no language model."""

import pytest

from ds_minimodel.tasks import references

TOPICS = {"cell": "sheet column sum formula cell", "page": "page footer header paragraph letter"}


def topic_examples(count):
    """Texts of four words of a topic each, and the topics; deterministic."""
    texts, labels = [], []
    for index in range(count):
        label = ("cell", "page")[index % 2]
        words = TOPICS[label].split()
        texts.append(" ".join(words[(index + step) % 5] for step in range(4)))
        labels.append(label)
    return texts, labels


def test_majority_is_that_of_the_training_labels():
    tests = {"en": ([], ["b", "a", "a", "a"]), "de": ([], ["b", "b"])}
    assert references.majority_accuracies(["a", "b", "b"], tests) == {"en": 25.0, "de": 100.0}
    assert references.majority_accuracies(["b", "a"], tests)["en"] == 75.0


def test_tfidf_learns_topics_and_is_deterministic():
    texts, labels = topic_examples(40)
    tests = {"en": topic_examples(10), "xx": (["zzz"] * 2, ["cell", "page"])}
    scores = references.tfidf_accuracies(texts, labels, tests)
    assert scores == {"en": 100.0, "xx": 50.0}
    assert references.tfidf_accuracies(texts, labels, tests) == scores


def test_references_are_fitted_by_one_thread_whatever_is_set(monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    pytest.importorskip("sklearn")
    fit, seen = references.LogisticRegression.fit, []

    def watched(model, *data):
        seen.append({pool["num_threads"] for pool in threadpoolctl.threadpool_info()})
        return fit(model, *data)

    monkeypatch.setattr(references.LogisticRegression, "fit", watched)
    with threadpoolctl.threadpool_limits(2):
        references.tfidf_accuracies(*topic_examples(12), {})
        references.overlap_accuracies([("one", "one"), ("two", "three")] * 6, ["1", "0"] * 6, {})
        assert 2 in {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    assert seen == [{1}, {1}]


def test_what_cannot_be_learnt_from_has_a_reason_in_the_place_of_scores():
    """One label, few examples, texts without words."""
    pytest.importorskip("sklearn")
    reason = "too few texts, words or labels to learn from"
    texts, labels = topic_examples(40)
    assert references.tfidf_accuracies(texts, ["one"] * 40, {}) == reason
    assert references.tfidf_accuracies(texts[:2], labels[:2], {}) == reason
    assert references.tfidf_accuracies(["!", "?"] * 20, labels, {}) == reason
    assert references.overlap_accuracies([("a", "b")] * 4, ["x"] * 4, {}) == reason
    assert references.letter_similarities(["", " "], ["", " "]) == reason


@pytest.mark.parametrize(
    "question, context, answer",
    [
        ("Inserting charts", "Saves a file. Inserts a chart here. Prints it.", "Inserts a chart here."),
        ("插入图表", "保存文件。在此插入图表。打印。", "在此插入图表。"),
        ("nothing shared", "One two three. Four.", "Four."),
    ],
)
def test_the_best_sentence_shares_most_words(question, context, answer):
    assert references.best_sentence(question, context) == answer


def test_without_scikit_learn_there_is_no_score(monkeypatch):
    monkeypatch.setattr(references, "LogisticRegression", None)
    assert references.tfidf_accuracies(["a"], ["x"], {}) == "scikit-learn is not installed"
    assert references.overlap_accuracies([("a", "b")], ["x"], {}) == "scikit-learn is not installed"
