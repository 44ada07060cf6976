"""Answers to requests in one language that is plugged in: a task's, pieces for masks of a text, or how it goes on."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.rows import text_field
from ds_minimodel.data.tokenizer import MASK, Tokenizer
from ds_minimodel.model.models import Model, TaskModel, encode, to_tensors
from ds_minimodel.tasks.batches import EVALUATION_TOKENS, Examples, evaluation_batches, join
from ds_minimodel.tasks.kind import FinetunedKind, Logits, Request

Answer = dict[str, object]  # a JSON object


def check_request(request: object, answerer: Answerer, languages: Mapping[str, Tokenizer], where: str) -> None:
    """Raise UserError for a request that a model with this Answerer and these languages does not take."""
    if not isinstance(request, dict):
        raise UserError(f"{where}: {type(request).__name__} is not an object with {', '.join(answerer.fields)}")
    language = request.get("language")
    if language is None and len(languages) > 1:
        raise UserError(f"{where}: no 'language'; there are {', '.join(languages)}")
    if language is not None and (not isinstance(language, str) or language not in languages):
        name = repr(language) if isinstance(language, str) else f"of type {type(language).__name__}"
        raise UserError(f"{where}: no pack for language {name:.40}; there are {', '.join(languages)}")
    answerer.check_request(request, languages[language or next(iter(languages))], where)


class Answerer(ABC):
    """Requests that a model takes, and answers from its outputs. fields: keys of a request, as they are typed."""

    fields: tuple[str, ...]

    @abstractmethod
    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        """Raise UserError, beginning with `where`, for a request that the model does not take in its language."""

    @abstractmethod
    def answer(self, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        """Answers to checked requests, in their order."""


class TaskAnswerer(Answerer):
    """A task model: its kind says what it is asked and what it answers."""

    def __init__(self, model: TaskModel, kind: FinetunedKind, labels: list[str] | None, max_length: int):
        self.model, self.kind, self.labels, self.max_length = model, kind, labels, max_length
        self.fields = kind.fields

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        self.kind.check_request(request, where)

    def answer(self, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        separators = self.model.body.config.separators
        records, encoded = self.kind.encode_requests(tokenizer, requests, self.labels, self.max_length, separators)
        return self.kind.answers(records, encoded, self._logits(encoded.examples), self.labels)

    @torch.inference_mode()
    def _logits(self, examples: Examples) -> Logits:
        for index, batch in batches(examples, self.model):
            yield index, self.model.logits(batch).float().cpu().numpy()


class MaskAnswerer(Answerer):
    """A body with heads, trained to fill masks: for each <mask> the `top` likeliest pieces of the head at `depth`."""

    fields = ("text",)

    def __init__(self, model: Model, depth: int, top: int, max_length: int):
        self.model, self.depth, self.top, self.max_length = model, depth, top, max_length

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        text_field(request, "text", where)
        tokenizer.vocabulary.need("mask", "a prediction of pieces")
        if not _spelt(tokenizer).search(str(request["text"])):
            raise UserError(f"{where}: no {tokenizer.mask} in the text; put one where a piece is to be predicted")

    @torch.inference_mode()
    def answer(self, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        sequences = [_with_masks(tokenizer, str(request["text"]), self.max_length) for request in requests]
        examples = join(sequences, np.zeros(len(requests)), reads_start=True)
        pieces, mask = tokenizer.pieces(), tokenizer.vocabulary.need("mask", "a prediction of pieces")
        answers: list[Answer] = [{}] * len(requests)
        model, head = self.model, self.model.body.heads[str(self.depth)]
        for index, batch in batches(examples, model):
            masked_BS = batch["tokens"] == mask
            del batch["read"]
            (x_BSH,), table = encode(model.pack, model.body, batch, (self.depth,))
            logits_PV = model.pack.logits(head(x_BSH[masked_BS]), table).float()
            shares, ids = logits_PV.softmax(-1)[:, : len(pieces)].topk(min(self.top, len(pieces)))
            filled = iter(
                [
                    [{"piece": pieces[id], "probability": share} for id, share in zip(*row, strict=True)]
                    for row in zip(ids.tolist(), shares.tolist(), strict=True)
                ]
            )
            for place, count in zip(index, masked_BS.sum(1).tolist(), strict=True):
                answers[place] = {"masks": [next(filled) for _ in range(count)]}
        return answers


@dataclass(frozen=True)
class Completion:
    """How a text is gone on with: by at most `tokens` of them. top_p: each is drawn from the likeliest that have this
    share of the probability together; None: it is the likeliest. seed: of the draws, for each text anew."""

    tokens: int = 32
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """UserError where a value is out of range."""
        if self.tokens < 1:
            raise UserError(f"--tokens {self.tokens}: there must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"--top-p {self.top_p}: a share of the probability, above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed {self.seed}: a whole number from 0 to 2^63 - 1")


class CompletionAnswerer(Answerer):
    """A body that predicts next tokens: how it goes on with a text, by the head at `depth`.

    For a person to look at: each token takes a pass over the whole text.
    """

    fields = ("text",)

    def __init__(self, model: Model, depth: int, how: Completion, max_length: int):
        self.model, self.depth, self.how, self.max_length = model, depth, how, max_length

    def check_request(self, request: Request, tokenizer: Tokenizer, where: str) -> None:
        text_field(request, "text", where)

    @torch.inference_mode()
    def answer(self, tokenizer: Tokenizer, requests: Sequence[Request]) -> list[Answer]:
        return [{"text": tokenizer.decode(self._next(tokenizer, str(request["text"])))} for request in requests]

    def _next(self, tokenizer: Tokenizer, text: str) -> list[int]:
        vocabulary, model = tokenizer.vocabulary, self.model
        ids, device = [*vocabulary.frame[0], *tokenizer.encode([text])[0]], next(model.parameters()).device
        ids = ids or [vocabulary.need("eos", "a text that starts from nothing")]
        generator, found = torch.Generator().manual_seed(self.how.seed), list[int]()
        while len(found) < self.how.tokens:
            seen = torch.tensor([[*ids, *found][-self.max_length :]], device=device)
            if vocabulary.bos is not None:
                seen[0, 0] = vocabulary.bos  # of a cut text too: no body has met one without
            read = torch.tensor([[seen.shape[1] - 1]], device=device)
            (x_11H,), table = encode(model.pack, model.body, {"tokens": seen, "read": read}, (self.depth,))
            logits_V = model.pack.logits(model.body.heads[str(self.depth)](x_11H[0]), table)[0, : vocabulary.size]
            id = self._choice(logits_V.float().cpu(), generator)
            if id == vocabulary.eos:
                break
            found.append(id)
        return found

    def _choice(self, logits_V: torch.Tensor, generator: torch.Generator) -> int:
        if self.how.top_p is None:
            return int(logits_V.argmax())
        shares, ids = logits_V.softmax(-1).sort(descending=True, stable=True)
        shares[shares.cumsum(-1) - shares >= self.how.top_p] = 0
        return int(ids[torch.multinomial(shares, 1, generator=generator)])


def _spelt(tokenizer: Tokenizer) -> re.Pattern[str]:
    """How a text asks for a piece: as the vocabulary spells its mask token, or as ours do."""
    return re.compile("|".join(map(re.escape, (tokenizer.mask or MASK, MASK))))


def _with_masks(tokenizer: Tokenizer, text: str, max_length: int) -> np.ndarray:
    """<s>, the text with the id of <mask> wherever it is spelt, </s>."""
    vocabulary = tokenizer.vocabulary
    (begin, end), mask = vocabulary.frame, vocabulary.need("mask", "a prediction")
    room = max_length - len(begin) - len(end)
    *before, last = _spelt(tokenizer).split(text)
    parts = tokenizer.encode([*(part.rstrip() if tokenizer.mask_takes_space else part for part in before), last])
    ids = list(chain.from_iterable([mask, *part] for part in parts))[1:]
    if mask in ids[room:]:
        raise UserError(
            f"the text {text[:30]!r}… has a {tokenizer.mask} beyond the {max_length} tokens that the model takes; "
            "shorten it"
        )
    return np.array([*begin, *ids[:room], *end])


def batches(examples: Examples, model: torch.nn.Module) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """(index, batch of tensors where the model is) for all of `examples`, of like length together."""
    device = next(model.parameters()).device
    for index, batch in evaluation_batches(examples, EVALUATION_TOKENS):
        yield index, to_tensors(batch, device)
