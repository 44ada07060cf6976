"""Lines that are text of a language, and the merged corpus."""

import pytest
from ds_minimodel_examples.text import is_text, merge, same_text_key


@pytest.mark.parametrize(
    "line, language, text",
    [
        ("A whole sentence.", "en", True),
        ("x = f(1, 2); y[3] += 0x00", "en", False),
        ("Das ist ein Satz in der Sprache.", "de", True),
        ("The name of the file is not known to it.", "de", False),
        (
            "Dieser Satz zitiert „the end of the line“ und geht auf Deutsch noch ein Stück weiter.",
            "de",
            True,
        ),
        ("这是中文", "zh", True),
        ("Это предложение.", "ru", True),
    ],
)
def test_lines_of_a_language(line, language, text):
    assert is_text(line, language) is text


def test_merge_drops_repeats_untranslated_and_held_out_lines():
    documents = [
        ["Eine erste Zeile.", "Held-out page line", "Zweite  Zeile hier."],
        ["Eine erste Zeile."],
        ["Untranslated line", "Dritte Zeile hier."],
    ]
    english = {same_text_key("untranslated LINE")}
    held_out = {same_text_key("Held-out page line.")}
    merged = list(merge(documents, english, held_out, "de"))
    assert merged == [["Eine erste Zeile.", "Zweite Zeile hier."], ["Dritte Zeile hier."]]
