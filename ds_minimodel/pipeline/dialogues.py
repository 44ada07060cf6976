"""Dialogues as a token store: written by a model's own chat template, of which the assistant's
turns alone are learned.

Where a template marks what an assistant says ({% generation %}), that is taken. Else each turn is
found by a word in its place that no template changes. It is learned with what ends it: the token
that the template writes after an answer, whether a user goes on or not.
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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.artifacts.base import keep_vocabulary
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.files import atomic_folder, write_manifest
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.data.samples import HELD_OUT
from ds_minimodel.data.store import write_shard
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.vocabularies import SAID, apply_template
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
    """Write the dialogues of some files (text/chats.py) into a masked token store.

    A document is a sample of at most `length` tokens, as a reader makes it: a dialogue, or where
    that is longer as many of its turns as fit, after what the system says; the others go on in the
    next. A single question whose answer does not fit is cut off. Held-out dialogues go into a store
    of their own, in the folder HELD_OUT.

    Args:
        patterns: of the files.
        tokenizer_folder: of a tokenizer with a chat template.
        out: folder of the store.
        length: largest count of tokens of a document.
        held_out: share of the first questions that are held out, with all dialogues that begin so.
        held_text: files of held-out text; answers with a line of theirs are held out too.

    Raises:
        UserError: as of `_sampled`, and where nothing is left.
    """
    ours = open_tokenizer(tokenizer_folder)
    counts = [0, 0]
    lost = 0
    endings = set[Ending]()
    vocabulary = ours.vocabulary
    ids = 2 * ours.vocabulary.size
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
            for dialogue, ending, samples in _sampled(
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
                endings.add(ending)
        if not counts[0]:
            files = ", ".join(map(str, patterns))
            raise UserError(
                f"{files}: no answer begins in {length} tokens to train on; {counts[1]} are held "
                "out"
            )
        if lost:
            _say(f"{lost:,} dialogues have no answer within {length} tokens and are left out")
        for token in {ending.token for ending in endings if ending.is_added}:
            ends = f"{token} is learned after the last" if token else "none is learned"
            _say(f"the chat template ends no answer, and {ends}")
        facts = {
            "ends": sorted({ending.id for ending in endings if ending.id is not None}),
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
) -> Iterator[tuple[Dialogue, Ending, list[NDArray[np.int64]]]]:
    """(dialogue, how its answers end, its samples as of `_samples`) of each row. name: of what the
    tokenizer is, as messages say it.

    UserError as of `read_dialogues`, where there is no template or one does not take a dialogue,
    and where a turn would become a special token or end an answer.
    """
    theirs = tokenizer_of(tokenizer_folder)
    if not theirs.chat_template:
        raise UserError(f"{name}: has no chat template, by which dialogues are to be written")
    endings = dict[bool, tuple[Ending, re.Pattern[str]]]()
    for where, dialogue in read_dialogues(patterns, say):
        has_system = dialogue[0]["role"] == "system"
        with one_line(where, "the chat template does not take it"):
            if has_system not in endings:
                ending = ending_of(theirs, has_system)
                endings[has_system] = ending, _special(theirs, ending.token)
        ending, special = endings[has_system]
        if held := special.search("\n".join(turn["content"] for turn in dialogue)):
            raise UserError(
                f"{where}: a turn says {held[0]!r}, a special token; spell it otherwise"
            )
        with one_line(where, "the chat template does not take it"):
            samples = _samples(theirs, ending, dialogue, vocabulary, length - 1)
        yield dialogue, ending, samples


def held_out_questions(patterns: Sequence[str | Path], share: float, most: int) -> list[Dialogue]:
    """Return what a user says first in the held-out dialogues of some files.

    A question stands after what the system says. The first `most` that differ are returned.

    Args:
        patterns: of the files.
        share: of the first questions, that are held out.
        most: largest count of questions.
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
    ending: Ending,
    dialogue: Dialogue,
    vocabulary: Vocabulary,
    most: int,
) -> list[NDArray[np.int64]]:
    """Ids of a dialogue in samples of at most `most`; those that are not learned have the
    vocabulary's size added.
    """
    system = [turn for turn in dialogue if turn["role"] == "system"]
    turns = dialogue[len(system) :]
    samples = []
    while turns:
        for end in range(2, len(turns) + 1, 2):
            written, says = _written(tokenizer, ending, [*system, *turns[:end]])
            first = (
                1 if written[0] == vocabulary.bos else 0
            )  # which a reader puts before a text itself
            fits = len(written) - first <= most
            if fits or end == 2:
                count = end
                ids = written[first : first + most]
                learned = says[first : first + most]
            if not fits:
                break
        samples += [ids + vocabulary.size * ~learned] if learned.any() else []
        turns = turns[count:]
    return samples


def _special(tokenizer: PreTrainedTokenizerBase, end: str) -> re.Pattern[str]:
    """A pattern of the special tokens, and of the one that ends an answer."""
    added = tokenizer.added_tokens_decoder.values()
    tokens = {end, *(token.content for token in added if token.special)} - {""}
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


class Ending(NamedTuple):
    """How an answer ends.

    between: what is written from an answer to the end of the token that ends it, where a user goes
    on; last: the same at the end of a dialogue. id, token: of that token; None and "" where there
    is none. is_added: whether the template has none, so that it is put after the last answer.
    """

    between: str
    last: str
    id: int | None
    token: str
    is_added: bool = False


def ending_of(tokenizer: PreTrainedTokenizerBase, has_system: bool) -> Ending:
    """How the chat template ends an answer: by the first added token after it, which is learned
    wherever it stands both before a user's turn and at the end of a dialogue. Of a template without
    one the tokenizer's end of a text serves.
    """
    turns = [{"role": role, "content": ""} for role in ("user", "assistant", "user", "assistant")]
    if has_system:
        turns.insert(0, {"role": "system", "content": ""})
    after = dict(_rendered(tokenizer, turns)[1])
    if len(after) < len(turns):
        raise ValueError("it leaves out what is said")
    ids, spans = _encoded(tokenizer, after[len(turns) - 1])
    others, _ = _encoded(tokenizer, after[len(turns) - 3])
    pairs = itertools.zip_longest(ids, others)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    last = after[len(turns) - 1]
    shared = last[: spans[common - 1][1]] if common else ""
    for id, span in zip(ids, spans, strict=True):
        # Some vocabularies have added tokens of white space.
        if id in tokenizer.added_tokens_decoder and last[slice(*span)].strip():
            token = str(tokenizer.convert_ids_to_tokens(id))
            return Ending(shared[: span[1]], last[: span[1]], id, token)
    token = str(tokenizer.eos_token or "")
    return Ending(shared, last, tokenizer.eos_token_id, token, is_added=True)


def _encoded(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of a text as it stands, and the characters of each."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoding["input_ids"], encoding["offset_mapping"]


def _rendered(
    tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue
) -> tuple[str, list[tuple[int, str]]]:
    """(what the chat template writes before any turn, [(index of a turn, what is written after
    it)]). Words that no template changes stand for what is said.
    """
    words = [f"{SAID}{number:04}" for number in range(len(dialogue))]
    turns = [
        {"role": turn["role"], "content": word} for turn, word in zip(dialogue, words, strict=True)
    ]
    text = str(apply_template(tokenizer, turns, tokenize=False))
    before, *parts = re.split(f"({'|'.join(words)})", text)
    indices = map(words.index, parts[::2])
    return before, [*zip(indices, parts[1::2], strict=True)]


def _written(
    tokenizer: PreTrainedTokenizerBase, ending: Ending, dialogue: Dialogue
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(ids of a dialogue by the chat template; which of them the assistant says)"""
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in dialogue]
    text = str(apply_template(tokenizer, turns, tokenize=False))
    ids, offsets = _encoded(tokenizer, text)
    answers = [turn for turn in dialogue if turn["role"] == "assistant"]
    if _MARKS_ANSWERS.search(tokenizer.get_chat_template()):
        spans = _marked(tokenizer, turns, offsets)
        if len(spans) != len(answers):
            raise ValueError(f"it marks {len(spans)} answers of {len(answers)}")
    else:
        written, parts = _rendered(tokenizer, dialogue)
        spans = []
        for index, after in parts:
            start = len(written)
            written += turns[index]["content"]
            if turns[index]["role"] == "assistant":
                spans.append((start, len(written)))
            written += after
        if written != text:
            raise ValueError("it changes what is said")
    learned = np.zeros(len(ids), bool)
    starts, ends = np.array(offsets, np.int64).T
    for number, ((start, stop), turn) in enumerate(zip(spans, answers, strict=True), 1):
        end = ending.last if number == len(answers) else ending.between
        stop += len(end) if text.startswith(end, stop) else 0
        if "weight" not in turn:
            learned |= (starts < stop) & (ends > start)
    if ending.is_added and ending.id is not None:
        return np.array([*ids, ending.id], np.int64), np.array([*learned, "weight" not in turn])
    return np.array(ids, np.int64), learned


def _marked(
    tokenizer: PreTrainedTokenizerBase, turns: Dialogue, offsets: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The characters of each answer that the chat template marks."""
    settings = {"return_dict": True, "return_assistant_tokens_mask": True}
    mask = apply_template(tokenizer, turns, **settings)["assistant_masks"]
    runs = itertools.groupby(zip(mask, offsets, strict=True), key=lambda pair: pair[0])
    spans = [[span for _, span in run] for is_marked, run in runs if is_marked]
    return [(run[0][0], run[-1][1]) for run in spans]
