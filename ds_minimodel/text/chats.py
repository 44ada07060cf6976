"""Dialogues: rows of what a user and an assistant say."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.text.reader import read_rows
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
