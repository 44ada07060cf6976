"""Verdicts of what the fifth study claims of untrained arms, H1 to H6, and H13, by its rules."""

from collections.abc import Callable, Iterator, Sequence
from statistics import stdev

from study.fifth.cells import SIZES, TESTS, Cell
from study.fifth.results import Row
from study.fifth.tables import LANGUAGES, NOT_RUN, Groups, count, groups, margin

FEW, ALL = SIZES[1], SIZES[-1]
MAX_CUT = 0.001  # of English lines
MAX_DEVIATION = 0.015  # of three draws


class NotRunError(Exception):
    """What a rule asks for is not there yet."""


class Counts:
    """Counts of a language, as rules ask for them; used: those that were asked for."""

    def __init__(self, of: Groups, language: str):
        self.of, self.language = of, language
        self.used: list[tuple[Sequence[Row], float]] = []

    def rows(self, kind: str = "help", pairs: int = ALL, arm: str = "aligned") -> list[Row]:
        return self.of.get(Cell(self.language, kind, pairs, arm=arm), [])

    def __call__(
        self,
        test: str,
        kind: str = "help",
        pairs: int = ALL,
        arm: str = "aligned",
        source: str = "",
    ) -> float:
        rows = self.rows(kind, pairs, arm)
        found = count(rows, test, source)
        if found is None:
            raise NotRunError
        self.used.append((rows, found))
        return found

    def deviation(self, pairs: int) -> float:
        """Standard deviation of three draws."""
        found = [own for row in self.rows(pairs=pairs) if (own := count([row], "help")) is not None]
        if len(found) < 3:
            raise NotRunError
        return stdev(found)


def pages() -> Iterator[str]:
    """The table of verdicts: by how much a claim holds in a language."""
    of = groups()
    lines = [f"| claim | {' | '.join(LANGUAGES.values())} |", "|---" * (len(LANGUAGES) + 1) + "|"]
    for name, rule in RULES.items():
        said = " | ".join(_verdict(Counts(of, language), rule) for language in LANGUAGES)
        lines.append(f"| {name} | {said} |")
    yield "\n".join(lines)


def _verdict(counts: Counts, rule: Callable[[Counts], float]) -> str:
    """A claim holds from zero on, and is refuted below by more than what counts."""
    try:
        surplus = rule(counts)
    except NotRunError:
        return NOT_RUN
    if surplus >= 0:
        return f"holds, {surplus:+.3f}"
    least = margin(counts.of, *counts.used[:2]) if counts.used else 0.0
    return f"{'refuted' if surplus < -least else 'open'}, {surplus:+.3f}"


def _most_of_all(counts: Counts) -> float:
    return counts("help", pairs=5000) - 0.9 * counts("help")


def _story_below_half(counts: Counts) -> float:
    return counts("help") / 2 - counts("story")


def _mixture(counts: Counts) -> float:
    gains = [counts(test, "mixture") - counts(test) - 0.05 for test in ("gnome", "story")]
    return min(*gains, counts("help", "mixture") - counts("help") + 0.02)


def _dictionary(counts: Counts) -> float:
    more_story = counts("story", "dictionary", 0) - counts("story", pairs=FEW)
    return min(more_story, counts("help", pairs=FEW) - counts("help", "dictionary", 0))


def _means(counts: Counts) -> float:
    found = [
        abs(counts(test, arm="means") - counts(test, arm="means", source="source_pack_"))
        for test in TESTS
        if count(counts.rows(arm="means"), test) is not None or test == "help"
    ]
    return 0.05 - max(found)


def _draws(counts: Counts) -> float:
    return MAX_DEVIATION - counts.deviation(FEW)


def _english(counts: Counts) -> float:
    """Of every run with rows alone."""
    found = [
        row["english"]
        for cell, rows in counts.of.items()
        if cell.language == counts.language and cell.arm != "lora"
        for row in rows
        if row["english"]
    ]
    if not found:
        raise NotRunError
    is_equal = all(own["same_changed"] == 0 for own in found)
    most = max(own["cut_otherwise"] / own["source_lines"] for own in found)
    return MAX_CUT - most if is_equal else -1.0


RULES: dict[str, Callable[[Counts], float]] = {
    "H1, 5,000 pairs give .9 of `help`": _most_of_all,
    "H2, `story` stays below half of `help`": _story_below_half,
    "H3, `mixture` has .05 more on `gnome` and `story`": _mixture,
    "H4, `dictionary` beats 1,000 pairs on `story`, not on `help`": _dictionary,
    "H5, `means` are as `untouched`": _means,
    "H6, three draws of 1,000 deviate by .015": _draws,
    "H13, .1 % of English lines are split differently": _english,
}
