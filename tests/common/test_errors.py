"""A user's mistake is one printable line, whatever it quotes."""

from ds_minimodel.common.errors import LONGEST, UserError


def test_a_message_is_one_line_that_shows():
    assert str(UserError("a\n  b\r\n c\n")) == "a b c"
    assert str(UserError("a\x1b[2J\0\u2028\ud800ä字")) == r"a\x1b[2J\x00\u2028\ud800ä字"


def test_a_long_message_keeps_its_ends():
    message = str(UserError("where: " + "x" * 10**6 + " what to do"))
    assert len(message) == LONGEST and message.startswith("where: ") and message.endswith(" what to do")
