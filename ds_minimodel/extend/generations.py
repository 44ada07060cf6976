"""What a decoder writes, before and after a language is added: texts continued, and answers to
questions.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from transformers import GenerationConfig

from ds_minimodel.common.progress import Progress

TOKENS = 40  # of a sample
ROWS = 64  # prompts at once


def settings_of(module: Any, ends: Sequence[int] = ()) -> dict[str, Any]:
    """The generation settings of a model that say where a text ends and which tokens are
    suppressed. ends: those of the adaptation, which has learned more of them.
    """
    settings = module.generation_config
    return {
        "eos_token_id": [*ends] or settings.eos_token_id,
        "suppress_tokens": settings.suppress_tokens,
    }


def shared_prefix(module: Any, rows: Sequence[Sequence[int]]) -> tuple[int, Callable[[int], Any]]:
    """Compute keys and values of the ids that all rows begin with, short of a row's last: (number
    of ids, function of a number of rows that gives a cache of them, None where there are none).
    """
    same = takewhile(lambda ids: len({*ids}) == 1, zip(*(row[:-1] for row in rows), strict=False))
    shared = [ids[0] for ids in same]
    if not shared:
        return 0, lambda count: None
    with torch.inference_mode():
        cache = module.base_model(
            torch.tensor([shared], device=module.device), use_cache=True
        ).cache

    def repeated(count: int) -> Any:
        own = copy.deepcopy(cache)
        own.batch_repeat_interleave(count)
        return own

    return len(shared), repeated


def written(
    module: Any, prompts: Sequence[list[int]], settings: Mapping[str, Any], tokens: int
) -> list[list[int]]:
    """The likeliest tokens after each prompt, at most so many, with the one that ends a text.
    settings: as of settings_of.
    """
    module.generation_config = GenerationConfig(
        max_new_tokens=tokens, do_sample=False, pad_token_id=0, **settings
    )
    ends = settings["eos_token_id"]
    ends, answers = ends if isinstance(ends, list) else [ends], [list[int]()] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    window = (
        getattr(module.config, "sliding_window", None) or math.inf
    )  # padding, behind the prefix, would use it up
    fits = max(map(len, prompts), default=0) + tokens <= window
    shared, caches = shared_prefix(module, prompts if fits and len(prompts) > 1 else [])
    progress, done = Progress("answers", len(prompts), "answers", quiet=len(prompts) < 2), 0
    for index in (order[first : first + ROWS] for first in range(0, len(order), ROWS)):
        own = [prompts[at] for at in index]
        width = len(own[-1])
        filled = [[*row[:shared], *[-1] * (width - len(row)), *row[shared:]] for row in own]
        ids = torch.tensor(filled, device=module.device)
        with torch.inference_mode():
            out = module.generate(
                ids.clamp(0), attention_mask=(ids >= 0).long(), cache=caches(len(own))
            )
        for at, row in zip(index, out[:, width:].tolist(), strict=True):
            answers[at] = row[
                : next((place for place, id in enumerate(row, 1) if id in ends), len(row))
            ]
        progress.update(done := done + len(index))
    progress.close()
    return answers


def continued(
    module: Any, tokenizer: Any, openings: Sequence[str], settings: Mapping[str, Any]
) -> tuple[list[str], float]:
    """(the likeliest TOKENS tokens after each opening, bytes a second), one opening after the
    other.
    """
    prompts, start = [tokenizer(opening)["input_ids"] for opening in openings], time.perf_counter()
    ids = [written(module, [prompt], settings, TOKENS)[0] for prompt in prompts]
    seconds = max(time.perf_counter() - start, 1e-9)
    texts = [tokenizer.decode(own, skip_special_tokens=True) for own in ids]
    return texts, sum(len(text.encode()) for text in texts) / seconds
