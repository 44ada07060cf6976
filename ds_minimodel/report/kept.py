"""What a decoder has kept while a language was added, as hf/kept.py finds it and a verdict says it."""

from ds_minimodel.common.files import Amount, Count, Stored


class Answer(Stored):
    """To a question, before and after."""

    question: str
    before: str
    after: str
    was_right: bool
    is_right: bool


class Kept(Stored):
    """What a decoder has kept at a strength after so many steps.

    key: hash of what it is of. worse: as of a Verdict. answers: those to look at, lost ones first.
    """

    key: str
    steps: Count
    strength: Amount
    sentences: list[str]
    worse: list[str]
    answers: list[Answer]
