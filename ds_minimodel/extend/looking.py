"""Look at what the decoder of an `extend` run keeps, before and after training.

It takes a tenth of the time that training takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ds_minimodel.artifacts.adaptation import load_adaptation, whole
from ds_minimodel.artifacts.base import module_of
from ds_minimodel.artifacts.models import identity, load_model
from ds_minimodel.common.files import read_model, sha256_of_json, write_json
from ds_minimodel.config.base import Base
from ds_minimodel.evaluation import comparison
from ds_minimodel.evaluation.bits import beginning_of
from ds_minimodel.evaluation.comparison import (
    MIN_TO_CHOOSE,
    STRENGTHS,
    Comparison,
    Kept,
    Look,
    Probe,
    Prompt,
    choose_strength,
    compare,
)
from ds_minimodel.evaluation.questions import question_set
from ds_minimodel.evaluation.retention import Decoder, look, within
from ds_minimodel.export.folder import exported
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.ops import gpu
from ds_minimodel.ops.precision import decoder_dtype
from ds_minimodel.pipeline.steps.corpus import TEST_BYTES
from ds_minimodel.text.chats import Dialogue
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers.tokenizer import VOCABULARY, open_tokenizer

SHARE = 0.1  # of a training's time that all looks together take, at most
FORWARD_PASSES = 3  # that training on a token takes as long as
# Operations of the minute that looks may take where a tenth is less.
MINUTE = {"cpu": 1.2e13, "cuda": 6e15}
OF_TEXT = 1 / 3  # of the looks' tokens, which score texts
TEXT_PASSES = 4  # over a text at most: untouched, and at each strength
MIN_TEXT_BYTES = 1_000
BYTES_A_TOKEN = 1.5  # of text, at least
MAX_DIALOGUES = 20
OPENINGS = 5
OPENING_WORDS = 6
_ADVICE = "delete that file"


class Budget(NamedTuple):
    """How much may be looked at.

    Attributes:
        text_bytes: of each text.
        tokens: that answers may pass through a model in each look.
    """

    text_bytes: int
    tokens: float


def budget_of(trained: int, base: Base, device: str, texts: int) -> Budget:
    """Share what may be looked at between texts and answers.

    It is counted in tokens that pass forward through the model.

    Args:
        trained: tokens of the training.
        base: the model.
        device: "cpu" or "cuda".
        texts: number of texts that are scored.
    """
    config = base.config
    weights = 12 * config.num_layers * config.hidden_size**2 + base.vocab_size * config.hidden_size
    tokens = max(SHARE * FORWARD_PASSES * trained, MINUTE[device] / (2 * weights))
    text_bytes = int(OF_TEXT * tokens / (TEXT_PASSES * texts) * BYTES_A_TOKEN)
    looks = 1 + len(STRENGTHS)
    return Budget(
        text_bytes=max(MIN_TEXT_BYTES, min(text_bytes, TEST_BYTES)),
        tokens=(1 - OF_TEXT) * tokens / looks,
    )


def probe_of(
    model: Path,
    source: str,
    opening_file: str,
    chats: Sequence[Dialogue],
    texts: Mapping[str, str],
    budget: Budget,
    column: str,
) -> Probe:
    """Choose what a decoder is asked before and after.

    Args:
        model: folder of the untouched one.
        source: language of the questions.
        opening_file: held-out text, whose first documents are continued.
        chats: dialogues up to an answer.
        texts: files to score, by what they are called.
        budget: how much of all this may be looked at.
        column: of the text in tables.
    """
    code, frame, questions = question_set(source)
    prompts = list[Prompt]()
    for lines in islice(read_documents([opening_file]), OPENINGS):
        words = " ".join(lines).split()[:OPENING_WORDS]
        prompts.append(Prompt(comparison.OPENINGS, " ".join(words)))
    for chat in chats:
        prompts.append(Prompt(comparison.DIALOGUES, chat[-1]["content"], chat))
    for question in questions:
        prompts.append(Prompt(comparison.QUESTIONS, question.text, question.text, question))
    scored = {name: beginning_of([file], budget.text_bytes, column) for name, file in texts.items()}
    return within(
        Probe(code, frame, prompts, scored), tokenizer_of(model / VOCABULARY), budget.tokens
    )


class _Untouched(Look):
    """Cache of what the untouched model does; key: hash of the model and the probe."""

    key: str


def look_at_untouched(model: Path, probe: Probe, path: Path) -> Look:
    """Look at a model, or read the file `path`, in which a former look is cached."""
    key = sha256_of_json([identity(model), asdict(probe)])
    if path.exists():
        known = read_model(path, _Untouched, _ADVICE)
        if known.key == key:
            return known
    module = module_of(model, decoder_dtype(gpu.device())).to(gpu.device())
    found = look(Decoder(module, model / VOCABULARY), probe)
    untouched = _Untouched(key=key, **found.model_dump())
    write_json(path, untouched.model_dump())
    return untouched


def find_kept(
    model: Path,
    pack: Path,
    path: Path,
    probe: Probe,
    before: Look,
    strengths: Sequence[float],
    another: str,
) -> Kept:
    """Find what an adapted decoder keeps, and the merge strength that is written.

    Args:
        model: folder of the untouched one.
        pack: folder of the adaptation.
        path: file in which the result is cached, by a hash of what it depends on.
        probe: what is asked.
        before: what the untouched one makes of it.
        strengths: to choose from.
        another: a clause that says what writes another strength.
    """
    key = sha256_of_json([before.model_dump(), asdict(probe), identity(pack), [*strengths]])
    if path.exists():
        known = read_model(path, Kept, _ADVICE)
        if known.key == key:
            return known
    body, base = load_model(model)
    learned = load_adaptation(pack, body.space)
    added = whole(learned, base)
    vocabulary = open_tokenizer(pack).vocabulary

    def comparison_at(strength: float) -> Comparison:
        merged = exported(model, body, added, vocabulary, strength=strength)
        module = merged.module(decoder_dtype(gpu.device())).to(gpu.device())
        after = look(Decoder(module, pack), probe)
        return compare(before, after, probe, learned.language)

    if not learned.update:
        strengths = [1.0]
    strength, found, reason = choose_strength(comparison_at, strengths)
    if learned.update:
        sentence = f"merge strength {strength:g}: {reason}; {another}."
        # Where there were too few questions to choose by, that is a warning.
        if len(strengths) > 1 and found.asked < MIN_TO_CHOOSE:
            found.worse.insert(0, sentence)
        else:
            found.sentences.insert(0, sentence)
    kept = Kept(key=key, pack=identity(pack), strength=strength, **found.model_dump())
    write_json(path, kept.model_dump())
    return kept
