"""Held-out text: which documents are kept out of training, and how many bytes of text a token stands for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.data.tokenizer import Tokenizer

HELD_OUT = "held_out"  # folder of the store of these documents, in that of the others

_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # a piece that is spelt by its bytes


def is_held_out(document: Sequence[str], share: float) -> bool:
    """Whether a document, a list of lines, is among the `share` of all that is held out: by a hash of its text."""
    digest = hashlib.blake2b("\n".join(document).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


def bytes_of_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """UTF-8 bytes of the text that each id stands for, (ids,), as its piece spells it, with a space before a word.

    The end of a text is a line's end, one byte; the other special tokens stand for none.
    """
    pieces, vocabulary = tokenizer.pieces(), tokenizer.vocabulary
    sizes = [len(piece) // 6 if _BYTES.fullmatch(piece) else len(piece.replace("▁", " ").encode()) for piece in pieces]
    found = np.zeros(vocabulary.size, np.int64)
    found[: len(sizes)] = sizes
    found[vocabulary.special_ids] = 0
    if vocabulary.eos is not None:
        found[vocabulary.eos] = 1
    return found
