"""The benchmarks' own files, in the exact form that they are downloaded in."""

import pytest

from ds_minimodel.evaluation.classification import Pair
from ds_minimodel.evaluation.tables import read_table
from tests.evaluation.conftest import MULTINLI, XNLI, nli, tsv
from tests.helpers.files import write_json_lines
from tests.helpers.refusals import refuses

PAIR = Pair().table_forms({})
LABELS = ["contradiction", "entailment", "neutral"]


def jsonl(path, *rows):
    write_json_lines(path, rows)
    return path


@pytest.fixture(params=["tsv", "jsonl"])
def xnli(request, tmp_path):
    rows = [
        nli("neutral", 'Er sagte, "Mama, ich', '#2 heim"', "de"),
        nli("contradiction", "A", "B", "fr"),
        nli("contradiction", "Und", "Nein", "de"),
        nli("entailment", "那么", "我", "zh"),
    ]
    if request.param == "tsv":
        return tsv(tmp_path / "xnli.test.tsv", XNLI, *rows)
    return jsonl(
        tmp_path / "xnli.test.jsonl", *({**row, "annotator_labels": ["neutral"]} for row in rows)
    )


def test_xnli_holds_all_languages_in_one_file(xnli):
    german = read_table(xnli, PAIR, labels=LABELS, language="de")
    assert german.texts == (['Er sagte, "Mama, ich', "Und"], ['#2 heim"', "Nein"])
    assert german.targets.tolist() == [2, 0]  # by name, whatever the order in the file
    assert read_table(xnli, PAIR, labels=LABELS, language="zh").texts == (["那么"], ["我"])
    with refuses("no examples in 'sw'"):
        read_table(xnli, PAIR, labels=LABELS, language="sw")


def test_xnlis_translated_training_file_spells_contradiction_otherwise(tmp_path):
    path = tsv(
        tmp_path / "multinli.train.en.tsv",
        ["premise", "hypo", "label"],
        ["\ufeffno BOM in the middle", "b", "neutral"],
        ['an "open quote', "#", "contradictory"],
        ["c", "d", "entailment"],
    )
    records = read_table(path, PAIR, labels=LABELS, language="en")
    assert records.targets.tolist() == [2, 0, 1]
    assert records.texts[0][1] == 'an "open quote'
    assert read_table(path, PAIR).labels == tuple(LABELS)


def test_multinli_leaves_out_pairs_without_a_majority(tmp_path):
    rows = [nli("neutral", "a", "b"), nli("-", "c", "d"), nli("contradiction", "e", "f")]
    for path in (
        tsv(tmp_path / "multinli_1.0_train.txt", MULTINLI, *rows),
        jsonl(
            tmp_path / "multinli_1.0_train.jsonl",
            *({**row, "annotator_labels": []} for row in rows),
        ),
    ):
        records = read_table(path, PAIR, labels=LABELS, language="en")
        assert records.texts == (["a", "e"], ["b", "f"])
        assert records.targets.tolist() == [2, 0]


def test_pawsx_leaves_out_what_was_not_translated(tmp_path):
    header = ["id", "sentence1", "sentence2", "label"]
    rows = [["1", 'He said "', "b .", "1"], ["2", "NS", "NS", "0"], ["3", "", "", "0"]]
    path = tsv(tmp_path / "test_2k.tsv", header, *rows, ["4", "x", "y", "0"], ["5", "x", "y", "NS"])
    records = read_table(path, PAIR, ["0", "1"])
    assert records.texts == (['He said "', "x"], ["b .", "y"])
    assert records.targets.tolist() == [
        1,
        0,
    ]
    other = jsonl(
        tmp_path / "own.jsonl", {"sentence1": "NS", "sentence2": "b", "label": 0, "id": "1"}
    )
    assert read_table(other, PAIR).texts == (["NS"], ["b"])  # in other files these are texts
