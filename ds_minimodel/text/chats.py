"""Dialogues: rows of what a user and an assistant say."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.text.reader import read_rows
from ds_minimodel.text.rows import shown, text_field

# A turn is {"role": …, "content": …}, with "weight": 0 where it is context that is not learned.
Dialogue = list[dict[str, Any]]

# Columns.
_LISTS = ("messages", "conversations")
_PAIR = ("prompt", "completion")
_EXAMPLE = (
    '{"messages": [{"role": "user", "content": "What is …?"}, '
    '{"role": "assistant", "content": "It is …"}]}'
)
# Keys of a turn.
_ROLE_KEYS = ("role", "from")
_CONTENT_KEYS = ("content", "value")
_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
# Who may speak after whom.
_AFTER = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
}
# What other keys of a turn mean, by the words in them. _LEARNED: whether it is learned, by one of
# _ANSWERS. _UNCLEAR: the same in a way that differs from tool to tool. _CONTENT: something beside
# the text, which would be lost.
_LEARNED = re.compile(r"(train|trained|trainable|learn|learned|loss|weight)s?")
_UNCLEAR = re.compile(r"mask|masked|ignore|ignored")
_CONTENT = re.compile(
    r"(tool|call|function|reasoning|thinking|thought|image|audio|video|media|file|attachment)s?"
)
_ANSWERS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def read_dialogues(
    patterns: Iterable[str | Path], say: Callable[[str], None] | None = None
) -> Iterator[tuple[str, Dialogue]]:
    """Yield (where it is, as messages say it; dialogue) of each row of files.

    A row has `messages`, or ShareGPT's `conversations`: turns with role and content, or from and
    value; or `prompt` and `completion`, texts or such lists. A system may speak first (or `system`,
    a text), then user and assistant in turn; what follows the last answer that is learned is left
    out.

    Args:
        patterns: names of the files.
        say: is told once of each key of turns that is not read.

    Raises:
        UserError: A row is another one, or as of read_rows.
    """
    unread = set[str]()
    for where, row in read_rows(patterns, (*_LISTS, *_PAIR, "system"), _EXAMPLE):
        dialogue, others = _dialogue_of(row, where)
        for key in sorted(others - unread):
            if say is not None:
                say(f"{where}: {key!r:.80} of turns is not read")
        unread |= others
        yield where, dialogue


def _dialogue_of(row: Mapping[str, Any], where: str) -> tuple[Dialogue, set[str]]:
    """Return the dialogue of a row, and the keys of its turns that are not read."""
    dialogue = Dialogue()
    others = set[str]()
    before = ""
    for turn_number, turn in enumerate(_turns_of(row, where), 1):
        turn_where = f"{where}: turn {turn_number}"
        is_learned = True
        if isinstance(turn, dict):
            role_key = _key_with_value(turn, _ROLE_KEYS)
            content_key = _key_with_value(turn, _CONTENT_KEYS)
            rest = {str(key): turn[key] for key in turn.keys() - {role_key, content_key}}
            is_learned, unread = _read_keys(rest, turn_where)
            others |= unread
            turn = (turn.get(role_key), turn.get(content_key))
        if not isinstance(turn, tuple):
            raise UserError(f"{turn_where}: {shown(turn)}, and no role with a content")
        role = _ROLES.get(str(turn[0]), "")
        said = text_field({"content": turn[1]}, "content", turn_where).strip()
        if role == "system" and not said:
            continue
        if role not in _AFTER[before]:
            expected = " or ".join(_AFTER[before])
            raise UserError(f"{turn_where}: of {shown(turn[0])}, where {expected} is to speak")
        if not said:
            raise UserError(f"{turn_where}: {role} says nothing")
        dialogue.append({"role": role, "content": said})
        if role == "assistant" and not is_learned:
            dialogue[-1]["weight"] = 0
        before = role
    # Nothing is learned from what follows the last answer that is.
    while dialogue and (dialogue[-1]["role"] != "assistant" or "weight" in dialogue[-1]):
        del dialogue[-1]
    if not dialogue:
        raise UserError(f"{where}: no turn of an assistant that is to be learned")
    return dialogue, others


def _turns_of(row: Mapping[str, Any], where: str) -> list[Any]:
    """Return the turns of a row as they stand there, or (role, content)."""
    turns = next((row[name] for name in _LISTS if row.get(name) is not None), None)
    if turns is None:
        if any(row.get(name) is None for name in _PAIR):
            raise UserError(
                f"{where}: no 'messages', and no 'prompt' with a 'completion'; there are: "
                f"{', '.join(row)}; a row is {_EXAMPLE}"
            )
        turns = []
        for role, name in zip(("user", "assistant"), _PAIR, strict=True):
            said = row[name]
            turns += said if isinstance(said, list) else [(role, said)]
    if not isinstance(turns, list):
        raise UserError(f"{where}: the turns are {shown(turns)}, not a list")
    return [("system", row["system"]), *turns] if row.get("system") else turns


def _key_with_value(turn: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """Return the first of the keys that has a value; the first one where none has."""
    return next((key for key in keys if turn.get(key) is not None), keys[0])


def _read_keys(turn: Mapping[str, Any], where: str) -> tuple[bool, set[str]]:
    """Read the keys of a turn beside role and content.

    Returns:
        Whether the turn is to be learned, and the keys that mean nothing here.

    Raises:
        UserError: something would be lost.
    """
    is_learned = True
    unread = set[str]()
    for key, value in turn.items():
        words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", key).lower())
        if value in (None, "", [], {}):
            continue
        if any(map(_LEARNED.fullmatch, words)):
            answer = _ANSWERS.get(str(value).lower())
            if answer is None:
                raise UserError(f"{where}: {key!r:.80} is {shown(value)}, neither 0 nor 1")
            is_learned = is_learned and answer
        elif any(map(_UNCLEAR.fullmatch, words)):
            raise UserError(
                f"{where}: {key!r:.80} may say that it is not to be learned; write that as "
                "'weight': 0, or leave the key out"
            )
        elif any(map(_CONTENT.fullmatch, words)) and isinstance(value, str | list | dict):
            raise UserError(f"{where}: {key!r:.80} would be lost; leave the dialogue out")
        else:
            unread.add(key)
    return is_learned, unread
