"""Labels of finished classifiers: the files that ask for them, and their scores."""

import json

import numpy as np
import pytest

from ds_minimodel.evaluation import KINDS
from ds_minimodel.evaluation.labels import RightLabelConfig, SameLabelConfig
from tests.evaluation.conftest import Letters, write
from tests.helpers.refusals import refuses

RIGHT = KINDS["finished-classifier"]
SAME = KINDS["same-label"]
TASK = RightLabelConfig(kind="finished-classifier", labels=["sport", "art", "law"], test={})


def scores(likeliest):
    """Logits of which these are the largest."""
    logits = np.eye(3, dtype=np.float32)[likeliest]
    return [(np.arange(len(likeliest))[::-1], logits[::-1])]


def test_labels_are_matched_by_their_names_in_the_models_order(tmp_path):
    rows = [{"text": "a", "label": "law"}, {"text": "b", "label": "sport"}]
    records = RIGHT.read(write(tmp_path / "t.jsonl", rows), TASK, language="de", labels=None)
    encoded = RIGHT.encode(Letters(), records, TASK, max_length=8)
    assert (
        RIGHT.score(TASK, "de", records=records, encoded=encoded, logits=scores([2, 1]))["score"]
        == 50
    )
    assert (
        RIGHT.score(TASK, "de", records=records, encoded=encoded, logits=scores([2, 0]))["score"]
        == 100
    )


def test_a_label_that_the_model_has_not_is_named(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"text": "a", "label": "music"}])
    with refuses("'music' is not one of the task's"):
        RIGHT.read(path, TASK, language="de", labels=None)


def test_a_text_is_to_get_the_label_of_its_translation(tmp_path):
    rows = [("a", "x"), ("b", "y"), ("c", "x")]
    path = write(tmp_path / "t.jsonl", [{"query": q, "document": d} for q, d in rows])
    task = SameLabelConfig(kind="same-label", test={})
    records = SAME.read(path, task, language="de", labels=None)
    encoded = SAME.encode(Letters(), records, task, max_length=8)
    assert len(encoded.examples) == 5
    score = SAME.score(
        task, "de", records=records, encoded=encoded, logits=scores([0, 1, 2, 0, 1])
    )["score"]
    assert score == pytest.approx(200 / 3)
    assert json.dumps(score)
