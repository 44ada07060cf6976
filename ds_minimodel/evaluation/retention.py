"""What a decoder of transformers answers to prompts, and how well it predicts texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from ds_minimodel.common.progress import Progress
from ds_minimodel.evaluation.bits import DecoderLikelihoods, score_text
from ds_minimodel.evaluation.comparison import MIN_QUESTIONS, PAGE_BYTES, QUESTIONS, Look, Probe
from ds_minimodel.evaluation.likelihood import CONTEXT_BYTES
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.tokenizers import GENERATION_FILE
from ds_minimodel.hf.vocabularies import chat_prompt
from ds_minimodel.tokenizers.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER_TOKENS = 32
ROWS_AT_ONCE = 64
PADDED = 1.2  # tokens of a batch for each that a prompt or an answer has


class Decoder:
    """A causal model of transformers, with its tokenizer.

    Attributes:
        module: the model.
        foreign_tokenizer: its tokenizer, as transformers has it.
        tokenizer: the same, as this package has it.
    """

    def __init__(self, module: Any, folder: Path):
        """Take a model, and the folder of its tokenizer and settings of generation."""
        self.module = module
        self.tokenizer = open_tokenizer(folder)
        self.foreign_tokenizer = tokenizer_of(folder)
        if not self.foreign_tokenizer.pad_token:
            self.foreign_tokenizer.pad_token = self.foreign_tokenizer.eos_token
        # Settings that are given to `generate` itself are mixed with the model's.
        former = module.generation_config
        if (folder / GENERATION_FILE).is_file():
            former = GenerationConfig.from_pretrained(folder)
        module.generation_config = GenerationConfig(
            max_new_tokens=ANSWER_TOKENS,
            do_sample=False,
            pad_token_id=self.foreign_tokenizer.pad_token_id,
            eos_token_id=former.eos_token_id or module.generation_config.eos_token_id,
            suppress_tokens=former.suppress_tokens,
        )

    def go_on(self, rows: Sequence[list[int]]) -> list[str]:
        """Write the likeliest tokens after each row of ids, at most ANSWER_TOKENS."""
        texts = [""] * len(rows)
        progress = Progress("answers", len(rows), "answers")
        # Rows of about one length stand in a batch, so that little of it is padding.
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for first in range(0, len(order), ROWS_AT_ONCE):
            index = order[first : first + ROWS_AT_ONCE]
            ids = {"input_ids": [rows[row] for row in index]}
            batch = self.foreign_tokenizer.pad(ids, padding_side="left", return_tensors="pt")
            with torch.inference_mode():
                ids_BS = self.module.generate(**batch.to(self.module.device))
            new_BS = ids_BS[:, batch["input_ids"].shape[1] :]
            for row, new_S in zip(index, new_BS, strict=True):
                texts[row] = self.foreign_tokenizer.decode(new_S, skip_special_tokens=True)
            progress.update(first + len(index))
        progress.close()
        return texts


def rows_of(probe: Probe, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the ids of a probe's prompts, up to where an answer begins."""
    rows = list[list[int]]()
    for prompt in probe.prompts:
        text = prompt.text
        if prompt.chat:
            chat = chat_prompt(tokenizer, prompt.chat, add_generation_prompt=True)
            if chat:
                rows.append(tokenizer(chat, add_special_tokens=False)["input_ids"])
                continue
            text = text.join(probe.frame)
        rows.append(tokenizer(text)["input_ids"])
    return rows


def within(probe: Probe, tokenizer: PreTrainedTokenizerBase, max_tokens: float) -> Probe:
    """Leave out the last prompts that would pass more than `max_tokens` tokens through a model.

    Where fewer than MIN_QUESTIONS questions are left, none is asked.
    """
    rows = rows_of(probe, tokenizer)
    costs = accumulate(PADDED * (len(ids) + ANSWER_TOKENS) for ids in rows)
    prompts = probe.prompts[: sum(cost <= max_tokens for cost in costs)]
    if sum(prompt.kind == QUESTIONS for prompt in prompts) < MIN_QUESTIONS:
        prompts = [prompt for prompt in prompts if prompt.kind != QUESTIONS]
    return replace(probe, prompts=prompts)


def look(decoder: Decoder, probe: Probe) -> Look:
    """Let a decoder answer the prompts of a probe, and predict its texts."""
    positions = decoder.module.config.max_position_embeddings
    scores = {
        name: score_text(
            DecoderLikelihoods(decoder.module),
            decoder.tokenizer,
            documents,
            max_length=positions,
            context_bytes=min(CONTEXT_BYTES, positions - 2),
        )
        for name, documents in probe.texts.items()
    }
    # A decoder without a chat template goes on with a next question.
    following = f"\n{probe.frame[0].strip()}"
    said = decoder.go_on(rows_of(probe, decoder.foreign_tokenizer))
    return Look(
        answers=[text.partition(following)[0].strip() for text in said],
        bits={name: score.bits_per_byte for name, score in scores.items()},
        tokens={name: PAGE_BYTES / score.bytes_per_token for name, score in scores.items()},
    )
