"""What a quickstart's scores are compared with."""

import pytest

from tests.helpers.files import write_json, write_json_lines

from ..docs import import_script

TRAIN = [
    {"text": text, "label": label}
    for text, label in (("a cell sum", "calc"), ("sum of cells", "calc"), ("slide", "show"))
]
TEST = [{"text": text, "label": "calc"} for text in ["the sum"] * 40 + ["a slide"] * 20] + TRAIN[
    2:
] * 40


@pytest.mark.parametrize(
    "score, verdict", [(95.0, "every system is above"), (82.0, "bl_base: not above")]
)
def test_scores_are_compared_with_what_needs_no_model(score, verdict, tmp_path):
    files = {"tasks/topic/train.en.jsonl": TRAIN, "tasks/topic/test.de.jsonl": TEST}
    for name, rows in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_json_lines(tmp_path / name, rows)
    scores = [
        dict(system="bl_base", language="de", seed=1, step=step, score=found)
        for step, found in ((0, 1.0), (9, score))
    ]
    (tmp_path / "report").mkdir()
    write_json(tmp_path / "report/scores.json", scores)
    said = import_script("scripts/baselines.py").said(tmp_path, tmp_path)
    assert "words in common 80.0, the most frequent topic 60.0" in said
    assert verdict in said
