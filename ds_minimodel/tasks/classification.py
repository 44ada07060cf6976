"""Sentences and sentence pairs as token sequences."""

import numpy as np

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import BOS, EOS
from ds_minimodel.tasks.batches import join


def encode_table(tokenizer, records, max_length):
    """Examples of `Records`: `<s>A</s>`, or `<s>A</s></s>B</s>` for pairs (RoBERTa's form).

    A sentence is cut to fit `max_length`; of a pair the longer text is cut first, and the second
    where both are as long (Hugging Face's `longest_first`).
    """
    special = 2 * len(records.texts)
    if max_length < special + len(records.texts):
        raise UserError(f"max_length {max_length}: too short for {len(records.texts)} text(s); raise it in the recipe")
    room = max_length - special
    firsts, *rest = [tokenizer.encode(column) for column in records.texts]
    if rest:
        sequences = [_pair(first, second, room) for first, second in zip(firsts, rest[0], strict=True)]
    else:
        sequences = [np.array([BOS, *first[:room], EOS]) for first in firsts]
    return join(sequences, records.targets, reads_start=True)


def _pair(first, second, room):
    kept = min(len(second), max(room // 2, room - len(first)))
    return np.array([BOS, *first[: room - kept], EOS, EOS, *second[:kept], EOS])
