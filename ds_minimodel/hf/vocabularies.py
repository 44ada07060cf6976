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

# This stands in place of what is said: no chat template changes it, or has it.
SAID = "31415926535897"
# How long a stranger's template may compute, and how much it may write beside what is said.
MAX_SECONDS = 5
MAX_ADDED_CHARACTERS = 1 << 20
# This stands before a template, which then writes the same on all days.
_TODAY = "{%- macro strftime_now(form) %}01 Jan 2026{% endmacro %}"


def keep_tokenizer(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    pack: Path,
    hf_config: Any,
    config: BodyConfig,
) -> Vocabulary:
    """Write the tokenizer of a model, as transformers has it, into a pack.

    Args:
        folder: as messages name the model.
        tokenizer: transformers'.
        pack: folder to write into.
        hf_config: transformers' configuration of the model.
        config: of its body, by which texts stand in a sequence.

    Returns:
        The vocabulary.

    Raises:
        UserError: what is written would give other ids of some text of the probes.
    """
    with one_line(folder, f"{type(tokenizer).__name__} is not written as {JSON_FILE}"):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        file = TokenizerJson(folder / JSON_FILE, content)
        tokenizer.save_pretrained(pack, save_jinja_files=False)
    if file.content["model"].get("dropout"):
        raise UserError(
            f"{folder}: {JSON_FILE} leaves merges out at random (dropout); set it to null there"
        )
    vocabulary = _vocabulary(folder, tokenizer, file, config)
    vocab_size = hf_config.vocab_size
    if file.size > vocab_size:
        raise UserError(
            f"{folder}: config.json has vocab_size {vocab_size}, the tokenizer {file.size} ids; "
            "resize the embeddings to the tokenizer"
        )
    # Transformers makes a tokenizer of few ids where a file is missing or empty.
    if 2 * file.size < vocab_size:
        raise UserError(
            f"{folder}: config.json has vocab_size {vocab_size}, the tokenizer only {file.size} ids"
        )
    # A text in which the name of a special token stands becomes other ids here: it stays text.
    special = {file.strings[id] for id in vocabulary.special_ids}.union(file.special.values())
    texts = [text for text in PROBES if not any(token in text for token in special)]
    runner = file.runner(vocabulary)
    kept = tokenizer_of(pack)
    with one_line(folder, "the tokenizer does not run"):
        encodings = runner.encode_batch(texts, add_special_tokens=False)
        bare = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        framed = tokenizer(PROBES)["input_ids"]
        kept_framed = kept(PROBES)["input_ids"]
    _compare(folder, texts, [encoding.ids for encoding in encodings], bare)
    _compare(folder, PROBES, kept_framed, framed)
    # A chat template without an end is refused now.
    chat_prompt(tokenizer, SAID)
    ids = {key: value for key, value in hf_config.to_dict().items() if key.endswith("_token_id")}
    files.write_json(pack / IDS_FILE, ids)
    return replace(vocabulary, roundtrip_counterexample=file.lost_text(vocabulary))


def apply_template(
    tokenizer: PreTrainedTokenizerBase,
    dialogue: list[dict[str, str]],
    *,
    add_generation_prompt: bool = False,
    **settings: Any,
) -> Any:
    """Apply a chat template: answers have no thinking part, and today is always the same day.

    Args:
        tokenizer: transformers', which has a template.
        dialogue: turns of a role and a content.
        add_generation_prompt: whether an answer begins after the dialogue.
        settings: further keywords of apply_chat_template.

    Returns:
        As apply_chat_template, text or ids.

    Raises:
        TemplateLimitError: the template computes too long, or writes too much.
    """
    template = tokenizer.get_chat_template()
    if "strftime_now" in template:
        template = _TODAY + template
    fixed: dict[str, Any] = {
        "chat_template": template,
        "enable_thinking": False,
        "add_generation_prompt": add_generation_prompt,
    }
    max_characters = MAX_ADDED_CHARACTERS + 2 * sum(len(str(turn["content"])) for turn in dialogue)
    name = tokenizer.name_or_path
    try:
        with _stopped_after(MAX_SECONDS):
            text = str(tokenizer.apply_chat_template(dialogue, tokenize=False, **fixed))
    except TimeoutError:
        raise TemplateLimitError(
            f"{name}: its chat template computes for more than {MAX_SECONDS} s; take another"
        ) from None
    if len(text) > max_characters:
        raise TemplateLimitError(
            f"{name}: its chat template writes more than {max_characters:,} characters; take "
            "another"
        )
    if settings.get("tokenize", True):
        return tokenizer.apply_chat_template(dialogue, **fixed, **settings)
    return text


class TemplateLimitError(UserError):
    """A stranger's chat template took more than one may."""


@contextlib.contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when the process has computed for so long in it."""
    # Signals reach the main thread alone.
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
    """Return a question as text by the chat template.

    An empty system message comes first where the template demands one.

    Args:
        tokenizer: transformers'.
        question: what is asked, or turns that end with it.
        settings: as of apply_template.

    Returns:
        None where there is no template, or it does not take that either.

    Raises:
        TemplateLimitError: as of apply_template.
    """
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else question
    dialogues = [turns]
    if turns[0]["role"] != "system":
        dialogues.append([{"role": "system", "content": ""}, *turns])
    for dialogue in dialogues:
        try:
            with one_line("", "the chat template does not run"):
                return str(apply_template(tokenizer, dialogue, tokenize=False, **settings))
        except TemplateLimitError:
            raise
        except UserError:
            continue
    return None


def _compare(
    folder: Path, texts: Sequence[str], kept: list[list[int]], expected: list[list[int]]
) -> None:
    """Raise UserError where the kept tokenizer gives other ids of a text than transformers'."""
    for text, kept_ids, hf_ids in zip(texts, kept, expected, strict=True):
        if kept_ids != hf_ids:
            raise UserError(
                f"{folder}: {text!r:.60} has the ids {hf_ids!s:.60} by transformers, and would "
                f"have {kept_ids!s:.60} as it is kept; this tokenizer is not served"
            )


def _vocabulary(
    folder: Path, tokenizer: Any, file: TokenizerJson, config: BodyConfig
) -> Vocabulary:
    """Return the vocabulary of a tokenizer, whose special ids show in what it gives.

    Raises:
        UserError: texts do not stand in a sequence as such a body has them.
    """
    with one_line(folder, "the tokenizer does not run"):
        first = tokenizer("a", add_special_tokens=False)["input_ids"]
        second = tokenizer("b", add_special_tokens=False)["input_ids"]
        single = tokenizer("a")["input_ids"]
        pair = tokenizer("a", "b", return_token_type_ids=True)
    starts = [index for index in range(len(single)) if single[index : index + len(first)] == first]
    start = starts[0] if starts else 0
    before = single[:start]
    after = single[start + len(first) :]
    special = {role: getattr(tokenizer, f"{role}_token_id") for role in ("pad", "unk", "mask")}
    special["bos"] = before[0] if before else None
    special["eos"] = after[0] if after else tokenizer.eos_token_id
    # What stands before and after a text here; nothing ends one that is to go on.
    begin = [special["bos"]] if before else []
    end = [] if config.causal else [special["eos"]]
    head = [*begin, *first, *end]
    tail = [*end * (config.separators - 1), *second, *end]
    types = [0] * len(head) + [1] * len(tail)
    is_pair = pair["input_ids"] == [*head, *tail] and (
        config.token_types == 1 or pair["token_type_ids"] == types
    )
    if single != head or (not config.causal and not (before and is_pair)):
        one = tokenizer.convert_ids_to_tokens(single)
        two = tokenizer.convert_ids_to_tokens(pair["input_ids"])
        raise UserError(
            f"{folder}: the tokenizer puts a text as {one!s:.80} and two as {two!s:.120}, which "
            f"is not as a {config.kind} has them here"
        )
    # A token that ends texts may fill them up too, and then is none of its own.
    if special["pad"] in (special["bos"], special["eos"], special["unk"]):
        special["pad"] = None
    try:
        return Vocabulary(file.size, **special, name=str(folder))
    except ValueError as error:
        raise UserError(f"{folder}: {error}") from None
