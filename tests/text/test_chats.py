"""Dialogues of rows."""

import json
import re

import pyarrow
import pytest
from pyarrow import parquet

from ds_minimodel.text import chats
from ds_minimodel.text.chats import read_dialogues
from tests.helpers.files import write_json, write_json_lines
from tests.helpers.refusals import refuses

ASKED = {"role": "user", "content": "How?"}
SAID = {"role": "assistant", "content": "So."}
EXAMPLE = re.escape(chats._EXAMPLE)
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


def test_the_row_that_messages_show_is_read(tmp_path):
    (tmp_path / "chats.jsonl").write_text(chats._EXAMPLE + "\n")
    ((_, dialogue),) = read_dialogues([tmp_path / "chats.jsonl"])
    assert dialogue == json.loads(chats._EXAMPLE)["messages"]


def test_the_forms_of_rows(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row, _ in ROWS))
    assert [*read_dialogues([path])] == [
        (f"{path}:{line}", turns) for line, (_, turns) in enumerate(ROWS, 1)
    ]
    for index, (row, turns) in enumerate(ROWS):
        path = tmp_path / f"{index}.parquet"
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
        ({"messages": [ASKED]}, "no turn of an assistant that is to be learned"),
        (
            {"messages": [ASKED, {**SAID, "train": False}]},
            "no turn of an assistant that is to be learned",
        ),
        (
            {"messages": [ASKED, {**SAID, "weight": 0.5}]},
            "turn 2: 'weight' is 0.5, neither 0 nor 1",
        ),
        (
            {"messages": [ASKED, {**SAID, "masked": True}]},
            "turn 2: 'masked' may say that it is not to be learned; write that as 'weight': 0, or "
            "leave the key out",
        ),
        (
            {"prompt": "How?", "n": 1},
            "no 'messages', and no 'prompt' with a 'completion'; there are: prompt, n; a row is "
            + EXAMPLE,
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, row, words):
    path = tmp_path / "chats.jsonl"
    write_json_lines(path, [ROWS[0][0], row])
    with refuses(f"^{path}:2: {words}$"):
        list(read_dialogues([path]))
    with refuses(f"chats.txt: rows are expected; .* such as {EXAMPLE}"):
        (tmp_path / "chats.txt").write_text("How? So.")
        next(read_dialogues([tmp_path / "chats.txt"]))


@pytest.mark.parametrize(
    "mark",
    [
        {"weight": 0},
        {"weight": "0"},
        {"train": False},
        {"trainable": False},
        {"loss": False},
        {"loss_mask": 0},
        {"lossWeight": 0.0},
        {"is_trained": "False", "weight": 1},
    ],
)
def test_an_answer_that_is_marked_is_context(tmp_path, mark):
    """As other tools' files mark what is not to be learned."""
    path = tmp_path / "chats.jsonl"
    context = {**SAID, "weight": 0}
    marked = {**SAID, **mark}
    write_json(path, {"messages": [ASKED, marked, ASKED, SAID, ASKED, marked]})
    ((_, dialogue),) = read_dialogues([path])
    assert dialogue == [ASKED, context, ASKED, SAID]


@pytest.mark.parametrize(
    "key, value",
    [
        ("tool_calls", [{"id": "1"}]),
        ("function_call", {"name": "f"}),
        ("toolCall", "f()"),
        ("reasoning_content", "Hm."),
        ("thinking", "Hm."),
        ("images", ["a.png"]),
    ],
)
def test_what_would_be_lost_of_a_turn_is_refused(tmp_path, key, value):
    path = tmp_path / "chats.jsonl"
    write_json(path, {"messages": [ASKED, {**SAID, key: value}]})
    with refuses(f"chats.jsonl:1: turn 2: '{key}' would be lost; leave the"):
        list(read_dialogues([path]))


def test_other_keys_of_turns_are_said_once(tmp_path):
    """Nothing is said of a key that holds nothing."""
    path = tmp_path / "chats.jsonl"
    said = list[str]()
    turns = [{**ASKED, "name": "Ann"}, {**SAID, "train": True, "tool_calls": None, "images": []}]
    path.write_text(f"{json.dumps({'messages': turns})}\n" * 2)
    assert len([*read_dialogues([path], said.append)]) == 2
    assert said == [f"{path}:1: 'name' of turns is not read"]
