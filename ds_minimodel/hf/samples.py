"""What a decoder writes, before and after a language is added: texts continued, and answers by its chat template."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

from ds_minimodel.common.errors import escape_markdown, one_line
from ds_minimodel.hf.vocabularies import tokenizer_of

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


def samples(folder: str | Path, openings: Sequence[str], questions: Sequence[str]) -> Samples:
    """The likeliest TOKENS tokens after each prompt by the model in a folder of Hugging Face's."""
    tokenizer = tokenizer_of(Path(folder))
    with one_line(folder, "transformers cannot read it"):
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    tokens = num_bytes = 0
    seconds = 0.0

    def write(ids: torch.Tensor) -> str:
        nonlocal tokens, num_bytes, seconds
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
            )
        seconds += time.perf_counter() - start
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        tokens, num_bytes = tokens + out.shape[1] - ids.shape[1], num_bytes + len(text.encode())
        return text

    continued = [Sample(text, write(tokenizer(text, return_tensors="pt")["input_ids"])) for text in openings]
    answers = []
    for question in questions if tokenizer.chat_template else ():
        asked = [{"role": "user", "content": question}]
        with one_line(folder, "its chat template does not run"):
            ids = tokenizer.apply_chat_template(
                asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )["input_ids"]
        answers.append(Sample(question, write(ids)))
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
