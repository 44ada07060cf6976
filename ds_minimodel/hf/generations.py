"""What a decoder writes, before and after a language is added: texts continued, and answers to questions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessorList

from ds_minimodel.artifacts.base import module_of
from ds_minimodel.common.errors import escape_markdown
from ds_minimodel.common.progress import Progress
from ds_minimodel.foreign.source import tokenizer_of
from ds_minimodel.report.kept import Answer

TOKENS = 40  # of a sample
ROWS = 128  # prompts at once


class Written(NamedTuple):
    """Ids, with that which ends a text, and their negative log-likelihood."""

    ids: list[int]
    nats: float


class Samples(NamedTuple):
    """What a model writes after openings, and how fast."""

    texts: list[str]
    tokens_per_second: float
    bytes_per_second: float


def device() -> torch.device:
    """Where a whole model of transformers computes."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def settings_of(module: Any) -> dict[str, Any]:
    """Of a model's settings of generation those that say where a text ends and which tokens are left out."""
    return {name: getattr(module.generation_config, name) for name in ("eos_token_id", "suppress_tokens")}


def written(module: Any, prompts: Sequence[list[int]], settings: Mapping[str, Any], tokens: int) -> list[Written]:
    """The likeliest tokens after each prompt, at most so many. settings: as of settings_of."""
    module.generation_config = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, **settings)
    ends = settings["eos_token_id"]
    ends, nats = ends if isinstance(ends, list) else [ends], list[torch.Tensor]()
    found = [Written([], 0.0)] * len(prompts)

    def note(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nats.append(scores.float().logsumexp(-1) - scores.max(-1).values.float())
        return scores

    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    progress, done = Progress("answers", len(prompts), "answers", quiet=len(prompts) == 1), 0
    for index in (order[first : first + ROWS] for first in range(0, len(order), ROWS)):
        width = len(prompts[index[-1]])
        ids = torch.tensor([[0] * (width - len(prompts[at])) + prompts[at] for at in index], device=module.device)
        lengths = torch.tensor([[len(prompts[at])] for at in index], device=module.device)
        mask = torch.arange(width, 0, -1, device=module.device) <= lengths
        nats.clear()
        with torch.inference_mode():
            noting = LogitsProcessorList([note])
            out = module.generate(ids, attention_mask=mask.long(), logits_processor=noting)[:, width:].tolist()
        for at, row, own in zip(index, out, torch.stack(nats, 1).tolist(), strict=True):
            length = next((place for place, id in enumerate(row, 1) if id in ends), len(row))
            found[at] = Written(row[:length], sum(own[:length]))
        progress.update(done := done + len(index))
    progress.close()
    return found


def samples(model_folder: str, tokenizer_folder: Path, openings: Sequence[str]) -> Samples:
    """The likeliest TOKENS tokens after each opening by a decoder, in the type that its weights have.

    model_folder: a base, as artifacts/base.py takes it.
    """
    tokenizer, module = tokenizer_of(tokenizer_folder), module_of(model_folder).to(device())
    prompts, settings, start = tokenizer(list(openings))["input_ids"], settings_of(module), time.perf_counter()
    ids = [written(module, [prompt], settings, TOKENS)[0].ids for prompt in prompts]
    seconds = max(time.perf_counter() - start, 1e-9)
    texts = [tokenizer.decode(own, skip_special_tokens=True) for own in ids]
    num_bytes = sum(len(text.encode()) for text in texts)
    return Samples(texts, sum(map(len, ids)) / seconds, num_bytes / seconds)


def samples_page(openings: Sequence[str], by_model: Mapping[str, Samples], answers: Sequence[Answer]) -> str:
    """Markdown with the samples of several models, and answers before and after, beside each other."""
    lines = ["# Samples", "", "| model | tokens a second | bytes a second |", "|---|---:|---:|"]
    lines += [
        f"| {name} | {own.tokens_per_second:.1f} | {own.bytes_per_second:.0f} |" for name, own in by_model.items()
    ]
    for place, opening in enumerate(openings):
        lines += ["", f"**{escape_markdown(opening)}**", ""]
        lines += [f"- {name}: {escape_markdown(own.texts[place])}" for name, own in by_model.items()]
    for own in answers:
        lines += ["", f"**{escape_markdown(own.question)}**", ""]
        for name, text, is_right in (("before", own.before, own.was_right), ("after", own.after, own.is_right)):
            lines += [f"- {name}{', right' * is_right}: {escape_markdown(text)}"]
    return "\n".join(lines) + "\n"
