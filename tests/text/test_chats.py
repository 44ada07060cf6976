"""Dialogues of rows."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from ds_minimodel.common.errors import UserError
from ds_minimodel.text.chats import read_dialogues

ASKED, SAID = {"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}
SYSTEM = {"role": "system", "content": "Be brief."}
ROWS = [
    ({"messages": [SYSTEM, ASKED, SAID, ASKED]}, [SYSTEM, ASKED, SAID]),
    ({"prompt": " How?\n", "completion": "So."}, [ASKED, SAID]),
    ({"prompt": [SYSTEM, ASKED], "completion": [SAID]}, [SYSTEM, ASKED, SAID]),
    (
        {"conversations": [{"from": "human", "value": "How?"}, {"from": "gpt", "value": "So."}]},
        [ASKED, SAID],
    ),
    ({"prompt": "How?", "completion": "So.", "system": "Be brief."}, [SYSTEM, ASKED, SAID]),
]


def test_the_forms_of_rows(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row, _ in ROWS))
    assert [*read_dialogues([path])] == [
        (f"{path}:{at}", turns) for at, (_, turns) in enumerate(ROWS, 1)
    ]
    for number, (row, turns) in enumerate(ROWS):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([row | {"id": 1}]), path)
        assert [*read_dialogues([path])] == [(f"{path}: row 1", turns)]


@pytest.mark.parametrize(
    "row, words",
    [
        (
            {"messages": [{**SYSTEM, "content": ""}, SAID]},
            'turn 2: of "assistant", where system or user is to speak',
        ),
        ({"messages": [ASKED, SYSTEM]}, 'turn 2: of "system", where assistant is to speak'),
        ({"messages": [ASKED, {**SAID, "content": " "}]}, "turn 2: assistant says nothing"),
        ({"messages": [ASKED, {"role": "assistant"}]}, "turn 2: 'content' is null, not text"),
        ({"messages": ["How?"]}, 'turn 1: "How\\?", and no role with a content'),
        (
            {"messages": [ASKED, {**SAID, "weight": 0}]},
            "turn 2: has tool calls, or is not to be learned .*",
        ),
        ({"messages": [ASKED]}, "no turn of an assistant"),
        (
            {"prompt": "How?", "n": 1},
            "no 'messages', and no 'prompt' with a 'completion'; there are: prompt, n",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, row, words):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [ROWS[0][0], row]))
    with pytest.raises(UserError, match=f"^{path}:2: {words}$"):
        list(read_dialogues([path]))
    with pytest.raises(UserError, match="chats.txt: rows are expected"):
        (tmp_path / "chats.txt").write_text("How? So.")
        next(read_dialogues([tmp_path / "chats.txt"]))
