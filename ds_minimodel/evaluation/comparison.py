"""Comparison of a decoder before and after training, by its answers and its scores of texts.

The merge strength is chosen by it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ds_minimodel.common.files import Amount, Count, Stored
from ds_minimodel.evaluation.likelihood import Documents
from ds_minimodel.evaluation.questions import Question, language_test, loops
from ds_minimodel.text.chats import Dialogue

STRENGTHS = (1.0, 0.75, 0.5)  # merge strengths that are tried, one after the other
MAX_POINTS_LOST = 5.0  # percentage points of right answers, at a strength that is taken
MIN_QUESTIONS = 40  # Rather than fewer, none are asked.
MIN_TO_CHOOSE = 100  # questions by which another strength than the first may be chosen
MAX_RISE = 3.0  # percent more bits of a text, without a warning
PAGE_BYTES = 4000
ANSWERS = "answers"  # unit of a Measure
QUESTIONS = "Questions answered"
DIALOGUES = "Questions of your dialogues"
OPENINGS = "Texts continued"
MORE_REPLAY = "train for less, or raise adapt.replay in the recipe"
_ERRORS = 1.96  # standard errors on each side of an interval of 95 %


@dataclass(frozen=True)
class Prompt:
    """Beginning that a decoder is to go on with.

    Attributes:
        kind: QUESTIONS, DIALOGUES or OPENINGS.
        text: What is shown of it.
        chat: A dialogue up to an answer, or a question; None where the text goes on.
        question: By which the answer is judged.
    """

    kind: str
    text: str
    chat: str | Dialogue | None = None
    question: Question | None = None


@dataclass(frozen=True)
class Probe:
    """Questions and texts by which decoders are compared.

    Attributes:
        code: Of the language of the questions.
        frame: Text before and after a question for a model without a chat template.
        prompts: To be answered and continued, questions last.
        texts: {name: documents to score}.
    """

    code: str
    frame: tuple[str, str]
    prompts: Sequence[Prompt]
    texts: Mapping[str, Documents]


class Look(Stored):
    """Answers and scores of a decoder on a Probe.

    Attributes:
        answers: To each prompt.
        bits: Per byte of each text.
        tokens: Of PAGE_BYTES bytes of each text.
    """

    answers: list[str]
    bits: dict[str, Amount]
    tokens: dict[str, Amount]


class Measure(Stored):
    """A quantity before and after.

    Attributes:
        what: What is measured.
        unit: Of both values.
        before: The value before training.
        after: The value after it.
        decimals: How many are printed.
    """

    what: str
    unit: str
    before: Amount
    after: Amount
    decimals: Count = 3

    @property
    def texts(self) -> tuple[str, str]:
        """Both values as they are printed."""
        return f"{self.before:.{self.decimals}f}", f"{self.after:.{self.decimals}f}"

    @property
    def change(self) -> float:
        """By how much the printed amount became better; below 0, worse."""
        before, after = map(float, self.texts)
        is_better_low = self.unit.startswith(("bits", "tokens")) or self.what.endswith(" loop")
        return before - after if is_better_low else after - before

    @property
    def sentence(self) -> str:
        """Both values in a sentence."""
        before, after = self.texts
        unit = "" if self.unit == ANSWERS else f" {self.unit}"
        return f"{self.what}: {before}{unit} before, {after} after."


class Sample(Stored):
    """Answers to a prompt before and after, and for a question whether they are right."""

    kind: str
    opening: str
    before: str
    after: str
    was_right: bool = False
    is_right: bool = False

    @property
    def was_lost(self) -> bool:
        """Whether a right answer was lost."""
        return self.was_right and not self.is_right


class Comparison(Stored):
    """Findings of two looks.

    Attributes:
        asked: Count of questions.
        lost: Right answers to them that were lost, in percentage points.
        sentences: What was found.
        worse: Warnings, each with a number and what helps.
        measures: All that was measured.
        samples: Answers to look at; those that were lost come first.
    """

    asked: Count
    lost: float
    sentences: list[str]
    worse: list[str]
    measures: list[Measure]
    samples: list[Sample]


class Kept(Comparison):
    """Findings about a decoder at the merge strength that is written.

    Attributes:
        key: Hash of all that it depends on.
        pack: Identity of the adaptation.
        strength: The merge strength.
    """

    key: str
    pack: str
    strength: Amount


def points_lost(answers: Sequence[Sample]) -> tuple[float, float]:
    """Return the right answers that were lost, and half the width of the interval of 95 %.

    Both are in percentage points. The interval is computed with half an answer more lost and half
    an answer more gained (Agresti and Min, 2005), so that it is not empty where none was.
    """
    lost = [answer.was_right - answer.is_right for answer in answers]
    count = len(lost) + 2
    error = math.sqrt(sum(map(abs, lost)) + 1 - sum(lost) ** 2 / count) / count
    return 100 * sum(lost) / max(1, len(lost)), 100 * _ERRORS * error


def compare(before: Look, after: Look, probe: Probe, language: str = "") -> Comparison:
    """Compare a decoder with the untouched one.

    Args:
        before: Answers and scores of the untouched one.
        after: Those of the other one.
        probe: What both were asked.
        language: That was added, if one was.
    """
    samples = _samples(before, after, probe)
    sentences: list[str] = []
    worse: list[str] = []
    measures: list[Measure] = []
    questions = [sample for sample in samples if sample.kind == QUESTIONS]
    dialogues = [sample for sample in samples if sample.kind == DIALOGUES]
    lost, half_width = points_lost(questions)
    if questions:
        right = Measure(
            what=f"right answers to {len(questions)} questions ({probe.code})",
            unit=ANSWERS,
            before=sum(answer.was_right for answer in questions),
            after=sum(answer.is_right for answer in questions),
            decimals=0,
        )
        measures.append(right)
        interval = f"at 95 % from {-lost - half_width:+.1f} to {half_width - lost:+.1f}"
        # -lost would print -0.0 where nothing was lost.
        sentences.append(f"right answers: {0 - lost:+.1f} points, {interval}.")
        if lost > MAX_POINTS_LOST:
            worse.append(f"right answers fall by {lost:.1f} points: {MORE_REPLAY}.")
    is_in_language = language_test(language, probe.code)
    groups = {"questions": questions, "held-out dialogues": dialogues}
    for group, answers in groups.items():
        if not answers:
            continue
        subject = f"answers to {len(answers)} {group} that"
        looping = _counted(f"{subject} loop", answers, loops)
        more = looping.after - looping.before
        measures.append(looping)
        if more > MAX_POINTS_LOST / 100 * len(answers):
            worse.append(f"{subject} loop: {more:.0f} more: {MORE_REPLAY}.")
        if is_in_language:
            measures.append(_counted(f"{subject} are in {language}", answers, is_in_language))
    for name in before.bits:
        bits, tokens = _measures_of_text(name, before, after)
        measures += [bits, tokens]
        rise = 100 * (bits.after / bits.before - 1)
        if rise > MAX_RISE:
            worse.append(f"{name}: {rise:.1f} % more bits: give such text to --known-text.")
    sentences += [measure.sentence for measure in measures]
    samples.sort(key=lambda sample: sample.was_lost, reverse=True)
    return Comparison(
        asked=len(questions),
        lost=lost,
        sentences=sentences,
        worse=worse,
        measures=measures,
        samples=samples,
    )


def _samples(before: Look, after: Look, probe: Probe) -> list[Sample]:
    """Return both answers to each prompt, judged."""
    samples: list[Sample] = []
    answers = zip(before.answers, after.answers, strict=True)
    for prompt, (former, latter) in zip(probe.prompts, answers, strict=True):
        question = prompt.question
        sample = Sample(
            kind=prompt.kind,
            opening=prompt.text,
            before=former,
            after=latter,
            was_right=question is not None and question.is_right(former),
            is_right=question is not None and question.is_right(latter),
        )
        samples.append(sample)
    return samples


def _measures_of_text(name: str, before: Look, after: Look) -> tuple[Measure, Measure]:
    """Return the bits per byte of a text, and its tokens."""
    bits = Measure(
        what=name, unit="bits per byte", before=before.bits[name], after=after.bits[name]
    )
    tokens = Measure(
        what=name,
        unit=f"tokens of {PAGE_BYTES:,} bytes",
        before=before.tokens[name],
        after=after.tokens[name],
        decimals=0,
    )
    return bits, tokens


def _counted(what: str, answers: Sequence[Sample], test: Callable[[str], bool]) -> Measure:
    """Return how many answers pass a test, before and after."""
    before = sum(test(answer.before) for answer in answers)
    after = sum(test(answer.after) for answer in answers)
    return Measure(what=what, unit=ANSWERS, before=before, after=after, decimals=0)


def choose_strength(
    comparison_at: Callable[[float], Comparison], strengths: Sequence[float]
) -> tuple[float, Comparison, str]:
    """Choose the first merge strength at which few right answers are lost, else the last.

    At most MAX_POINTS_LOST percentage points are few. The first strength is chosen also where it is
    the only one, or few questions were asked.

    Args:
        comparison_at: Compares at a strength.
        strengths: To try, one after the other.

    Returns:
        (the strength, the comparison at it, a clause that says why).
    """
    tried: list[str] = []
    for strength in strengths:
        found = comparison_at(strength)
        if len(strengths) == 1:
            return strength, found, "as asked for"
        if not found.asked:
            few = f"fewer than {MIN_QUESTIONS} fit into a tenth of the training's time"
            return strength, found, f"no questions were asked, since {few}"
        if found.asked < MIN_TO_CHOOSE:
            return strength, found, f"{found.asked} questions are too few to take less"
        tried.append(f"{found.lost:.1f} points at {strength:g}")
        if found.lost <= MAX_POINTS_LOST:
            break
    return strength, found, f"right answers fall by {', '.join(tried)}"
