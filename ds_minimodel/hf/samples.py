"""What a decoder writes, before and after a language is added: texts continued, and answers by its chat template."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import GenerationConfig

from ds_minimodel.artifacts.base import module_of
from ds_minimodel.artifacts.foreign import tokenizer_of
from ds_minimodel.artifacts.vocabularies import asked
from ds_minimodel.common.errors import escape_markdown

TOKENS = 40  # of a sample


class Sample(NamedTuple):
    """A prompt and what a model writes after it."""

    prompt: str
    text: str


class Samples(NamedTuple):
    """Of one model: what it writes after openings and, where it has a chat template, to questions; and how fast."""

    continued: list[Sample]
    answers: list[Sample]
    tokens_per_second: float
    bytes_per_second: float


def samples(model_folder: str, tokenizer_folder: Path, openings: Sequence[str], questions: Sequence[str]) -> Samples:
    """The likeliest TOKENS tokens after each prompt by a decoder, in the type that its weights have.

    model_folder: a base, as artifacts/base.py takes it. Of its settings of generation those count that say where a text
    ends and which tokens are left out. Questions are asked where its chat template takes a user's words.
    """
    tokenizer, device = tokenizer_of(tokenizer_folder), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = module_of(model_folder).to(device)
    kept = {key: getattr(model.generation_config, key) for key in ("eos_token_id", "suppress_tokens")}
    model.generation_config = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, **kept)
    tokens = num_bytes = 0
    seconds = 0.0

    def write(text: str, **settings: bool) -> str:
        nonlocal tokens, num_bytes, seconds
        ids = tokenizer(text, return_tensors="pt", **settings)["input_ids"].to(device)
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids))
        seconds += time.perf_counter() - start
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        tokens, num_bytes = tokens + out.shape[1] - ids.shape[1], num_bytes + len(text.encode())
        return text

    continued = [Sample(text, write(text)) for text in openings]
    dialogues = [asked(tokenizer, question, add_generation_prompt=True) for question in questions]
    answers = [
        Sample(question, write(dialogue, add_special_tokens=False))
        for question, dialogue in zip(questions, dialogues, strict=True)
        if dialogue is not None
    ]
    return Samples(continued, answers, tokens / max(seconds, 1e-9), num_bytes / max(seconds, 1e-9))


def samples_page(by_model: dict[str, Samples]) -> str:
    """Markdown with the samples of several models beside each other."""
    lines = ["# Samples", "", "| model | tokens a second | bytes a second |", "|---|---:|---:|"]
    lines += [
        f"| {name} | {own.tokens_per_second:.1f} | {own.bytes_per_second:.0f} |" for name, own in by_model.items()
    ]
    for part in ("continued", "answers"):
        for rows in zip(*(getattr(own, part) for own in by_model.values()), strict=True):
            lines += ["", f"**{escape_markdown(rows[0].prompt)}**", ""]
            lines += [f"- {name}: {escape_markdown(row.text)}" for name, row in zip(by_model, rows, strict=True)]
    return "\n".join(lines) + "\n"
