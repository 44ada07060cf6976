"""A user's mistake is one printable line, whatever it quotes."""

import pytest

from ds_minimodel.common.errors import MAX_CHARACTERS, UserError, one_line
from ds_minimodel.report.render import Heading, escape_markdown, to_html


def test_a_message_is_one_line_that_shows():
    assert str(UserError("a\n  b\r\n c\n")) == "a b c"
    assert str(UserError("a\x1b[2J\0\u2028\ud800ä字")) == r"a\x1b[2J\x00\u2028\ud800ä字"


def test_an_interrupt_by_another_name_is_one():
    with pytest.raises(KeyboardInterrupt), one_line("config.json", "transformers does not take it"):
        raise ModuleNotFoundError("Could not import module 'LlamaConfig'") from KeyboardInterrupt()


def test_a_page_holds_nothing_that_a_terminal_obeys():
    """What joins letters, in Persian and Hindi, stays."""
    escaped = escape_markdown("a\x1b]0;b\x07.txt \udcff \u200c")
    assert escaped == r"a\\x1b]0;b\\x07.txt \\udcff " + "\u200c"
    page = to_html("a\x1b[2J", [Heading("\udcff\x9b")])
    assert r"a\x1b[2J" in page
    assert r"\udcff\x9b" in page
    assert "\x1b" not in page
    assert "\n" in page


def test_a_long_message_keeps_its_ends():
    message = str(UserError("where: " + "x" * 10**6 + " what to do"))
    assert len(message) == MAX_CHARACTERS
    assert message.startswith("where: ")
    assert message.endswith(" what to do")
