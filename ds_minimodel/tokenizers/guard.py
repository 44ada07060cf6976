"""Words of a base's language that new pieces of another must not cut otherwise.

Texts at hand know few words. The package wordfreq knows 320,000 of English, and how frequent each
is; among them are names and words of other languages, which are rare.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version

COMMON = 1e-6  # share of a text's words
MIN_WORDS = 3_000  # of a text whose pieces are compared at all
# A word that is so many times as frequent in the new language is one of that, which texts quote.
QUOTED = 100


def guarded_words(source: str, target: str, text: Mapping[str, int]) -> dict[str, float]:
    """Return words of `source` that are to be cut as before, and how frequent they are in it.

    Args:
        source: Code of the language that stays.
        target: Code of the language that is added. Words that are QUOTED times as frequent in it
            are left out.
        text: How often each word occurs in the text that new pieces are for.

    Returns:
        Words with the space before them, common ones also in capitals and at a line's start; none
        where wordfreq is not installed or lacks the source, or the text is too short to compare
        with.
    """
    if sum(text.values()) < MIN_WORDS:
        return {}
    of_target = word_frequencies(target)
    guard = dict[str, float]()
    for word, frequency in sorted(word_frequencies(source).items()):
        if of_target.get(word, 0.0) >= QUOTED * frequency:
            continue
        guard[f" {word}"] = frequency
        if frequency >= COMMON:
            for form in {word, word.capitalize(), word.upper()}:
                guard[f" {form}"] = frequency
                guard[form] = frequency
    return guard


def guard_of(language: str) -> str | None:
    """Return the name of the list that guards a language's words; None where there is none."""
    return f"wordfreq {version('wordfreq')}" if word_frequencies(language) else None


def unguarded(language: str) -> str | None:
    """Return a sentence about what guards a language's words where no list does, else None."""
    if word_frequencies(language):
        return None
    alone = (
        f"words of {language} that --source-text and --pairs do not hold may be split differently"
    )
    try:
        import wordfreq  # noqa: F401
    except ImportError:
        return (
            f"wordfreq is not installed: {alone}; with it 320,000 words of en are guarded "
            "(pip install 'ds_minimodel[pairs]', then another --out)"
        )
    return f"wordfreq has no words of {language}: {alone}; give text of many kinds"


def word_frequencies(language: str) -> Mapping[str, float]:
    """Frequencies of a language's words by wordfreq; none where it is not installed or lacks it."""
    try:
        import wordfreq
    except ImportError:
        return {}
    # It would say that it takes Bosnian's for Croatian.
    logging.getLogger("wordfreq").setLevel(logging.ERROR)
    try:
        return wordfreq.get_frequency_dict(language, wordlist="best")
    except LookupError:
        return {}
