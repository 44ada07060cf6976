"""Text of others in Markdown: of data, of manifests, of names."""

import re

# What Markdown reads as its own in the middle of a line, and what makes a link or an image of brackets. An underscore
# inside a word is no mark.
_MARKS = re.compile(r"[\\|*`]|\](?=[(\[:])")
_BRACKETS = re.compile(r"(?<!\\)[\[\]]")


def escape_markdown(text: str, in_brackets: bool = False) -> str:
    """`text` in one line in which no mark, link, image or HTML is left; a table or a paragraph takes it as it is.

    in_brackets: it is to stand in those of a link or an image.
    """
    in_a_line = " ".join(text.splitlines()).replace("&", "&amp;").replace("<", "&lt;")
    escaped = _MARKS.sub(r"\\\g<0>", in_a_line)
    return _BRACKETS.sub(r"\\\g<0>", escaped) if in_brackets else escaped
