"""What a vocabulary loses of a language: words that become one, and words that it does not know.

Uncased vocabularies take accents, tones and marks off, and give one unknown token for a long run of
letters.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ds_minimodel.tokenizers.tokenizer import Tokenizer

# Share of a text's words that may become another: Czech loses .02 by all-MiniLM's vocabulary, Greek
# .016, and Vietnamese, whose tones it takes off, .12. To keep the marks of letters beyond Latin is
# worse: pieces with and without them are different then, and 66 % of lines of GNOME's help in Greek
# were found by the English ones, and 71 % without marks.
MAX_EQUAL = 0.05


@dataclass(frozen=True)
class Losses:
    """Shares of a text's words.

    Attributes:
        equal: Words that have the ids of another, more frequent word; case does not tell words
            apart.
        unknown: Words with an unknown token, of which new characters may make known ones.
    """

    equal: float
    unknown: float


def losses_of(tokenizer: Tokenizer, text: Mapping[str, int]) -> Losses:
    """Measure what a vocabulary loses of a text.

    Args:
        tokenizer: The vocabulary.
        text: How often each word occurs, with the white space before it (corpus.py, count_words).
    """
    counts = Counter[str]()
    for word, times in text.items():
        plain = unicodedata.normalize("NFC", word.strip()).casefold()
        if plain:
            counts[plain] += times
    words = list(counts)
    of_ids = defaultdict[tuple[int, ...], list[int]](list)
    unknown = 0
    for word, ids in zip(words, tokenizer.encode([f" {word}" for word in words]), strict=True):
        if not ids or tokenizer.vocabulary.unk in ids:
            unknown += counts[word]
        else:
            of_ids[tuple(ids)].append(counts[word])
    equal = sum(sum(times) - max(times) for times in of_ids.values())
    total = max(1, counts.total())
    return Losses(equal / total, unknown / total)
