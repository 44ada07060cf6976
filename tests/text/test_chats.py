"""Dialogues of rows, and of a text with headings."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from ds_minimodel.cli.main import parse
from ds_minimodel.common.errors import UserError
from ds_minimodel.text.chats import chats_from_text, dialogue_about, read_dialogues, sections
from ds_minimodel.text.reader import read_documents

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


BELOW = "It is a line that ends as a sentence does."
HEADINGS = [
    (
        f"# One\n\n{BELOW}\n\n{BELOW}\n## Two ##\nA list:\nTea\n",
        [("One", [BELOW] * 2), ("Two", ["A list:", "Tea"])],
    ),
    (
        f"== One ==\n{BELOW}\n==  ==\n=== Two ===\n{BELOW}\n",
        [("One", [BELOW, "==  =="]), ("Two", [BELOW])],
    ),
    (f"One\n===\n\n{BELOW}\n\nTwo\n---\n{BELOW}\n", [("One", [BELOW]), ("Two", [BELOW])]),
    (f"1. One\n{BELOW}\n1.2 Two\n{BELOW}\n", [("One", [BELOW]), ("Two", [BELOW])]),
    (f"One\n{BELOW}\n{BELOW}\nTwo\n{BELOW}\n\n{BELOW}\n", [("One", [BELOW] * 2), ("Two", [BELOW])]),
    (f"NAME\n\n{BELOW}\n\nWhat is it?\n\n{BELOW}\n", [("NAME", [BELOW]), ("What is it?", [BELOW])]),
    (f"One\n{BELOW}\n\n{BELOW}\n\n---\n\nTwo\n{BELOW}\n", [("One", [BELOW]), ("Two", [BELOW])]),
    (
        f"# One\n```sh\n# a comment\n\n```\n{BELOW}\n",
        [("One", ["```sh", "# a comment", "```", BELOW])],
    ),
    (f"यह एक वाक्य है।\n{BELOW}\n", []),
    (f"{BELOW}\n{BELOW}\n\nno heading\n{BELOW}\n\nOne\nTwo\n", []),
]


@pytest.mark.parametrize("text, expected", HEADINGS)
def test_headings(tmp_path, text, expected):
    (tmp_path / "text.txt").write_text(text)
    assert [*sections(read_documents([tmp_path / "text.txt"]))] == expected


SENTENCES = (
    "小船看见大港口，风很新。" * 40,
    "هذا قارب صغير۔ " * 40,
    f"{'wort ' * 40}Ende. {'wort ' * 38}  3.14159 {'wort ' * 9}",
)


@pytest.mark.parametrize("line, end", [*zip(SENTENCES, ("。", "۔", "Ende."), strict=True)])
def test_an_answer_ends_with_a_sentence_of_any_script(line, end):
    asked, said = (turn["content"] for turn in dialogue_about("ما هذا؟", [line], "xx"))
    assert (
        asked == "ما هذا؟"
        and said.endswith(end)
        and line.startswith(said)
        and 200 < len(said) <= 400
    )


def test_the_command(tmp_path, capsys):
    (tmp_path / "de.txt").write_text(
        f"# Eins\n{BELOW}\n{BELOW * 10}\n# Kurz\nZu wenig.\n# Lang\n{BELOW} {'x' * 999}\n"
    )
    out = tmp_path / "chats.jsonl"
    options = parse(
        ["chats-from-text", str(tmp_path / "de.txt"), "--language", "de", "--out", str(out)]
    )
    options.run(options)
    assert "2 dialogues" in capsys.readouterr().out
    written = [[turn["content"] for turn in turns] for _, turns in read_dialogues([out])]
    questions, answers = zip(*written, strict=True)
    assert all(word in asked for word, asked in zip(("Eins", "Lang"), questions, strict=True))
    assert answers == (BELOW, BELOW)
    with pytest.raises(UserError, match="chats.jsonl: exists"):
        options.run(options)
    (tmp_path / "de.txt").write_text(BELOW)
    with pytest.raises(UserError, match="no heading with text below it"):
        chats_from_text([tmp_path / "de.txt"], tmp_path / "none.jsonl", "de")
