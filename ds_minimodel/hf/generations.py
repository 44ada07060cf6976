"""What a decoder writes, before and after a language is added: texts continued, and answers to questions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from ds_minimodel.common.progress import Progress

TOKENS = 40  # of a sample
ROWS = 64  # prompts at once


def device() -> torch.device:
    """Where a whole model of transformers computes."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def settings_of(module: Any) -> dict[str, Any]:
    """Of a model's settings of generation those that say where a text ends and which tokens are left out."""
    return {name: getattr(module.generation_config, name) for name in ("eos_token_id", "suppress_tokens")}


def written(module: Any, prompts: Sequence[list[int]], settings: Mapping[str, Any], tokens: int) -> list[list[int]]:
    """The likeliest tokens after each prompt, at most so many, with the one that ends a text. settings: as of
    settings_of."""
    module.generation_config = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, **settings)
    ends = settings["eos_token_id"]
    ends, answers = ends if isinstance(ends, list) else [ends], [list[int]()] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    progress, done = Progress("answers", len(prompts), "answers", quiet=len(prompts) == 1), 0
    for index in (order[first : first + ROWS] for first in range(0, len(order), ROWS)):
        width = len(prompts[index[-1]])
        ids = torch.tensor([[0] * (width - len(prompts[at])) + prompts[at] for at in index], device=module.device)
        lengths = torch.tensor([[len(prompts[at])] for at in index], device=module.device)
        mask = torch.arange(width, 0, -1, device=module.device) <= lengths
        with torch.inference_mode():
            out = module.generate(ids, attention_mask=mask.long())[:, width:].tolist()
        for at, row in zip(index, out, strict=True):
            answers[at] = row[: next((place for place, id in enumerate(row, 1) if id in ends), len(row))]
        progress.update(done := done + len(index))
    progress.close()
    return answers


def continued(
    module: Any, tokenizer: Any, openings: Sequence[str], settings: Mapping[str, Any]
) -> tuple[list[str], float]:
    """(the likeliest TOKENS tokens after each opening, bytes a second), one opening after the other."""
    prompts, start = [tokenizer(opening)["input_ids"] for opening in openings], time.perf_counter()
    ids = [written(module, [prompt], settings, TOKENS)[0] for prompt in prompts]
    seconds = max(time.perf_counter() - start, 1e-9)
    texts = [tokenizer.decode(own, skip_special_tokens=True) for own in ids]
    return texts, sum(len(text.encode()) for text in texts) / seconds
