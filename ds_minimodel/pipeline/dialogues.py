"""Dialogues as a token store, written by the model's chat template.

Only the assistant's turns are learned. Where a template marks them ({% generation %}), its marks
are taken. Otherwise a dialogue is also written with a word in the place of each turn that no
template changes, which shows where the turns stand. An answer is learned with what ends it: the
token that the template writes after an answer, whether a user goes on or not.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import tempfile
from collections import Counter
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
from ds_minimodel.tokenizers.tokenizer import Tokenizer, open_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LINE_START = 60  # characters by which a line of held-out text is known again
MIN_LINE = 30  # characters of such a line
NUM_CHECKED = 1000  # dialogues that are written once before a training is chosen
_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\b")


class _Store:
    """Token store of dialogues that is being written.

    Attributes:
        folder: Of the store.
        documents: Count of those that were added.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, stack: contextlib.ExitStack):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.documents = 0
        # Ids from the vocabulary's size on are those that are not learned.
        num_ids = 2 * tokenizer.vocabulary.size
        self._add = stack.enter_context(write_shard(folder, 0, num_ids, tokenizer.sha256))

    def add(self, document: NDArray[np.int64]) -> None:
        """Append a document."""
        self._add(document, [len(document)])
        self.documents += 1


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
        patterns: Of the files.
        tokenizer_folder: Of a tokenizer with a chat template.
        out: Folder of the store.
        length: Most tokens of a document.
        held_out: Share of the first questions that are held out, with all dialogues that begin so.
        held_text: Files of held-out text. Dialogues with a line of it in an answer are held out,
            too.

    Raises:
        UserError: As of `_sampled`, and where nothing is left.
    """
    opened = open_tokenizer(tokenizer_folder)
    vocabulary = opened.vocabulary
    known = _known_lines(held_text)
    endings: set[Ending] = set()
    num_unanswered = 0
    with atomic_folder(out) as folder:
        with contextlib.ExitStack() as stack:
            training = _Store(folder, opened, stack)
            stores = [training]
            if held_out:
                stores.append(_Store(folder / HELD_OUT, opened, stack))
            for dialogue, ending, samples in _sampled(
                patterns, tokenizer_folder, str(tokenizer_folder), vocabulary, length, _say
            ):
                # A dialogue is held out with all of its answers.
                question = _question(dialogue)[-1]["content"]
                store = training
                if _answers_with(dialogue, known) or is_held_out([question], held_out):
                    store = stores[-1]
                for sample in samples:
                    store.add(sample)
                if not samples:
                    num_unanswered += 1
                endings.add(ending)
        if not training.documents:
            files = ", ".join(map(str, patterns))
            num_held_out = sum(store.documents for store in stores)
            raise UserError(
                f"{files}: no answer begins in {length} tokens to train on; {num_held_out} are "
                "held out"
            )
        if num_unanswered:
            _say(
                f"{num_unanswered:,} dialogues have no answer within {length} tokens and are left "
                "out"
            )
        for token in {ending.token for ending in endings if ending.is_added}:
            ends = f"{token} is learned after the last" if token else "none is learned"
            _say(f"the chat template ends no answer, and {ends}")
        facts = {
            "ends": sorted({ending.id for ending in endings if ending.id is not None}),
            "tokenizer_sha256": opened.sha256,
            "shards": 1,
            "whole_documents": True,
            "masked": True,
        }
        # The held-out store lies in the other, whose manifest is written last.
        for store in reversed(stores):
            write_manifest(
                store.folder,
                kind="token_store",
                **vocabulary.facts(),
                **facts,
                documents=store.documents,
            )


def _known_lines(held_text: Sequence[Path]) -> set[str]:
    """Return the beginnings of the lines of held-out text that stand on few of its pages."""
    lines = Counter(
        line for document in read_documents(held_text) for line in {*map(str.strip, document)}
    )
    return {
        line[:LINE_START]
        for line, pages in lines.items()
        if len(line) >= MIN_LINE and pages < MANY_PAGES
    }


def _answers_with(dialogue: Dialogue, known: set[str]) -> bool:
    """Return whether an answer has a line that begins as one of those that are known."""
    return any(
        line.strip()[:LINE_START] in known
        for turn in dialogue
        if turn["role"] == "assistant"
        for line in turn["content"].splitlines()
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def check_chats(patterns: Sequence[str | Path], model: str, length: int) -> None:
    """Check that the vocabulary and chat template of a base take the first dialogues.

    Args:
        patterns: Of the files.
        model: The base.
        length: Most tokens of a document.

    Raises:
        UserError: As of `_sampled`.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer"
        keep_vocabulary(model, tokenizer)
        vocabulary = open_tokenizer(tokenizer).vocabulary
        dialogues = _sampled(patterns, tokenizer, model, vocabulary, length)
        for _ in itertools.islice(dialogues, NUM_CHECKED):
            pass


def _sampled(
    patterns: Sequence[str | Path],
    tokenizer_folder: Path,
    name: str,
    vocabulary: Vocabulary,
    length: int,
    say: Callable[[str], None] | None = None,
) -> Iterator[tuple[Dialogue, Ending, list[NDArray[np.int64]]]]:
    """Yield (dialogue, how its answers end, its samples as of `_samples`) of each row.

    Args:
        patterns: Of the files.
        tokenizer_folder: Of a tokenizer.
        name: Of the tokenizer or its model in messages.
        vocabulary: The tokenizer's.
        length: Most tokens of a sample, the first of a text among them.
        say: Called with what is to be said of the files.

    Raises:
        UserError: As of `read_dialogues`; and where there is no template, it does not take a
            dialogue, or a turn would become a special token or end an answer.
    """
    tokenizer = tokenizer_of(tokenizer_folder)
    if not tokenizer.chat_template:
        raise UserError(f"{name}: has no chat template, by which dialogues are to be written")
    # {whether a system speaks first: (how answers end, the special tokens)}
    endings: dict[bool, tuple[Ending, re.Pattern[str]]] = {}
    for where, dialogue in read_dialogues(patterns, say):
        has_system = dialogue[0]["role"] == "system"
        with one_line(where, "the chat template does not take it"):
            if has_system not in endings:
                ending = ending_of(tokenizer, has_system=has_system)
                endings[has_system] = (ending, _special(tokenizer, ending.token))
        ending, special = endings[has_system]
        if held := special.search("\n".join(turn["content"] for turn in dialogue)):
            raise UserError(
                f"{where}: a turn says {held[0]!r}, a special token; spell it in another way"
            )
        with one_line(where, "the chat template does not take it"):
            samples = _samples(tokenizer, ending, dialogue, vocabulary, length - 1)
        yield dialogue, ending, samples


def held_out_questions(
    patterns: Sequence[str | Path], share: float, max_count: int
) -> list[Dialogue]:
    """Return what a user says first in the held-out dialogues of some files.

    A question stands after what the system says. The first `max_count` that differ are returned.

    Args:
        patterns: Of the files.
        share: Of the first questions that are held out.
        max_count: Most questions.
    """
    found: dict[str, Dialogue] = {}
    for _, dialogue in read_dialogues(patterns):
        question = _question(dialogue)
        text = question[-1]["content"]
        if is_held_out([text], share):
            found.setdefault(text, question)
        if len(found) == max_count:
            break
    return list(found.values())


def _question(dialogue: Dialogue) -> Dialogue:
    """Return the turns up to a user's first."""
    return dialogue[: 1 + [turn["role"] for turn in dialogue].index("user")]


def _samples(
    tokenizer: PreTrainedTokenizerBase,
    ending: Ending,
    dialogue: Dialogue,
    vocabulary: Vocabulary,
    max_length: int,
) -> list[NDArray[np.int64]]:
    """Return the ids of a dialogue in samples of at most `max_length`.

    Ids that are not learned have the vocabulary's size added.
    """
    system = [turn for turn in dialogue if turn["role"] == "system"]
    turns = dialogue[len(system) :]

    def written(count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        ids, learned = _written(tokenizer, ending, [*system, *turns[:count]])
        # A reader puts the token that begins a text before it itself.
        first = 1 if ids[0] == vocabulary.bos else 0
        return ids[first:], learned[first:]

    samples = []
    while turns:
        # As many turns as fit, but a question and its answer at least.
        count = 2
        ids, learned = written(count)
        while len(ids) <= max_length and count < len(turns):
            more_ids, more_learned = written(count + 2)
            if len(more_ids) > max_length:
                break
            count += 2
            ids = more_ids
            learned = more_learned
        ids = ids[:max_length]
        learned = learned[:max_length]
        if learned.any():
            samples.append(ids + vocabulary.size * ~learned)
        turns = turns[count:]
    return samples


def _special(tokenizer: PreTrainedTokenizerBase, end: str) -> re.Pattern[str]:
    """Return a pattern of the special tokens and of the one that ends an answer."""
    added = tokenizer.added_tokens_decoder.values()
    tokens = {end, *(token.content for token in added if token.special)} - {""}
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


class Ending(NamedTuple):
    """How an answer ends.

    Attributes:
        between: What is written from an answer to the end of the token that ends it, where a user
            goes on.
        last: The same at the end of a dialogue.
        id: Of that token, None where there is none.
        token: Its text, "" where there is none.
        is_added: Whether the template writes no such token, so that one is put after the last
            answer.
    """

    between: str
    last: str
    id: int | None
    token: str
    is_added: bool = False


def ending_of(tokenizer: PreTrainedTokenizerBase, *, has_system: bool) -> Ending:
    """Return how the chat template ends an answer.

    The first added token after an answer ends it, if it stands both before a user's turn and at the
    end of a dialogue. For a template without one the tokenizer's end of a text serves.

    Args:
        tokenizer: Has a chat template.
        has_system: Whether a system speaks first.

    Raises:
        ValueError: The template leaves out what is said.
    """
    turns = [{"role": role, "content": ""} for role in ("user", "assistant", "user", "assistant")]
    if has_system:
        turns.insert(0, {"role": "system", "content": ""})
    after = dict(_rendered(tokenizer, turns)[1])
    if len(after) < len(turns):
        raise ValueError("it leaves out what is said")
    last = after[len(turns) - 1]
    ids, spans = _encoded(tokenizer, last)
    between_ids, _ = _encoded(tokenizer, after[len(turns) - 3])
    # What follows the last answer and one before it begins with the same tokens.
    pairs = itertools.zip_longest(ids, between_ids)
    num_shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    shared = last[: spans[num_shared - 1][1]] if num_shared else ""
    for id, span in zip(ids, spans, strict=True):
        # Some vocabularies have added tokens of white space.
        if id in tokenizer.added_tokens_decoder and last[slice(*span)].strip():
            token = str(tokenizer.convert_ids_to_tokens(id))
            return Ending(between=shared[: span[1]], last=last[: span[1]], id=id, token=token)
    token = str(tokenizer.eos_token or "")
    return Ending(shared, last, tokenizer.eos_token_id, token, is_added=True)


def _encoded(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of a text as it stands, and (first character, end) of each."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoding["input_ids"], encoding["offset_mapping"]


def _rendered(
    tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue
) -> tuple[str, list[tuple[int, str]]]:
    """Return what the chat template writes beside the turns.

    Words that no template changes stand for what is said.

    Returns:
        (what is written before any turn, [(index of a turn, what is written after it)]).
    """
    words = [f"{SAID}{index:04}" for index in range(len(dialogue))]
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
    """Return (ids of a dialogue by the chat template, which of them the assistant says)."""
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
    for position, ((start, stop), turn) in enumerate(zip(spans, answers, strict=True), 1):
        end = ending.last if position == len(answers) else ending.between
        if text.startswith(end, stop):
            stop += len(end)
        # A turn that has a weight has weight 0, and is not learned.
        if "weight" not in turn:
            learned |= (starts < stop) & (ends > start)
    if ending.is_added and ending.id is not None:
        is_learned = "weight" not in answers[-1]
        return np.array([*ids, ending.id], np.int64), np.array([*learned, is_learned])
    return np.array(ids, np.int64), learned


def _marked(
    tokenizer: PreTrainedTokenizerBase, turns: Dialogue, offsets: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return (first character, end) of each answer that the chat template marks."""
    settings = {"return_dict": True, "return_assistant_tokens_mask": True}
    mask = apply_template(tokenizer, turns, **settings)["assistant_masks"]
    runs = itertools.groupby(zip(mask, offsets, strict=True), key=lambda pair: pair[0])
    spans = [[span for _, span in run] for is_marked, run in runs if is_marked]
    return [(run[0][0], run[-1][1]) for run in spans]
