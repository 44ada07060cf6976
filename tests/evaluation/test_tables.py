"""Labelled tables: what is read from each form, and the line that a mistake gets."""

import json
import os

import pytest

from ds_minimodel.evaluation.classification import Classification, Pair
from ds_minimodel.evaluation.tables import read_table
from tests.helpers.refusals import refuses

SENTENCE = Classification().table_forms({})
PAIR = Pair().table_forms({})


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_jsonl(folder, *rows):
    return write(
        folder, "task.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    )


def test_labels_are_those_of_the_file_sorted(tmp_path):
    path = write_jsonl(
        tmp_path,
        {"text": "γάτα", "label": "writer"},
        {"text": "", "label": "calc"},
        {"text": "表格", "label": "writer", "more": 1},
    )
    records = read_table(path, SENTENCE)
    assert records.texts == (["γάτα", "", "表格"],)
    assert records.labels == ("calc", "writer")
    assert records.targets.tolist() == [1, 0, 1]


def test_numbers_are_labels_by_their_digits_in_all_forms(tmp_path):
    jsonl = write_jsonl(
        tmp_path,
        {"sentence1": "a", "sentence2": "b", "label": 1},
        {"sentence1": "c", "sentence2": "d", "label": 0},
    )
    tsv = write(tmp_path, "t.tsv", "id\tsentence1\tsentence2\tlabel\n1\ta\tb\t1\n2\tc\td\t0\n")
    csv = write(tmp_path, "t.csv", "label,sentence2,sentence1\n1,b,a\n0,d,c\n")
    for path in (jsonl, tsv, csv):
        records = read_table(path, PAIR)
        assert records.texts == (["a", "c"], ["b", "d"])
        assert records.labels == ("0", "1")
        assert records.targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    "found, labels, kept",
    [
        ([0, -1, 2, 1, -1], None, ["0", "2", "1"]),
        (["yes", "-", "no"], None, ["yes", "no"]),
        (["yes", -1, "-"], None, ["yes"]),
        ([-1, 1], None, ["-1", "1"]),  # two classes, as some number them
        (["-", "+"], None, ["-", "+"]),
        ([-1, 0, 1], ["-1", "0", "1"], ["-1", "0", "1"]),
        ([-1, 1], ["0", "1"], ["1"]),
        (["yes", "NA", "no", "nan"], None, ["yes", "no"]),  # as pandas knows a missing one
        (["EU", "NA"], ["EU", "NA"], ["EU", "NA"]),
    ],
)
@pytest.mark.parametrize("columns", [{}, {"label": "gold"}])
def test_rows_without_a_label_are_left_out_and_counted(
    tmp_path, capfd, found, labels, kept, columns
):
    """As SNLI's and MultiNLI's without a majority, in columns that the user named, too."""
    path = write_jsonl(
        tmp_path, *({"text": "a", columns.get("label", "label"): label} for label in found)
    )
    records = read_table(path, Classification().table_forms(columns), labels)
    assert [records.labels[target] for target in records.targets] == kept
    said = (
        f"{len(found) - len(kept)} of {len(found)} rows are left out"
        if len(kept) < len(found)
        else ""
    )
    assert said in capfd.readouterr().err
    assert read_table(path, Classification().table_forms(columns), labels)
    assert not capfd.readouterr().err, "once"


GOOD = '{"text": "a", "label": "x"}\n'


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("t.jsonl", "\n", "t.jsonl: no examples"),
        (
            "t.jsonl",
            GOOD + '{"txt": "a", "label": "x"}\n',
            "t.jsonl:2: no 'text'; there are: txt, label",
        ),
        ("t.jsonl", '{"text": "a", "label": " "}\n', "t.jsonl:1: the label 'label' is empty"),
        ("t.tsv", "text\tlabel\na\tx\n\nb\n", "t.tsv:4: 1 fields where the header names 2"),
        (
            "t.jsonl",
            '{"text": ' + "[" * 300 + "]" * 300 + "}",
            "t.jsonl:1: 'text' is a list, not text",
        ),
        ("t.jsonl", '{"text": "a", "label": -1}', "no examples"),  # as test files of GLUE
    ],
)
def test_mistakes_get_one_line_that_says_where(tmp_path, name, content, message):
    with refuses(message):
        read_table(write(tmp_path, name, content), SENTENCE)


def test_files_that_cannot_be_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    for path in (tmp_path, tmp_path / "pipe.tsv", tmp_path / "absent.tsv"):
        with refuses("no such file"):
            read_table(path.with_suffix(".tsv"), SENTENCE)


def test_columns_of_no_known_form_are_named_with_a_way_out(tmp_path):
    path = write(tmp_path, "t.csv", "premise,hypothesis,gold,lang\na,b,x,de\nc,d,x,tr\n")
    with refuses(
        r"t\.csv:2: no known set of columns .*there are: premise, hypothesis, gold, lang; "
        "name them in the recipe"
    ):
        read_table(path, PAIR)
    names = {"sentence1": "premise", "sentence2": "hypothesis", "label": "gold", "language": "lang"}
    assert read_table(path, Pair().table_forms(names), language="tr").texts == (["c"], ["d"])
    with refuses("t.csv:2: no 'text1'; there are"):
        read_table(path, Pair().table_forms({"sentence1": "text1"}))


def test_given_labels_keep_their_order_and_rule_out_others(tmp_path):
    path = write_jsonl(tmp_path, {"text": "a", "label": "b"}, {"text": "c", "label": "a"})
    assert read_table(path, SENTENCE, labels=["z", "b", "a"]).targets.tolist() == [1, 2]
    with refuses(r"task\.jsonl:2: label 'a' is not one of the task's \(b, c\)"):
        read_table(path, SENTENCE, labels=["b", "c"])
