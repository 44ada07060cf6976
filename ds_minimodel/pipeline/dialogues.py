"""Dialogues as a token store: written by a model's own chat template, of which the assistant's
turns alone are learned.

Where a template marks what an assistant says ({% generation %}), that is taken. Else each turn is
found by a word in its place that no template changes, and is learned with the special token that
ends it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.artifacts.base import keep_vocabulary
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.files import atomic_folder, write_manifest
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.data.samples import HELD_OUT
from ds_minimodel.data.store import write_shard
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.vocabularies import SAID, by_template
from ds_minimodel.text.chats import Dialogue, read_dialogues
from ds_minimodel.text.corpus import MANY_PAGES, is_held_out
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAME = 60  # characters at its beginning by which a line is known
MIN_CHARACTERS = 30  # of a line that is known again
CHECKED = 1000  # dialogues that are written once before a training is chosen
_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\b")


def prepare_chats(
    patterns: Sequence[str | Path],
    tokenizer_folder: Path,
    out: Path,
    length: int,
    held_out: float,
    held_text: Sequence[Path] = (),
) -> None:
    """Write the dialogues of some files (text/chats.py) into the masked token store `out`.

    tokenizer_folder: with a chat template. A document is a sample of at most `length` tokens, as a
    reader makes it: a dialogue, or where that is longer as many of its turns as fit, after what the
    system says; the others go on in the next. A single question whose answer does not fit is cut
    off. The share `held_out` of the first questions goes, with all dialogues that begin so, into a
    store of its own, in the folder HELD_OUT; so do answers with a line of `held_text`, files of
    held-out text. UserError as of `_sampled`, and where nothing is left.
    """
    ours, counts, lost = open_tokenizer(tokenizer_folder), [0, 0], 0
    vocabulary, ids = ours.vocabulary, 2 * ours.vocabulary.size
    lines = Counter(
        line for document in read_documents(held_text) for line in {*map(str.strip, document)}
    )
    known = {
        line[:SAME]
        for line, pages in lines.items()
        if len(line) >= MIN_CHARACTERS and pages < MANY_PAGES
    }
    with atomic_folder(out) as folder:
        stores = [folder, folder / HELD_OUT][: 2 if held_out else 1]
        with contextlib.ExitStack() as stack:
            for store in stores:
                store.mkdir(exist_ok=True)
            adds = [
                stack.enter_context(write_shard(store, 0, ids, ours.sha256)) for store in stores
            ]
            for dialogue, samples in _sampled(
                patterns, tokenizer_folder, str(tokenizer_folder), vocabulary, length, _say
            ):
                answers = [turn["content"] for turn in dialogue if turn["role"] == "assistant"]
                is_known = any(
                    line.strip()[:SAME] in known
                    for answer in answers
                    for line in answer.splitlines()
                )
                side = is_known or is_held_out(
                    [_question(dialogue)[-1]["content"]], held_out
                )  # by all of its answers
                for sample in samples:
                    adds[side](sample, [len(sample)])
                    counts[side] += 1
                lost += not samples
        if not counts[0]:
            files = ", ".join(map(str, patterns))
            raise UserError(
                f"{files}: no answer begins in {length} tokens to train on; {counts[1]} are held "
                "out"
            )
        if lost:
            _say(f"{lost:,} dialogues have no answer within {length} tokens and are left out")
        facts = {
            "tokenizer_sha256": ours.sha256,
            "shards": 1,
            "whole_documents": True,
            "masked": True,
        }
        for store, documents in [*zip(stores, counts, strict=False)][::-1]:
            write_manifest(
                store, kind="token_store", **vocabulary.facts(), **facts, documents=documents
            )


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def check_chats(patterns: Sequence[str | Path], model: str, length: int) -> None:
    """UserError as of `_sampled` for what the vocabulary and chat template of a base make of the
    first dialogues.
    """
    with tempfile.TemporaryDirectory() as folder:
        keep_vocabulary(model, tokenizer := Path(folder) / "tokenizer")
        vocabulary = open_tokenizer(tokenizer).vocabulary
        deque(
            itertools.islice(_sampled(patterns, tokenizer, model, vocabulary, length), CHECKED), 0
        )


def _sampled(
    patterns: Sequence[str | Path],
    tokenizer_folder: Path,
    name: str,
    vocabulary: Vocabulary,
    length: int,
    say: Callable[[str], None] | None = None,
) -> Iterator[tuple[Dialogue, list[NDArray[np.int64]]]]:
    """(dialogue, its samples as of `_samples`) of each row. name: of what the tokenizer is, as
    messages say it.

    UserError as of `read_dialogues`, where there is no template or one does not take a dialogue,
    and where a turn would become a special token.
    """
    theirs = tokenizer_of(tokenizer_folder)
    if not theirs.chat_template:
        raise UserError(f"{name}: has no chat template, by which dialogues are to be written")
    special = _special(theirs)
    for where, dialogue in read_dialogues(patterns, say):
        if held := special.search("\n".join(turn["content"] for turn in dialogue)):
            raise UserError(
                f"{where}: a turn says {held[0]!r}, a special token; spell it otherwise"
            )
        with one_line(where, "the chat template does not take it"):
            samples = _samples(theirs, special, dialogue, vocabulary, length - 1)
        yield dialogue, samples


def held_out_questions(patterns: Sequence[str | Path], share: float, most: int) -> list[Dialogue]:
    """What a user says first, after what the system says, in the held-out dialogues of some files;
    the first `most` that differ. share: of all that is held out.
    """
    found = dict[str, Dialogue]()
    for _, dialogue in read_dialogues(patterns):
        question = _question(dialogue)
        if is_held_out([text := question[-1]["content"]], share):
            found.setdefault(text, question)
        if len(found) == most:
            break
    return [*found.values()]


def _question(dialogue: Dialogue) -> Dialogue:
    """The turns up to a user's first."""
    return dialogue[: 1 + [turn["role"] for turn in dialogue].index("user")]


def _samples(
    tokenizer: PreTrainedTokenizerBase,
    special: re.Pattern[str],
    dialogue: Dialogue,
    vocabulary: Vocabulary,
    most: int,
) -> list[NDArray[np.int64]]:
    """Ids of a dialogue in samples of at most `most`; those that are not learned have the
    vocabulary's size added.
    """
    system = [turn for turn in dialogue if turn["role"] == "system"]
    turns, samples = dialogue[len(system) :], []
    while turns:
        for end in range(2, len(turns) + 1, 2):
            written, says = _written(tokenizer, special, [*system, *turns[:end]])
            first = (
                1 if written[0] == vocabulary.bos else 0
            )  # which a reader puts before a text itself
            fits = len(written) - first <= most
            if fits or end == 2:
                count, ids, learned = end, written[first : first + most], says[first : first + most]
            if not fits:
                break
        samples += [ids + vocabulary.size * ~learned] if learned.any() else []
        turns = turns[count:]
    return samples


def _special(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """A pattern of the special tokens."""
    special = (
        re.escape(token.content)
        for token in tokenizer.added_tokens_decoder.values()
        if token.special
    )
    return re.compile("|".join(special) or "(?!)")


def _written(
    tokenizer: PreTrainedTokenizerBase, special: re.Pattern[str], dialogue: Dialogue
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(ids of a dialogue by the chat template; which of them the assistant says)"""
    if _MARKS_ANSWERS.search(tokenizer.get_chat_template()):
        encoded = by_template(
            tokenizer, dialogue, return_dict=True, return_assistant_tokens_mask=True
        )
        return np.array(encoded["input_ids"], np.int64), np.array(encoded["assistant_masks"], bool)
    named = {f"{SAID}{number:04}": turn for number, turn in enumerate(dialogue)}
    turns = [{"role": turn["role"], "content": name} for name, turn in named.items()]
    parts = re.split(f"({'|'.join(named)})", str(by_template(tokenizer, turns, tokenize=False)))
    text, spans = parts[0], list[tuple[int, int]]()
    for name, after in zip(parts[1::2], parts[2::2], strict=True):
        start, said = len(text), named[name]["content"]
        text += said + after
        if named[name]["role"] == "assistant" and "weight" not in named[name]:
            end = special.search(after)
            spans.append((start, start + len(said) + (end.end() if end else 0)))
    if text != by_template(tokenizer, dialogue, tokenize=False):
        raise ValueError("it changes what is said")
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts, ends = np.array(encoding["offset_mapping"], np.int64).T
    learned = np.zeros(len(starts), bool)
    for start, stop in spans:
        learned |= (starts < stop) & (ends > start)
    return np.array(encoding["input_ids"], np.int64), learned
