"""Pairs of a text and its translation.

They are read from files, cleaned, and parted into what is learned from and what is held out.
A pair's source is in the language that a model knows, its target in the one that is added. Each
file is a kind of text of its own.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.text.languages import language_scores
from ds_minimodel.text.pair_files import DICTIONARIES, READERS, PairFile
from ds_minimodel.text.reader import form_of

MIN_LINE = 25  # characters of a source that is a line, and no entry
MIN_LINES = 0.2  # share of a file's pairs; with fewer lines it is a list of entries
HELD_OUT = 1000  # pairs of each kind of text, at most
HELD_OUT_SHARE = 0.1  # of its lines, at most
MAX_COMPONENT = 8  # lines that hang together and are held out; one of them is scored
_SAMPLE = 60  # pairs by whose text the languages are told


class Pair(NamedTuple):
    """A text and its translation, each of one line."""

    source: str
    target: str


@dataclass(frozen=True)
class PairCounts:
    """How many pairs a file has, and how many of them are left out for each reason."""

    read: int = 0
    empty: int = 0
    equal: int = 0
    repeated: int = 0

    def __str__(self) -> str:
        """Return what is left out, as a sentence has it."""
        reasons = {
            "empty": "empty on a side",
            "equal": "equal on both sides",
            "repeated": "there twice",
        }
        parts = [
            f"{count:,} {reasons[field.name]}"
            for field in fields(self)
            if field.name in reasons and (count := getattr(self, field.name))
        ]
        return ", ".join(parts) or "none"


@dataclass(frozen=True)
class PairText:
    """The pairs of a file, a kind of text.

    name: of the kind, by its file. counts: of the file; `pairs` may be a part of what it left.
    """

    name: str
    pairs: list[Pair]
    is_dictionary: bool = False
    counts: PairCounts = PairCounts()

    @property
    def lines(self) -> list[Pair]:
        """The pairs that are long enough to train on; the others only align."""
        if self.is_dictionary:
            return []
        return [pair for pair in self.pairs if len(pair.source) >= MIN_LINE]


def read_pairs(
    paths: Sequence[str | Path],
    languages: tuple[str, str],
    columns: tuple[str, str] | None = None,
) -> list[PairText]:
    """Read files of pairs: tables, JSON lines, TMX, XLIFF, PO, dictionaries of dictd and StarDict.

    Args:
        paths: files, each a kind of text.
        languages: codes of the source and the target, such as "en" and "de".
        columns: names of the source's and the target's column in tables and JSON lines, or their
            numbers from 1 in a table without a header. By default columns are found by their
            language, and the two columns of a table without a header are source and target.

    Returns:
        A text for each file, of different pairs that hold something on both sides.

    Raises:
        UserError: A file is missing, damaged, of another form, or in other languages.
    """
    if languages[0] == languages[1]:
        raise UserError(f"pairs of {languages[0]} and {languages[0]}: two languages are expected")
    if columns is not None and columns[0] == columns[1]:
        raise UserError(f"the column {columns[0]!r} is named for both languages; name two")
    texts = [_read_file(PairFile(Path(path), languages, columns)) for path in paths]
    # Where two files have one name, each is called by its path.
    names = [text.name for text in texts]
    return [
        replace(text, name=str(path)) if names.count(text.name) > 1 else text
        for text, path in zip(texts, paths, strict=True)
    ]


def _read_file(file: PairFile) -> PairText:
    path = file.path
    source, target = file.languages
    if path.is_dir():
        raise UserError(f"{path}: a folder; name a file of pairs")
    if not path.is_file():
        raise UserError(f"{path}: no such file of pairs; check the path")
    form = form_of(path) or path.suffix.lower()
    if form not in READERS:
        raise UserError(
            f"{path}: a file of pairs is expected; its name may end in {', '.join(READERS)}"
        )
    try:
        found = list(READERS[form](file))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); it is damaged, cut short or not readable"
        ) from None
    pairs, counts = clean(found)
    if not pairs:
        raise UserError(
            f"{path}: holds no pair of {source} and {target} to learn from; "
            f"{counts.read:,} are there, left out: {counts}"
        )
    if _are_swapped(pairs, file.languages):
        # Of a dictionary nobody can name the direction.
        if form not in DICTIONARIES:
            raise UserError(
                f"{path}: its sources look like {target} and its targets like {source}; "
                "name the columns the other way round"
            )
        pairs = [Pair(pair.target, pair.source) for pair in pairs]
    name = path.name.removesuffix("".join(path.suffixes[-2:])) or path.name
    text = PairText(name, pairs, counts=counts)
    is_list = len(text.lines) < MIN_LINES * len(pairs)
    return replace(text, is_dictionary=is_list or form in DICTIONARIES)


def clean(pairs: Iterable[tuple[str, str]]) -> tuple[list[Pair], PairCounts]:
    """Leave out pairs that teach nothing; white space becomes single spaces.

    Args:
        pairs: as a file has them.

    Returns:
        The others in their order, and the counts.
    """
    kept = dict[Pair, None]()
    read = 0
    empty = 0
    equal = 0
    repeated = 0
    for source, target in pairs:
        read += 1
        pair = Pair(" ".join(source.split()), " ".join(target.split()))
        if not (pair.source and pair.target):
            empty += 1
        elif pair.source == pair.target:
            equal += 1
        elif pair in kept:
            repeated += 1
        else:
            kept[pair] = None
    return [*kept], PairCounts(read=read, empty=empty, equal=equal, repeated=repeated)


def _are_swapped(pairs: Sequence[Pair], languages: tuple[str, str]) -> bool:
    """Return whether sources look like the target's language and targets like the source's."""
    scores_of = language_scores()
    if scores_of is None:
        return False
    sample = pairs[:: max(1, len(pairs) // _SAMPLE)]
    of_source = scores_of(" ".join(pair.source for pair in sample))
    of_target = scores_of(" ".join(pair.target for pair in sample))
    first, second = languages
    if first not in of_source or second not in of_source:
        return False
    return of_source[first] < of_source[second] and of_target[second] < of_target[first]


# --- What is held out ---


@dataclass(frozen=True)
class PairSplit:
    """Pairs that are learned from, and pairs that are held out, of each kind of text."""

    training: list[PairText]
    held_out: list[PairText]


def normalised(side: str) -> str:
    """Return a side of a pair without case, spaces and digits, in which spellings differ."""
    folded = unicodedata.normalize("NFKC", side).casefold()
    return re.sub(r"\d+", "0", "".join(folded.split()))


def split_pairs(
    texts: Sequence[PairText],
    tests: Sequence[PairText] = (),
    limit: int = HELD_OUT,
    seed: int = 0,
) -> PairSplit:
    """Hold out lines of each kind of text.

    Nothing that is learned from shares a side with them, or with `tests`.
    Lines hang together where a side is the same but for case, spaces and digits; whole components
    are held out, and one line of each is scored. Which ones depends on the lines and the seed, not
    on their order. Entries join nothing, since common words would join nearly all; those that share
    a side with a held-out line are left out.

    Args:
        texts: kinds of text to learn from.
        tests: kinds of text of which nothing may be learned.
        limit: lines that are held out of a kind, but at most HELD_OUT_SHARE of its lines.
        seed: of the choice.

    Returns:
        The parts, in the order of `texts`.
    """
    keys: dict[Pair, tuple[str, str]] = {}
    components = _Components()
    for text in (*texts, *tests):
        for pair in text.pairs:
            keys[pair] = (normalised(pair.source), normalised(pair.target))
        for pair in text.lines:
            components.join(*keys[pair])

    # Of each component its lines, with the index of their kind of text.
    members: dict[str, list[tuple[int, Pair]]] = {}
    wanted: list[int] = []
    for kind, text in enumerate(texts):
        lines = text.lines
        wanted.append(min(limit, int(HELD_OUT_SHARE * len(lines))))
        for pair in lines:
            members.setdefault(components.root(keys[pair][0]), []).append((kind, pair))

    # Nothing is learned from what has one of these sides.
    not_learned = {side for pair in _all_of(tests) for side in keys[pair]}
    tested = {components.root(side) for side in not_learned}
    ranks: dict[str, bytes] = {}
    for root, of_root in members.items():
        if root in tested:
            not_learned |= _sides(of_root, keys)
        else:
            # A number that looks random, and depends on no order.
            least = min(keys[pair][0] for _, pair in of_root)
            ranks[root] = hashlib.sha256(f"{seed} {least}".encode()).digest()

    held: list[list[Pair]] = [[] for _ in texts]
    for root in sorted(ranks, key=ranks.__getitem__):
        # Of each kind that the component has, its first line.
        scored = dict(sorted(members[root], reverse=True))
        asking = [kind for kind in scored if len(held[kind]) < wanted[kind]]
        # A component of many lines would cost more than it tells.
        if asking and len(members[root]) <= MAX_COMPONENT:
            for kind in asking:
                held[kind].append(scored[kind])
            not_learned |= _sides(members[root], keys)

    training = [
        replace(text, pairs=[pair for pair in text.pairs if not_learned.isdisjoint(keys[pair])])
        for text in texts
    ]
    held_out = [replace(text, pairs=pairs) for text, pairs in zip(texts, held, strict=True)]
    return PairSplit(training, held_out)


def _all_of(texts: Iterable[PairText]) -> Iterator[Pair]:
    for text in texts:
        yield from text.pairs


def _sides(members: Iterable[tuple[int, Pair]], keys: dict[Pair, tuple[str, str]]) -> set[str]:
    return {side for _, pair in members for side in keys[pair]}


class _Components:
    """Strings that hang together, by union and find."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, side: str) -> str:
        """Return the string that stands for the component of `side`."""
        parents = self._parents
        while (parent := parents.get(side, side)) != side:
            parents[side] = parents.get(parent, parent)  # halves the way for the next
            side = parent
        return side

    def join(self, one: str, other: str) -> None:
        """Make one component of those of two strings."""
        first = self.root(one)
        second = self.root(other)
        if first != second:
            self._parents[max(first, second)] = min(first, second)
