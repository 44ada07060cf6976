"""Answers to requests in one language: a task's, pieces for the masks of a text, or what comes after it.

A body's are those of Hugging Face's library transformers, over the model that export-hf writes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.rows import text_field
from ds_minimodel.data.tokenizer import MASK, Tokenizer
from ds_minimodel.models.trainable import to_tensors
from ds_minimodel.serve.many_languages import SharedModel
from ds_minimodel.tasks.batches import INFERENCE_TOKENS, Examples, inference_batches
from ds_minimodel.tasks.kind import FinetunedKind, Request

Answer = dict[str, object]  # a JSON object


class Answerer(ABC):
    """Requests that a model takes, and its answers. fields: keys of a request, as they are typed."""

    fields: tuple[str, ...] = ("text",)

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        """Raise UserError, beginning with `where`, for a request that the model does not take in its language."""
        text_field(request, "text", where)

    @abstractmethod
    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        """Answers to checked requests in one language, in their order."""


class TaskAnswerer(Answerer):
    """A task model: its kind says what it is asked and what it answers."""

    def __init__(self, model: SharedModel, kind: FinetunedKind, labels: list[str] | None, max_length: int):
        self.model, self.kind, self.labels, self.max_length = model, kind, labels, max_length
        self.fields = kind.fields

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        self.kind.check_request(request, where)

    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        self.model.plug(language)
        separators = self.model.module.body.config.separators
        records, encoded = self.kind.encode_requests(tokenizer, requests, self.labels, self.max_length, separators)
        return self.kind.answers(records, encoded, outputs(self.model.module, encoded.examples), self.labels)


class MaskAnswerer(Answerer):
    """A body that was trained to fill masks: for each <mask> the `top` likeliest pieces."""

    def __init__(self, models: Mapping[str, Any], top: int, max_length: int):
        """models: of transformers, for each language."""
        self.models, self.top, self.max_length = models, top, max_length

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        text = text_field(request, "text", where)
        tokenizer.vocabulary.require("mask", "a prediction of pieces")
        if not _spelt(tokenizer).search(text):
            raise UserError(f"{where}: no {tokenizer.mask} in the text; put one where a piece is to be predicted")

    @torch.inference_mode()
    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        model, pieces, answers = self.models[language], tokenizer.pieces(), list[Answer]()
        for request in requests:
            ids_1S = torch.tensor([with_masks(tokenizer, str(request["text"]), self.max_length)], device=model.device)
            logits_MV = model(ids_1S).logits[ids_1S == tokenizer.vocabulary.mask].float()
            shares, ids = logits_MV.softmax(-1)[:, : len(pieces)].topk(min(self.top, len(pieces)))
            masks = [
                [{"piece": pieces[id], "probability": share} for id, share in zip(*row, strict=True)]
                for row in zip(ids.tolist(), shares.tolist(), strict=True)
            ]
            answers.append({"masks": masks})
        return answers


class CompletionAnswerer(Answerer):
    """A body that predicts next tokens: the likeliest continuation of a text, of one that is too long of its end."""

    def __init__(self, models: Mapping[str, Any], tokens: int, max_length: int):
        """models: of transformers, for each language. tokens: of a continuation, at most."""
        if not 1 <= tokens <= max_length - 2:
            raise UserError(
                f"--tokens {tokens}: give at least 1; the model takes {max_length} tokens, those of the text among them"
            )
        self.models, self.tokens, self.room = models, tokens, max_length - tokens

    def answer(self, language: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        from transformers import GenerationConfig

        model, vocabulary = self.models[language], tokenizer.vocabulary
        pad = vocabulary.pad if vocabulary.pad is not None else vocabulary.eos
        config = GenerationConfig(
            max_new_tokens=self.tokens, do_sample=False, eos_token_id=vocabulary.eos, pad_token_id=pad
        )
        begin, answers = vocabulary.frame[0], list[Answer]()
        for request in requests:
            ids = [*begin, *tokenizer.encode([str(request["text"])])[0][len(begin) - self.room :]]
            ids_1S = torch.tensor([ids or [vocabulary.require("eos", "a text that starts from nothing")]])
            ids_1S = ids_1S.to(model.device)
            found = model.generate(ids_1S, attention_mask=torch.ones_like(ids_1S), generation_config=config)
            new = found[0, ids_1S.shape[1] :].tolist()
            answers.append({"text": tokenizer.decode([id for id in new if id != vocabulary.eos])})
        return answers


def _spelt(tokenizer: Tokenizer) -> re.Pattern[str]:
    """How a text asks for a piece: as the vocabulary spells its mask token, or as ours do."""
    return re.compile("|".join(map(re.escape, (tokenizer.mask or MASK, MASK))))


def with_masks(tokenizer: Tokenizer, text: str, max_length: int) -> list[int]:
    """<s>, the text with the id of <mask> wherever it is spelt, </s>."""
    vocabulary = tokenizer.vocabulary
    (begin, end), mask = vocabulary.frame, vocabulary.require("mask", "a prediction")
    room = max_length - len(begin) - len(end)
    *before, last = _spelt(tokenizer).split(text)
    parts = tokenizer.encode([*(part.rstrip() if tokenizer.mask_takes_space else part for part in before), last])
    ids = list(chain.from_iterable([mask, *part] for part in parts))[1:]
    if mask in ids[room:]:
        raise UserError(
            f"the text {text[:30]!r}… has a {tokenizer.mask} beyond the {max_length} tokens that the model takes; "
            "shorten it"
        )
    return [*begin, *ids[:room], *end]


@torch.inference_mode()
def outputs(module: Any, examples: Examples) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(index, what `module.logits` gives) for all of `examples`, batches of like length."""
    device = next(module.parameters()).device
    for index, batch in inference_batches(examples, INFERENCE_TOKENS):
        yield index, module.logits(to_tensors(batch, device)).float().cpu().numpy()
