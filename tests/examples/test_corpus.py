"""Lines that are text of a language, and the merged corpus."""

import pytest
from ds_minimodel_examples.text import clean, is_text, merge, same_text_key, write_text


@pytest.mark.parametrize(
    "text, line",
    [
        (" a\n\tb\u00a0 c ", "a b c"),
        ("Donau\u00addampf\u200bschiff", "Donaudampfschiff"),
        ("这是\n中文 text 文。 好", "这是中文 text 文。好"),
    ],
)
def test_clean(text, line):
    assert clean(text) == line


@pytest.mark.parametrize(
    "line, language, text",
    [
        ("A whole sentence.", "en", True),
        ("x = f(1, 2); y[3] += 0x00", "en", False),
        ("Das ist ein Satz in der Sprache.", "de", True),
        ("The name of the file is not known to it.", "de", False),
        ("Dieser Satz zitiert „the end of the line“ und geht auf Deutsch noch ein Stück weiter.", "de", True),
        ("这是中文", "zh", True),
        ("Это предложение.", "ru", True),
    ],
)
def test_lines_of_a_language(line, language, text):
    assert is_text(line, language) is text


def test_same_text_but_for_case_and_signs():
    assert same_text_key("Page 1: The End.") == same_text_key("page 22 the END")
    assert same_text_key("123") != same_text_key("456")


def test_merge_drops_repeats_untranslated_and_held_out_lines():
    documents = [
        ["Eine erste Zeile.", "Held-out page line", "Zweite  Zeile hier."],
        ["Eine erste Zeile."],
        ["Untranslated line", "Dritte Zeile hier."],
    ]
    english, held_out = {same_text_key("untranslated LINE")}, {same_text_key("Held-out page line.")}
    merged = list(merge(documents, english, held_out, "de"))
    assert merged == [["Eine erste Zeile.", "Zweite Zeile hier."], ["Dritte Zeile hier."]]


def test_documents_are_separated_by_blank_lines(tmp_path):
    counts = write_text(tmp_path / "text.txt", [["a", "b"], ["ç"]])
    assert (tmp_path / "text.txt").read_text(encoding="utf-8") == "a\nb\n\nç\n\n"
    assert counts == {"documents": 2, "lines": 3, "bytes": 9}
