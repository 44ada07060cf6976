"""Tokenizers of foreign models, kept as transformers reads them."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.tokenizers import IDS_FILE
from ds_minimodel.models import BodyConfig
from ds_minimodel.tokenizers.tokenizer import JSON_FILE, PROBES, TokenizerJson

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAID = "31415926535897"  # in place of what is said: no chat template changes it, or has it
# Of a stranger's template: seconds it may compute, characters it may write beside what is said.
MAX_SECONDS = 5
MAX_ADDED = 1 << 20
# Before a template: the same on all days
_TODAY = "{%- macro strftime_now(form) %}01 Jan 2026{% endmacro %}"


def keep_tokenizer(
    folder: Path, theirs: PreTrainedTokenizerBase, pack: Path, config: Any, body: BodyConfig
) -> Vocabulary:
    """Write the tokenizer of a model, as transformers has it, into a pack.

    Args:
        folder: as messages name the model.
        theirs: transformers' tokenizer.
        pack: folder to write into.
        config: transformers' configuration of the model.
        body: its configuration here, by which texts stand in a sequence.

    Returns:
        The vocabulary.

    Raises:
        UserError: what is written would give other ids of some text of the probes.
    """
    with one_line(folder, f"{type(theirs).__name__} is not written as {JSON_FILE}"):
        file = TokenizerJson(folder / JSON_FILE, json.loads(theirs.backend_tokenizer.to_str()))
        theirs.save_pretrained(pack, save_jinja_files=False)
    if file.content["model"].get("dropout"):
        raise UserError(
            f"{folder}: {JSON_FILE} leaves merges out at random (dropout); set it to null there"
        )
    vocabulary = _vocabulary(folder, theirs, file, body)
    if file.size > config.vocab_size:
        raise UserError(
            f"{folder}: config.json has vocab_size {config.vocab_size}, the tokenizer {file.size} "
            "ids; resize "
            "the embeddings to the tokenizer"
        )
    if (
        2 * file.size < config.vocab_size
    ):  # transformers makes an empty one where a file is missing or empty
        raise UserError(
            f"{folder}: config.json has vocab_size {config.vocab_size}, the tokenizer only "
            f"{file.size} ids"
        )
    special = {file.strings[id] for id in vocabulary.special_ids}.union(
        file.special.values()
    )  # no text becomes them
    texts = [text for text in PROBES if not any(token in text for token in special)]
    runner = file.runner(vocabulary)
    again = tokenizer_of(pack)
    with one_line(folder, "the tokenizer does not run"):
        ours = [encoding.ids for encoding in runner.encode_batch(texts, add_special_tokens=False)]
        alone = theirs(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        whole = theirs(PROBES)["input_ids"]
        kept = again(PROBES)["input_ids"]
    _compare(folder, texts, ours, alone)
    _compare(folder, PROBES, kept, whole)
    chat_prompt(theirs, SAID)  # UserError where the chat template has no end
    ids = {key: value for key, value in config.to_dict().items() if key.endswith("_token_id")}
    files.write_json(pack / IDS_FILE, ids)
    return replace(vocabulary, roundtrip_counterexample=file.lost_text(vocabulary))


def apply_template(
    tokenizer: PreTrainedTokenizerBase, dialogue: list[dict[str, str]], **settings: Any
) -> Any:
    """transformers' apply_chat_template: answers have no thinking part, and today is always the
    same day.
    """
    template = tokenizer.get_chat_template()
    template = _TODAY * ("strftime_now" in template) + template
    fixed: dict[str, Any] = {"chat_template": template, "enable_thinking": False}
    fixed["add_generation_prompt"] = settings.pop("add_generation_prompt", False)
    most = MAX_ADDED + 2 * sum(len(str(turn["content"])) for turn in dialogue)
    name = tokenizer.name_or_path
    try:
        with _stopped_after(MAX_SECONDS):
            text = str(tokenizer.apply_chat_template(dialogue, tokenize=False, **fixed))
    except TimeoutError:
        raise TemplateLimitError(
            f"{name}: its chat template computes for more than {MAX_SECONDS} s; take another"
        ) from None
    if len(text) > most:
        raise TemplateLimitError(
            f"{name}: its chat template writes more than {most:,} characters; take another"
        )
    if settings.get("tokenize", True):
        return tokenizer.apply_chat_template(dialogue, **fixed, **settings)
    return text


class TemplateLimitError(UserError):
    """A stranger's chat template took more than one may."""


@contextlib.contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when the process has computed for so long in it; signals
    reach the main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    former = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def chat_prompt(
    tokenizer: PreTrainedTokenizerBase, question: str | list[dict[str, str]], **settings: Any
) -> str | None:
    """A question, or turns that end with one, as text by the chat template, after an empty system
    message where the template demands one; None where there is no template, or it does not take
    that either.
    """
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else question
    tries = (
        [turns]
        if turns[0]["role"] == "system"
        else [turns, [{"role": "system", "content": ""}, *turns]]
    )
    for dialogue in tries if tokenizer.chat_template else ():
        try:
            with one_line("", "the chat template does not run"):
                return str(apply_template(tokenizer, dialogue, tokenize=False, **settings))
        except TemplateLimitError:
            raise
        except UserError:
            continue
    return None


def _compare(
    folder: Path, texts: Sequence[str], ours: list[list[int]], theirs: list[list[int]]
) -> None:
    for text, our_ids, their_ids in zip(texts, ours, theirs, strict=True):
        if our_ids != their_ids:
            raise UserError(
                f"{folder}: {text!r:.60} has the ids {their_ids!s:.60} by transformers, and would "
                f"have {our_ids!s:.60} "
                "as it is kept; this tokenizer is not served"
            )


def _vocabulary(folder: Path, theirs: Any, file: TokenizerJson, body: BodyConfig) -> Vocabulary:
    """Which ids are special: those by what they are called, and those that stand before and after a
    text.
    """
    with one_line(folder, "the tokenizer does not run"):
        first = theirs("a", add_special_tokens=False)["input_ids"]
        second = theirs("b", add_special_tokens=False)["input_ids"]
        single = theirs("a")["input_ids"]
        pair = theirs("a", "b", return_token_type_ids=True)
    start = next(
        (index for index in range(len(single)) if single[index : index + len(first)] == first), 0
    )
    before = single[:start]
    after = single[start + len(first) :]
    special = {role: getattr(theirs, f"{role}_token_id") for role in ("pad", "unk", "mask")}
    special |= {
        "bos": before[0] if before else None,
        "eos": after[0] if after else theirs.eos_token_id,
    }
    frame = [special["bos"]] if before else [], [] if body.causal else [special["eos"]]
    head = [*frame[0], *first, *frame[1]]
    tail = [*frame[1] * (body.separators - 1), *second, *frame[1]]
    types = [0] * len(head) + [1] * len(tail)
    is_pair = pair["input_ids"] == [*head, *tail] and (
        body.token_types == 1 or pair["token_type_ids"] == types
    )
    if single != head or (not body.causal and not (before and is_pair)):
        raise UserError(
            f"{folder}: the tokenizer puts a text as {theirs.convert_ids_to_tokens(single)!s:.80} "
            "and two as "
            f"{theirs.convert_ids_to_tokens(pair['input_ids'])!s:.120}, which is not as a "
            f"{body.kind} has them here"
        )
    if special["pad"] in (special["bos"], special["eos"], special["unk"]):
        special["pad"] = None  # what ends a text fills it up too
    try:
        return Vocabulary(file.size, **special, name=str(folder))
    except ValueError as error:
        raise UserError(f"{folder}: {error}") from None
