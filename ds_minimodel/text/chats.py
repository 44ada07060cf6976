"""Dialogues: rows of what a user and an assistant say, and what is asked and answered by the
sections of a text.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write, refuse_existing
from ds_minimodel.text.reader import COLUMN, find_text, read_documents, read_rows
from ds_minimodel.text.rows import shown, text_field

Dialogue = list[dict[str, str]]  # turns: {"role": …, "content": …}

_LISTS, _PAIR = ("messages", "conversations"), ("prompt", "completion")  # columns
_TURN = ("role", "from"), ("content", "value")  # keys
_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
_AFTER = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
}


def read_dialogues(patterns: Iterable[str | Path]) -> Iterator[tuple[str, Dialogue]]:
    """(where it is, as messages say it; dialogue) of each row of the files that `patterns` name.

    A row has `messages`, or ShareGPT's `conversations`: turns with role and content, or from and
    value; or `prompt` and `completion`, texts or such lists. A system may speak first (or `system`,
    a text), then user and assistant in turn; what follows the last answer is left out. UserError,
    with its place, for another row, and as of `read_rows`.
    """
    for where, row in read_rows(patterns, (*_LISTS, *_PAIR, "system")):
        yield where, _dialogue_of(row, where)


def _dialogue_of(row: Mapping[str, Any], where: str) -> Dialogue:
    turns = next((row[name] for name in _LISTS if row.get(name) is not None), None)
    if turns is None:
        if any(row.get(name) is None for name in _PAIR):
            raise UserError(
                f"{where}: no 'messages', and no 'prompt' with a 'completion'; there are: "
                f"{', '.join(row)}"
            )
        pair = zip(("user", "assistant"), (row[name] for name in _PAIR), strict=True)
        turns = [
            turn
            for role, said in pair
            for turn in (said if isinstance(said, list) else [(role, said)])
        ]
    if not isinstance(turns, list):
        raise UserError(f"{where}: the turns are {shown(turns)}, not a list")
    if row.get("system"):
        turns = [("system", row["system"]), *turns]
    dialogue, before = Dialogue(), ""
    for number, turn in enumerate(turns, 1):
        place = f"{where}: turn {number}"
        if isinstance(turn, dict):
            if turn.get("tool_calls") or turn.get("weight", 1) == 0:
                raise UserError(
                    f"{place}: has tool calls, or is not to be learned (weight 0); leave the "
                    "dialogue out"
                )
            turn = tuple(
                next((turn[key] for key in keys if turn.get(key) is not None), None)
                for keys in _TURN
            )
        if not isinstance(turn, tuple):
            raise UserError(f"{place}: {shown(turn)}, and no role with a content")
        role, said = (
            _ROLES.get(str(turn[0]), ""),
            text_field({"content": turn[1]}, "content", place).strip(),
        )
        if role == "system" and not said:
            continue
        if role not in _AFTER[before]:
            raise UserError(
                f"{place}: of {shown(turn[0])}, where {' or '.join(_AFTER[before])} is to speak"
            )
        if not said:
            raise UserError(f"{place}: {role} says nothing")
        dialogue.append({"role": role, "content": said})
        before = role
    while dialogue and dialogue[-1]["role"] != "assistant":
        del dialogue[-1]
    if not dialogue:
        raise UserError(f"{where}: no turn of an assistant")
    return dialogue


# Sections of a text: a heading asks, what stands below it answers.

MOST_CHARACTERS, FEWEST_CHARACTERS = 400, 30  # of an answer, which ends with a line or a sentence
_LONGEST_HEADING = 80
_MARKS = (
    re.compile(r"#{1,6}\s+(\S.*?)\s*#*"),
    re.compile(r"={2,6}\s*(\S.*?)\s*={2,6}"),
)  # Markdown's, MediaWiki's
_NUMBER = re.compile(r"^(\d+\.)+\d*\s+")  # before a heading
_UNDERLINE, _FENCE = re.compile(r"([=\-~^])\1{2,}"), re.compile("`{3,}[^`]*")
_ENDS = ".!:;,…。！：；，、·،؛।۔።"  # of lines that are no headings
_SENTENCE = re.compile(rf".{{,{MOST_CHARACTERS - 1}}}([.!?…;؟۔](?=\s)|[。！？।።])", re.DOTALL)
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
    number = write_chats(
        out, (dialogue_about(*each, language) for each in itertools.chain.from_iterable(by_file))
    )
    if not number:
        raise UserError(
            f"{out}: no heading with text below it was found; mark headings as Markdown does, with "
            "#"
        )
    return number


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
        if answer and len(answer) + len(line) >= MOST_CHARACTERS:
            break
        answer += f"\n{line}" if answer else line
    if len(answer) > MOST_CHARACTERS:
        cut = _SENTENCE.match(answer)
        answer = cut[0] if cut else ""
    if len(answer) < FEWEST_CHARACTERS:
        return None
    patterns = "{}", *(QUESTIONS.get(language, ("{}?",)) if heading[-1] not in "?？؟" else ())
    asked = patterns[sum(heading.encode()) % len(patterns)].format(heading)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


def sections(documents: Iterable[list[str]]) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines below it) of a text's sections.

    A heading is marked as by Markdown, MediaWiki or a line of = or - below it; or it is a short
    line, with a number or without, that ends as no sentence does, before a line that is none. Such
    a section ends with its document, a marked one does not. In a block of code, between lines that
    begin with ```, there are none.
    """
    heading, is_marked, in_code, below, current = "", False, False, list[str](), -1
    for (line, number, size), (following, next_number, _) in itertools.pairwise(_lines(documents)):
        if number != current and below and not is_marked:
            yield heading, below
            heading, below = "", []
        current = number
        if is_fence := _FENCE.fullmatch(line) is not None:
            in_code = (
                not in_code or line.strip("`") != ""
            )  # a language opens a block, whatever was left open
        if in_code or is_fence:
            below += [line] * bool(heading)
            continue
        if _UNDERLINE.fullmatch(line):
            continue
        mark = next(filter(None, (form.fullmatch(line) for form in _MARKS)), None)
        underlined = next_number == number and _UNDERLINE.fullmatch(following) is not None
        is_plain = not is_marked and (next_number == number or size == 1) and following != ""
        if (
            mark
            or underlined
            or (is_plain and _looks_like_heading(line) and not _looks_like_heading(following))
        ):
            if below:
                yield heading, below
            heading, below = (mark[1] if mark else _NUMBER.sub("", line, 1)), []
            is_marked = underlined or mark is not None
        elif heading:
            below.append(line)
    if below:
        yield heading, below


def _lines(documents: Iterable[list[str]]) -> Iterator[tuple[str, int, int]]:
    """(line without white space around it, number of its document, lines of that), and an empty one
    at the end.
    """
    for number, document in enumerate(documents):
        lines = [*filter(None, map(str.strip, document))]
        yield from ((line, number, len(lines)) for line in lines)
    yield "", -1, 0


def _looks_like_heading(line: str) -> bool:
    return (
        len(line) <= _LONGEST_HEADING
        and line[-1] not in _ENDS
        and line[0].isalnum()
        and not line[0].islower()
    )
