"""Held-out text: which documents are kept out of training, and how many bytes of text a token stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.data.tokenizer import Tokenizer

HELD_OUT = "held_out"  # folder of the store of these documents, in that of the others


def is_held_out(document: Sequence[str], share: float) -> bool:
    """Whether a document, a list of lines, is among the `share` of all that is held out: by a hash of its text."""
    digest = hashlib.blake2b("\n".join(document).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


def bytes_of_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """UTF-8 bytes of the text that each id stands for, (ids,), as Tokenizer.num_bytes has them.

    The end of a text is a line's end, one byte; the other special tokens stand for none.
    """
    vocabulary = tokenizer.vocabulary
    found = np.array(tokenizer.num_bytes(), np.int64)
    found[vocabulary.special_ids] = 0
    if vocabulary.eos is not None:
        found[vocabulary.eos] = 1
    return found
