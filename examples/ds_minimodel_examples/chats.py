"""Dialogues of a text with headings: a heading asks, what stands below it answers.

python -m ds_minimodel_examples.chats TEXT... --language CODE --out FILE
"""

import argparse
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write, refuse_existing
from ds_minimodel.text.chats import Dialogue
from ds_minimodel.text.reader import COLUMN, find_text, read_documents

MAX_CHARACTERS = 400  # of an answer, which ends with a line or a sentence
MIN_CHARACTERS = 30
MAX_HEADING = 80  # characters; what is longer is text, or a comment in code
PLAIN_PER_MARK = 4  # headings without a mark: where there are more, marks are no headings
_MARKS = (
    re.compile(r"#{1,6}\s+(\S.*?)\s*#*"),
    re.compile(r"={2,6}\s*(\S.*?)\s*={2,6}"),
)  # Markdown's, MediaWiki's
_NUMBER = re.compile(r"^(\d+\.)+\d*\s+")  # before a heading
_UNDERLINE = re.compile(r"([=\-~^])\1{2,}")
_FENCE = re.compile("`{3,}[^`]*")
_ENDS = ".!:;,…。！：；，、·،؛।۔።"  # of lines that are no headings
_SENTENCE = re.compile(rf".{{,{MAX_CHARACTERS - 1}}}([.!?…;؟۔](?=\s)|[。！？।።])", re.DOTALL)
QUESTIONS = {  # what is asked of a heading beside its words alone
    "cs": ("Co víš o tématu „{}“?", "Vysvětli: {}"),
    "de": ("Was weißt du über „{}“?", "Erkläre: {}"),
    "el": ("Τι γνωρίζεις για το θέμα «{}»;", "Εξήγησε: {}"),
    "en": ("What do you know about “{}”?", "Explain: {}"),
    "es": ("¿Qué sabes sobre «{}»?", "Explica: {}"),
    "fr": ("Que sais-tu de « {} » ?", "Explique : {}"),
    "ru": ("Что ты знаешь о теме «{}»?", "Объясни: {}"),
    "tr": ("“{}” hakkında ne biliyorsun?", "Açıkla: {}"),
    "zh": ("你对“{}”了解多少？", "请解释：{}"),
}


def chats_from_text(
    patterns: Iterable[str | Path], out: Path, language: str, column: str = COLUMN
) -> int:
    """Write a dialogue for each section of a text as a row of JSON lines with `messages`; return
    how many.

    language: in which is asked beside the heading's own words. UserError where `out` exists, for
    text in which no heading was found, and as of `read_documents`.
    """
    refuse_existing(out)
    by_file = (sections(read_documents([str(path)], column)) for path in find_text(patterns))
    count = write_chats(
        out, (dialogue_about(*each, language) for each in itertools.chain.from_iterable(by_file))
    )
    if not count:
        raise UserError(
            f"{out}: no heading with text below it was found; mark headings as Markdown does, with "
            "#"
        )
    return count


def write_chats(out: Path, dialogues: Iterable[Dialogue | None]) -> int:
    """Write dialogues, each once, as rows with `messages`, and return how many; no file for
    none.
    """
    rows = dict.fromkeys(
        json.dumps({"messages": turns}, ensure_ascii=False) for turns in dialogues if turns
    )
    if rows:
        with atomic_write(out) as file:
            file.writelines(f"{row}\n".encode() for row in rows)
    return len(rows)


def dialogue_about(heading: str, lines: Iterable[str], language: str) -> Dialogue | None:
    """A question about a heading, answered by the first lines below it; None where they are too
    short.
    """
    answer = ""
    for line in lines:
        if answer and len(answer) + len(line) >= MAX_CHARACTERS:
            break
        answer += f"\n{line}" if answer else line
    if len(answer) > MAX_CHARACTERS:
        cut = _SENTENCE.match(answer)
        answer = cut[0] if cut else ""
    if len(answer) < MIN_CHARACTERS:
        return None
    patterns = "{}", *(QUESTIONS.get(language, ("{}?",)) if heading[-1] not in "?？؟" else ())
    asked = patterns[sum(heading.encode()) % len(patterns)].format(heading)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


class Kind(Enum):
    """What a line of a text is: a heading that is marked by Markdown, MediaWiki or a line of = or -
    below it; one by its looks; the line below a heading; text.
    """

    MARKED, PLAIN, UNDERLINE, TEXT = range(4)


class Line(NamedTuple):
    """A line without white space around it. document: its number."""

    text: str
    document: int
    kind: Kind


def sections(
    documents: Iterable[list[str]], is_marked: bool | None = None
) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines below it) of a text's sections.

    is_marked: whether its headings are marked; by default all of the text decides, because a single
    mark may be a comment in code. A section ends with its document where they are not.
    """
    lines = _lines(documents)
    counts = Counter(line.kind for line in lines)
    if is_marked is None:
        most = 0 if counts[Kind.MARKED] == 1 else PLAIN_PER_MARK * counts[Kind.MARKED]
        is_marked = counts[Kind.PLAIN] <= most
    heading, below, current = "", list[str](), -1
    for line in lines:
        if line.document != current and below and not is_marked:
            yield heading, below
            heading, below = "", []
        current = line.document
        if line.kind == (Kind.MARKED if is_marked else Kind.PLAIN):
            if below:
                yield heading, below
            heading, below = _title(line.text), []
        elif heading and line.kind != Kind.UNDERLINE:
            below.append(line.text)
    if below:
        yield heading, below


def _lines(documents: Iterable[list[str]]) -> list[Line]:
    """The lines of a text. In a block of code, between lines that begin with ``` or behind four
    spaces, none is a heading.
    """
    whole = [
        (number, len(lines), line)
        for number, document in enumerate(documents)
        for lines in [[*filter(str.strip, document)]]
        for line in lines
    ]
    found, in_code = list[Line](), False
    for (number, size, line), (next_number, _, following) in itertools.pairwise(
        [*whole, (-1, 0, "")]
    ):
        text, following = line.strip(), following.strip()
        if is_fence := _FENCE.fullmatch(text) is not None:
            # A language opens a block, whatever was left open.
            in_code = not in_code or text.strip("`") != ""
        is_together = number == next_number
        if in_code or is_fence:
            kind = Kind.TEXT
        elif _UNDERLINE.fullmatch(text):
            kind = Kind.UNDERLINE
        elif len(text) > MAX_HEADING:
            kind = Kind.TEXT
        elif is_together and _UNDERLINE.fullmatch(following):
            kind = Kind.MARKED
        elif any(mark.fullmatch(text) for mark in _MARKS):
            kind = Kind.TEXT if line.startswith(("    ", "\t")) else Kind.MARKED
        elif (
            (is_together or size == 1)
            and following
            and _looks_like_heading(text)
            and not _looks_like_heading(following)
        ):
            kind = Kind.PLAIN
        else:
            kind = Kind.TEXT
        found.append(Line(text, number, kind))
    return found


def _looks_like_heading(text: str) -> bool:
    """Whether it is a short line, with a number or without, that ends as no sentence does."""
    return (
        len(text) <= MAX_HEADING
        and text[-1] not in _ENDS
        and text[0].isalnum()
        and not text[0].islower()
    )


def _title(heading: str) -> str:
    """A heading without its mark or number."""
    for mark in _MARKS:
        if match := mark.fullmatch(heading):
            return match[1]
    return _NUMBER.sub("", heading, count=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2, with a line that says why, for a user's mistake."""
    parser = argparse.ArgumentParser(
        "python -m ds_minimodel_examples.chats",
        description="Make dialogues of a text: headings ask, their sections answer.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="+",
        help="files, globs or data sets of the Hub, with headings",
    )
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="JSON lines of messages, for extend's --chats"
    )
    parser.add_argument("--language", required=True, metavar="CODE", help="of the questions")
    parser.add_argument(
        "--column", metavar="NAME", default=COLUMN, help="of JSON lines and tables; default: text"
    )
    options = parser.parse_args(arguments)
    if options.language not in QUESTIONS:
        known = ", ".join(QUESTIONS)
        print(
            f"--language {options.language}: a heading stands for a question; there are some in "
            f"{known}",
            file=sys.stderr,
        )
    try:
        count = chats_from_text(options.text, Path(options.out), options.language, options.column)
    except UserError as error:
        parser.error(str(error))
    print(f"{options.out}: {count:,} dialogues")


if __name__ == "__main__":
    main()
