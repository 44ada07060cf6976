"""What a decoder has kept while a language was added, as extend/retention.py finds it; a verdict
and the page say it.
"""

import re

from ds_minimodel.common.files import Amount, Count, Stored


class Measure(Stored):
    """Something before and after. decimals: that are printed."""

    what: str
    unit: str
    before: Amount
    after: Amount
    decimals: Count = 3

    @property
    def texts(self) -> tuple[str, str]:
        """Before and after, as they are printed."""
        return f"{self.before:.{self.decimals}f}", f"{self.after:.{self.decimals}f}"


class Sample(Stored):
    """What is written after an opening, before and after; of a question, whether that is right."""

    opening: str
    before: str
    after: str
    was_right: bool = False
    is_right: bool = False


class Kept(Stored):
    """What a decoder has kept at a strength.

    key: hash of what it is of. pack: identity of the adaptation; "": of none that there is.
    sentences: of the strength, answers and chats; texts: of texts; worse: as of a Verdict.
    measures: of all of these. answers: those to look at, lost ones first. chats: what is said to
    held-out questions.
    """

    key: str
    pack: str = ""
    strength: Amount
    sentences: list[str]
    texts: list[str]
    worse: list[str]
    measures: list[Measure]
    answers: list[Sample]
    samples: list[Sample]
    chats: list[Sample]


def loops(said: str) -> bool:
    """Whether something with a letter stands in it three times, one after the other."""
    repeats = re.finditer(r"(?is)(\w.{2,}?)(?:\W*\1){2}", said)
    return any(re.search(r"[^\W\d_]", own[1]) for own in repeats)
