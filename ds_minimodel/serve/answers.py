"""What each kind of model answers to requests in one language that is plugged in."""

import json
from itertools import chain

import numpy as np
import torch

from ds_minimodel import ops, tasks
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import BOS, EOS, MASK
from ds_minimodel.model.heads import encode
from ds_minimodel.tasks.batches import join
from ds_minimodel.tasks.tables import text_field

FIELDS = {
    "classification": ("text",),
    "pair": ("sentence1", "sentence2"),
    "qa": ("question", "context"),
    "masked-lm": ("text",),
}
_WINDOW = 384  # tokens of a question and a piece of its context, as in finetuning


def check(request, kind, languages, where):
    """UserError where a request is not what a model of this kind and these languages takes."""
    if not isinstance(request, dict):
        raise UserError(f"{where}: {json.dumps(request)[:40]} is not an object with {', '.join(FIELDS[kind])}")
    language = request.get("language")
    if language is None and len(languages) > 1:
        raise UserError(f"{where}: no 'language'; there are {', '.join(languages)}")
    if language is not None and (not isinstance(language, str) or language not in languages):
        raise UserError(f"{where}: no pack for language {language!r}; there are {', '.join(languages)}")
    for name in FIELDS[kind]:
        text_field(request, name, where)
    if kind == "masked-lm" and MASK not in request["text"]:
        raise UserError(f"{where}: no {MASK} in the text; put one where a piece is to be predicted")


@torch.inference_mode()
def _classify(predictor, tokenizer, requests):
    texts = tuple([request[name] for request in requests] for name in FIELDS[predictor.kind])
    records = tasks.Records(texts, np.zeros(len(requests), dtype=np.int64), tuple(predictor.labels))
    answers = [None] * len(requests)
    for index, batch in predictor.batches(tasks.encode_table(tokenizer, records, predictor.max_length)):
        shares = predictor.model.logits(batch).float().softmax(-1).cpu()
        for place, row in zip(index, shares, strict=True):
            scores = dict(zip(predictor.labels, row.tolist(), strict=True))
            answers[place] = {"label": predictor.labels[int(row.argmax())], "scores": scores}
    return answers


@torch.inference_mode()
def _answer(predictor, tokenizer, requests):
    questions = [
        tasks.Question(str(number), request["question"], request["context"], ("",), (0,))
        for number, request in enumerate(requests)
    ]
    length = min(_WINDOW, predictor.max_length)
    windows = tasks.encode_questions(tokenizer, questions, length, length // 6, length // 3)
    logits = (
        (index, predictor.model.logits(batch).float().cpu().numpy())
        for index, batch in predictor.batches(windows.examples)
    )
    found = tasks.find_answers(questions, windows, logits)
    return [{"answer": answer.text, "score": answer.score} for answer in (found[question.id] for question in questions)]


@torch.inference_mode()
def _fill(predictor, tokenizer, requests):
    """For each <mask> the likeliest pieces of the head at the predictor's depth."""
    sequences = [_with_masks(tokenizer, request["text"], predictor.max_length) for request in requests]
    examples = join(sequences, np.zeros(len(requests)), reads_start=True)
    pieces = tokenizer.pieces()
    answers = [None] * len(requests)
    model, depth = predictor.model, predictor.depth
    for index, batch in predictor.batches(examples):
        masked_BS = batch["tokens"] == tokenizer.mask_id
        del batch["read"]
        (x_BSH,), _ = encode(model.pack, model.body, batch, (depth,))
        x_PH = model.body.heads[str(depth)](x_BSH[masked_BS])
        logits_PV = ops.linear(x_PH, model.pack.tokens, model.pack.bias).float()
        shares, ids = logits_PV.softmax(-1).topk(min(predictor.top, len(pieces)))
        filled = iter(
            [
                [{"piece": pieces[id], "probability": share} for id, share in zip(*row, strict=True)]
                for row in zip(ids.tolist(), shares.tolist(), strict=True)
            ]
        )
        for place, count in zip(index, masked_BS.sum(1).tolist(), strict=True):
            answers[place] = {"masks": [next(filled) for _ in range(count)]}
    return answers


def _with_masks(tokenizer, text, max_length):
    """<s>, the text with the id of <mask> wherever it is spelt, </s>. A mask takes the space before it."""
    *before, last = text.split(MASK)
    parts = tokenizer.encode([*(part.rstrip() for part in before), last])
    ids = list(chain.from_iterable([tokenizer.mask_id, *part] for part in parts))[1:]
    if tokenizer.mask_id in ids[max_length - 2 :]:
        raise UserError(
            f"the text {text[:30]!r}… has a {MASK} beyond the {max_length} tokens that the model takes; shorten it"
        )
    return np.array([BOS, *ids[: max_length - 2], EOS])


ANSWER = {"classification": _classify, "pair": _classify, "qa": _answer, "masked-lm": _fill}
