"""Dialogues of a text with headings."""

import pytest
from ds_minimodel_examples.chats import dialogue_about, main, sections

from ds_minimodel.text.chats import read_dialogues
from ds_minimodel.text.reader import read_documents

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
    assert asked == "ما هذا؟"
    assert said.endswith(end)
    assert line.startswith(said)
    assert 200 < len(said) <= 400


def test_a_mark_that_is_seen_once_does_not_decide_for_the_whole_text():
    """It may be a comment in code; a text whose headings are marked keeps those alone."""
    pages = [[f"Page {number}", BELOW] for number in range(100)]
    found = [("Page " + str(number), [BELOW]) for number in range(100)]
    assert [*sections([*pages[:1], ["# a comment", "x = 1"], *pages[1:]])] == found
    marked = [line for number in range(30) for line in (f"# Part {number}", BELOW, "Tea", BELOW)]
    assert len([*sections([marked])]) == 30


@pytest.mark.parametrize("line", [f"# {'x ' * 114}", "# x" + " " * 16_000 + "y", "    # x"])
def test_lines_of_code_are_no_headings(line):
    assert [*sections([["# One", line, BELOW, "# Two", BELOW]])] == [
        ("One", [line.strip(), BELOW]),
        ("Two", [BELOW]),
    ]


def test_the_command(tmp_path, capsys):
    text = tmp_path / "de.txt"
    out = tmp_path / "chats.jsonl"
    text.write_text(
        f"# Eins\n{BELOW}\n{BELOW * 10}\n# Kurz\nZu wenig.\n# Lang\n{BELOW} {'x' * 999}\n"
    )
    main([str(text), "--language", "de", "--out", str(out)])
    assert "2 dialogues" in capsys.readouterr().out
    written = [[turn["content"] for turn in turns] for _, turns in read_dialogues([out])]
    questions, answers = zip(*written, strict=True)
    assert all(word in asked for word, asked in zip(("Eins", "Lang"), questions, strict=True))
    assert answers == (BELOW, BELOW)
    for target, words in ((out, "chats.jsonl: exists"), (tmp_path / "none", "no heading with")):
        text.write_text(BELOW)
        with pytest.raises(SystemExit, match="2"):
            main([str(text), "--language", "de", "--out", str(target)])
        assert words in capsys.readouterr().err
