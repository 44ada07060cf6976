"""Pairs of a text and its translation: files of many forms, cleaned, and parted into what is
learned from and what is held out.

A pair's source is in the language that a model knows, its target in the one that is added. Each
file is a kind of text of its own.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import struct
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.extras import import_extra
from ds_minimodel.text import rows
from ds_minimodel.text.languages import language_scores
from ds_minimodel.text.reader import bytes_of, form_of

MIN_LINE = 25  # characters of a source that is a line, and no entry
MIN_LINES = 0.2  # share of a file's pairs; with fewer lines it is a list of entries
HELD_OUT = 1000  # pairs of each kind of text, at most
HELD_OUT_SHARE = 0.1  # of its lines, at most
MAX_COMPONENT = 8  # lines that hang together and are held out; one of them is scored
_MAX_BYTES = 1 << 30  # of a dictionary's text
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
    too_long: int = 0
    repeated: int = 0

    def __str__(self) -> str:
        """What is left out, as a sentence has it."""
        reasons = {
            "empty": "empty on a side",
            "equal": "equal on both sides",
            "too_long": "longer than the model reads",
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
        """The pairs that are long enough to train on; the others, entries, are for the alignment
        alone.
        """
        return [pair for pair in self.pairs if self.is_line(pair)]

    def is_line(self, pair: Pair) -> bool:
        return not self.is_dictionary and len(pair.source) >= MIN_LINE


def read_pairs(
    paths: Sequence[str | Path],
    languages: tuple[str, str],
    columns: tuple[str, str] | None = None,
    fits: Callable[[list[str]], list[bool]] | None = None,
) -> list[PairText]:
    """Read files of pairs: tables, JSON lines, TMX, XLIFF, PO, dictionaries of dictd and StarDict.

    Args:
        paths: files, each a kind of text.
        languages: codes of the source and the target, such as "en" and "de".
        columns: names of the source's and the target's column in tables and JSON lines, or their
            numbers from 1 in a table without a header. By default columns are found by their
            language, and the two columns of a table without a header are source and target.
        fits: says of sources whether the model reads all of each.

    Returns:
        A text for each file, of different pairs that hold something on both sides.

    Raises:
        UserError: A file is missing, damaged, of another form, or in other languages.
    """
    if languages[0] == languages[1]:
        raise UserError(f"pairs of {languages[0]} and {languages[0]}: two languages are expected")
    if columns is not None and columns[0] == columns[1]:
        raise UserError(f"the column {columns[0]!r} is named for both languages; name two")
    texts = [_read_file(Path(path), languages, columns, fits) for path in paths]
    names = [text.name for text in texts]
    return [
        replace(text, name=str(path)) if names.count(text.name) > 1 else text
        for text, path in zip(texts, paths, strict=True)
    ]


def _read_file(
    path: Path,
    languages: tuple[str, str],
    columns: tuple[str, str] | None,
    fits: Callable[[list[str]], list[bool]] | None,
) -> PairText:
    if path.is_dir():
        raise UserError(f"{path}: a folder; name a file of pairs")
    if not path.is_file():
        raise UserError(f"{path}: no such file of pairs; check the path")
    form = form_of(path) or path.suffix.lower()
    read = _READERS.get(form)
    if read is None:
        raise UserError(
            f"{path}: a file of pairs is expected; its name may end in {', '.join(_READERS)}"
        )
    try:
        with contextlib.ExitStack() as stack:
            found = list(read(path, languages, columns, stack))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); it is damaged, cut short or not readable"
        ) from None
    pairs, counts = clean(found, fits)
    if not pairs:
        raise UserError(
            f"{path}: holds no pair of {languages[0]} and {languages[1]} to learn from; "
            f"{counts.read:,} are there, left out: {counts}"
        )
    num_lines = len(PairText(path.name, pairs).lines)
    is_dictionary = form in _DICTIONARIES or num_lines < MIN_LINES * len(pairs)
    if _are_swapped(pairs, languages):
        if form not in _DICTIONARIES:  # whose direction nobody can name
            raise UserError(
                f"{path}: its sources look like {languages[1]} and its targets like "
                f"{languages[0]}; name the columns the other way round"
            )
        pairs = [Pair(pair.target, pair.source) for pair in pairs]
    name = path.name.removesuffix("".join(path.suffixes[-2:])) or path.name
    return PairText(name, pairs, is_dictionary, counts)


def clean(
    pairs: Iterable[tuple[str, str]], fits: Callable[[list[str]], list[bool]] | None = None
) -> tuple[list[Pair], PairCounts]:
    """Leave out pairs that teach nothing; white space becomes single spaces.

    fits: as of read_pairs. Returns the others in their order, and the counts.
    """
    kept = dict[Pair, None]()
    read = 0
    empty = 0
    equal = 0
    repeated = 0
    for sides in pairs:
        read += 1
        pair = Pair(*(" ".join(side.split()) for side in sides))
        if not (pair.source and pair.target):
            empty += 1
        elif pair.source == pair.target:
            equal += 1
        elif pair in kept:
            repeated += 1
        else:
            kept[pair] = None
    whole = list(kept)
    if fits is not None:
        short = fits([pair.source for pair in whole])
        whole = [pair for pair, is_short in zip(whole, short, strict=True) if is_short]
    counts = PairCounts(
        read=read,
        empty=empty,
        equal=equal,
        too_long=len(kept) - len(whole),
        repeated=repeated,
    )
    return whole, counts


def _are_swapped(pairs: Sequence[Pair], languages: tuple[str, str]) -> bool:
    """Whether sources look like the target's language and targets like the source's."""
    scores_of = language_scores()
    if scores_of is None:
        return False
    sample = pairs[:: max(1, len(pairs) // _SAMPLE)]
    of_source = scores_of(" ".join(pair.source for pair in sample))
    of_target = scores_of(" ".join(pair.target for pair in sample))
    first, second = languages
    if not {first, second} <= of_source.keys():
        return False
    return of_source[first] < of_source[second] and of_target[second] < of_target[first]


# Forms of files. Each reader gives pairs as they stand there.

Columns = tuple[str, str] | None
RawPairs = Iterator[tuple[str, str]]


def is_language(name: str, language: str) -> bool:
    """Whether a name such as "en", "en-US" or "EN_us" is of this language."""
    return re.split("[-_]", name.strip().lower())[0] == language.lower()


def _columns_of(
    names: Sequence[str], languages: tuple[str, str], columns: Columns
) -> tuple[str, str] | None:
    """The names of the source's and the target's column; None where there are no such ones."""
    if columns is not None:
        return columns if {*columns} <= {*names} else None
    found = [[name for name in names if is_language(name, language)] for language in languages]
    return (found[0][0], found[1][0]) if all(len(of_one) == 1 for of_one in found) else None


def _no_columns(
    where: str, names: Iterable[str], languages: tuple[str, str], columns: Columns
) -> UserError:
    wanted = " and ".join(map(repr, columns or languages))
    listed = ", ".join(f"{name:.40}" for name in names) or "none"
    return UserError(f"{where}: no columns {wanted}; there are: {listed}; name the two columns")


def _text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """A column's text; nothing where it has no value."""
    return "" if name in row and row[name] is None else rows.text_field(row, name, where)


def _table_pairs(
    path: Path, languages: tuple[str, str], columns: Columns, stack: contextlib.ExitStack
) -> RawPairs:
    form = ".csv" if form_of(path) == ".csv" else ".tsv"
    lines = rows.fields_of_table(bytes_of(path, stack), path, form)
    names: list[str] = []
    chosen: tuple[str, str] | None = None
    for where, values in lines:
        if not names:
            names = values
            chosen = _columns_of(names, languages, columns)
            if chosen is not None:
                continue
            # No header: columns have numbers, and two of them need no names.
            names = [str(number) for number in range(1, len(values) + 1)]
            numbers = ("1", "2") if columns is None and len(names) == 2 else columns
            if numbers is None or not {*numbers} <= {*names}:
                raise _no_columns(where, values, languages, columns)
            chosen = numbers
        if len(values) != len(names):
            raise UserError(
                f"{where}: {len(values)} fields where the first line has {len(names)}; check "
                "separators and quotes"
            )
        assert chosen is not None
        row = dict(zip(names, values, strict=True))
        yield _text_of(row, chosen[0], where), _text_of(row, chosen[1], where)


def _pairs_of_rows(table: rows.Rows, languages: tuple[str, str], columns: Columns) -> RawPairs:
    """Pairs of rows with names, also where one column holds both sides (`translation`)."""
    for where, whole in table:
        inner = whole.get("translation")
        row = inner if isinstance(inner, dict) and columns is None else whole
        chosen = _columns_of([*map(str, row)], languages, columns)
        if chosen is None:
            raise _no_columns(where, map(str, row), languages, columns)
        yield _text_of(row, chosen[0], where), _text_of(row, chosen[1], where)


def _json_pairs(
    path: Path, languages: tuple[str, str], columns: Columns, stack: contextlib.ExitStack
) -> RawPairs:
    table = rows.rows_of_json_lines(bytes_of(path, stack), path)
    return _pairs_of_rows(table, languages, columns)


def _parquet_pairs(
    path: Path, languages: tuple[str, str], columns: Columns, stack: contextlib.ExitStack
) -> RawPairs:
    # Its columns are known by a row without values, which a file has that has none of those named.
    _, header = next(rows.rows_of_parquet(path, ()))
    names = [*header]
    chosen = _columns_of(names, languages, columns)
    wanted = chosen if chosen is not None else ("translation",)
    if not {*wanted} <= {*names}:
        raise _no_columns(str(path), names, languages, columns)
    return _pairs_of_rows(rows.rows_of_parquet(path, wanted), languages, columns)


# Inside a translation these hold codes of the document that it was taken from.
_CODES = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex"}


def _elements(path: Path, tags: Sequence[str], stack: contextlib.ExitStack) -> Iterator[Any]:
    """The XML elements of these names, in any namespace, each while the file is read.

    No entity is resolved and nothing outside the file is opened.
    """
    etree = import_extra("lxml.etree", "pairs")
    parser = etree.XMLPullParser(
        events=("end",),
        tag=[f"{{*}}{tag}" for tag in tags],
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
    )
    try:
        for piece in filter(None, bytes_of(path, stack)):
            parser.feed(piece)
            for _, element in parser.read_events():
                yield element
                # What has been read is dropped, so that memory does not grow with the file.
                element.clear(keep_tail=False)
                while element.getprevious() is not None:
                    del element.getparent()[0]
        parser.close()
    except etree.XMLSyntaxError as error:
        raise UserError(f"{path}: not XML ({error})") from None


def _inner_text(element: Any) -> str:
    """The text of an element without codes."""
    text = element.text or ""
    for child in element:
        is_text = isinstance(child.tag, str) and _name(child) not in _CODES
        text += _inner_text(child) if is_text else ""
        text += child.tail or ""
    return text


def _name(element: Any) -> str:
    """An XML element's name without its namespace."""
    return element.tag.rpartition("}")[2]


_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def _tmx_pairs(
    path: Path, languages: tuple[str, str], columns: Columns, stack: contextlib.ExitStack
) -> RawPairs:
    others = dict[str, None]()
    found = False
    for unit in _elements(path, ["tu"], stack):
        sides = dict[str, str]()
        for variant in unit.iterfind("{*}tuv"):
            code = variant.get(_LANGUAGE) or variant.get("lang") or ""
            segment = variant.find("{*}seg")
            language = next((each for each in languages if is_language(code, each)), None)
            others[code] = None
            if language is not None and segment is not None:
                sides.setdefault(language, _inner_text(segment))
        if len(sides) == len(languages):
            found = True
            yield sides[languages[0]], sides[languages[1]]
    _require_languages(path, languages, others, found)


def _xliff_pairs(
    path: Path, languages: tuple[str, str], columns: Columns, stack: contextlib.ExitStack
) -> RawPairs:
    others = dict[str, None]()
    found = False
    # Version 1.2 has units, version 2 segments in them.
    for unit in _elements(path, ["trans-unit", "segment"], stack):
        codes = [_stated(unit, names) for names in (_SOURCE_CODES, _TARGET_CODES)]
        sides = [unit.find(f"{{*}}{name}") for name in ("source", "target")]
        others.update(dict.fromkeys(codes))
        if all(map(is_language, codes, languages)) and None not in sides:
            found = True
            yield _inner_text(sides[0]), _inner_text(sides[1])
    _require_languages(path, languages, others, found)


_SOURCE_CODES = "source-language", "srcLang"
_TARGET_CODES = "target-language", "trgLang"


def _stated(element: Any, names: Sequence[str]) -> str:
    """The value of an attribute by the nearest element around this one that has it."""
    for around in element.iterancestors():
        for name in names:
            if value := around.get(name):
                return value
    return ""


def _require_languages(
    path: Path, languages: tuple[str, str], others: Iterable[str], found: bool
) -> None:
    if not found:
        listed = ", ".join(filter(None, others)) or "none"
        raise UserError(
            f"{path}: no translation of {languages[0]} into {languages[1]}; languages there: "
            f"{listed:.200}"
        )


def _catalog_pairs(
    path: Path, languages: tuple[str, str], columns: Columns, stack: contextlib.ExitStack
) -> RawPairs:
    """Messages of a gettext catalog that are translated, and not marked as doubtful."""
    polib = import_extra("polib", "pairs")
    with one_line(path, "not a gettext catalog"):
        read = polib.mofile if path.suffix.lower() == ".mo" else polib.pofile
        catalog: Any = read(str(path))
    code = catalog.metadata.get("Language", "")
    if code and not is_language(code, languages[1]):
        raise UserError(f"{path}: a catalog of {code:.40}, not of {languages[1]}")
    for entry in catalog.translated_entries():
        if entry.msgid_plural:
            forms = [entry.msgstr_plural[key] for key in sorted(entry.msgstr_plural)]
            yield entry.msgid, forms[0]
            yield entry.msgid_plural, forms[-1]
        else:
            yield entry.msgid, entry.msgstr


# Dictionaries. An entry's text begins with the word, often with how it is said; of what follows
# the first translation and quoted examples are taken.

_DICTD, _STARDICT = (".index",), (".ifo", ".idx")
_DICTIONARIES = (*_DICTD, *_STARDICT, ".dict", ".dz")
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # of dictd's numbers
_MARKUP = re.compile(r"<[^>]*>|\[[^\]]*\]|\{[^}]*\}|/[^/ ]+/")
_EXAMPLE = re.compile(r'\s*"([^"]+)"\s+- (.+)')
_REMARK = re.compile(r"see:|see also:|synonyms?:|antonyms?:|note:|cf\b", re.IGNORECASE)
_NUMBER = re.compile(r"^\W*\d+[.)]\s*")


def _dictionary_pairs(
    path: Path, languages: tuple[str, str], columns: Columns, stack: contextlib.ExitStack
) -> RawPairs:
    stem = str(path).removesuffix(".dz")
    stem = stem[: stem.rindex(".")]
    is_stardict = Path(f"{stem}.ifo").is_file() and path.suffix.lower() not in _DICTD
    text = _dictionary_text(path, stem)
    entries = _stardict_entries(path, stem) if is_stardict else _dictd_entries(path, stem)
    for word, start, size in entries:
        if not 0 <= start <= start + size <= len(text):
            raise UserError(f"{path}: the entry {word!r:.40} lies outside the dictionary's text")
        entry = text[start : start + size].decode("utf-8", "replace")
        yield from _pairs_of_entry(word, entry, has_head=not is_stardict)


def _dictionary_text(path: Path, stem: str) -> bytes:
    """What a dictionary says, of the file beside its index, which may be compressed."""
    for name in (f"{stem}.dict.dz", f"{stem}.dict"):
        if Path(name).is_file():
            with gzip.open(name) if name.endswith(".dz") else open(name, "rb") as file:
                text = file.read(_MAX_BYTES + 1)
            if len(text) > _MAX_BYTES:
                raise UserError(f"{name}: more than {_MAX_BYTES:,} bytes; take a part of it")
            return text
    raise UserError(f"{path}: {stem}.dict.dz or {stem}.dict is missing, which belongs to it")


def _dictd_entries(path: Path, stem: str) -> Iterator[tuple[str, int, int]]:
    """Words of a dictd index, with where their text begins and its size."""
    index = Path(f"{stem}.index")
    if not index.is_file():
        raise UserError(f"{path}: {index} is missing, which belongs to it")
    for number, line in enumerate(index.read_bytes().split(b"\n"), 1):
        if line:
            values = line.decode("utf-8", "replace").split("\t")
            if len(values) < 3 or not {*values[1], *values[2]} <= {*_DIGITS}:
                raise UserError(f"{index}:{number}: not an entry of a dictd index")
            if not values[0].startswith("00"):  # about the dictionary itself
                yield values[0], _base_64(values[1]), _base_64(values[2])


def _base_64(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 64 + _DIGITS.index(digit)
    return value


def _stardict_entries(path: Path, stem: str) -> Iterator[tuple[str, int, int]]:
    """Words of a StarDict index, with where their text begins and its size."""
    facts = dict(
        line.split("=", 1)
        for line in Path(f"{stem}.ifo").read_text(encoding="utf-8", errors="replace").splitlines()
        if "=" in line
    )
    kind = facts.get("sametypesequence", "m")
    if not {*kind} <= {*"mlgxth"}:
        raise UserError(f"{stem}.ifo: entries of the kind {kind!r:.20}, not text")
    index = Path(f"{stem}.idx")
    packed = Path(f"{stem}.idx.gz")
    if packed.is_file():
        data = gzip.decompress(packed.read_bytes())
    elif index.is_file():
        data = index.read_bytes()
    else:
        raise UserError(f"{path}: {index} is missing, which belongs to it")
    form = struct.Struct(">QI" if facts.get("idxoffsetbits") == "64" else ">II")
    place = 0
    while place < len(data):
        end = data.find(b"\0", place)
        if end < 0 or end + 1 + form.size > len(data):
            raise UserError(f"{index}: not a StarDict index, or cut short")
        start, size = form.unpack_from(data, end + 1)
        yield data[place:end].decode("utf-8", "replace"), start, size
        place = end + 1 + form.size


def _pairs_of_entry(word: str, text: str, has_head: bool) -> RawPairs:
    """The first translation of a word, and the examples in its entry.

    has_head: whether the entry's first line is the word itself, as in a dictd file.
    """
    # Line ends of HTML are lines; a NUL parts fields.
    lines = re.sub(r"<br\s*/?>|</(?:div|p|li|k)>|\0", "\n", text).split("\n")
    is_translated = False
    for line in lines[1:] if has_head else lines:
        if example := _EXAMPLE.match(line):
            yield _without_markup(example[1]), _without_markup(example[2])
            continue
        said = _without_markup(_NUMBER.sub("", line.strip()))
        is_remark = not said or said == word or _REMARK.match(said)
        if not (is_translated or is_remark or line.lstrip().startswith('"')):
            is_translated = True
            yield _without_markup(word), said


def _without_markup(text: str) -> str:
    return " ".join(_MARKUP.sub("", text).split()).strip(" ,;-")


_Reader = Callable[[Path, tuple[str, str], Columns, contextlib.ExitStack], RawPairs]
_READERS: dict[str, _Reader] = {
    ".tsv": _table_pairs,
    ".txt": _table_pairs,
    ".csv": _table_pairs,
    ".jsonl": _json_pairs,
    ".ndjson": _json_pairs,
    ".parquet": _parquet_pairs,
    ".tmx": _tmx_pairs,
    ".xlf": _xliff_pairs,
    ".xliff": _xliff_pairs,
    ".po": _catalog_pairs,
    ".mo": _catalog_pairs,
    ".index": _dictionary_pairs,
    ".ifo": _dictionary_pairs,
    ".idx": _dictionary_pairs,
    ".dict": _dictionary_pairs,
    ".dz": _dictionary_pairs,
}


# What is held out.


@dataclass(frozen=True)
class PairSplit:
    """Pairs that are learned from, and pairs that are held out, of each kind of text."""

    training: list[PairText]
    held_out: list[PairText]


def normalised(side: str) -> str:
    """A side of a pair without what two spellings of one text differ in: case, spaces, digits."""
    folded = unicodedata.normalize("NFKC", side).casefold()
    return re.sub(r"\d+", "0", "".join(folded.split()))


def split_pairs(
    texts: Sequence[PairText],
    tests: Sequence[PairText] = (),
    limit: int = HELD_OUT,
    seed: int = 0,
) -> PairSplit:
    """Hold out lines of each kind of text, so that nothing that is learned from shares a side with
    them, or with `tests`.

    Lines hang together where a side is the same but for case, spaces and digits; whole components
    are held out, and one line of each is scored. Which ones depends on the lines and the seed, not
    on their order. Of a kind `limit` lines are held out, but at most HELD_OUT_SHARE. Entries join
    nothing, since common words would join nearly all; those that share a side with a held-out line
    are left out.
    """
    keys = {pair: (normalised(pair.source), normalised(pair.target)) for pair in _all_of(texts)}
    keys |= {pair: (normalised(pair.source), normalised(pair.target)) for pair in _all_of(tests)}
    components = _Components()
    for text in (*texts, *tests):
        for pair in text.lines:
            components.join(*keys[pair])
    tested = {components.root(side) for pair in _all_of(tests) for side in keys[pair]}

    members: dict[str, list[tuple[int, Pair]]] = {}
    wanted = []
    for number, text in enumerate(texts):
        lines = text.lines
        wanted.append(min(limit, int(HELD_OUT_SHARE * len(lines))))
        for pair in lines:
            members.setdefault(components.root(keys[pair][0]), []).append((number, pair))

    held: list[list[Pair]] = [[] for _ in texts]
    out = {side for pair in _all_of(tests) for side in keys[pair]}
    out |= {
        side
        for pairs in members.values()
        for _, pair in pairs
        for side in keys[pair]
        if components.root(side) in tested
    }
    roots = [root for root in members if root not in tested]
    ranks = {root: _rank(members[root], keys, seed) for root in roots}
    for root in sorted(roots, key=ranks.__getitem__):
        of_kinds = dict(sorted(members[root], reverse=True))
        asking = [number for number in of_kinds if len(held[number]) < wanted[number]]
        # A component of many lines would cost more than it tells.
        if asking and len(members[root]) <= MAX_COMPONENT:
            for number in asking:
                held[number].append(of_kinds[number])
            out |= {side for _, pair in members[root] for side in keys[pair]}

    training = [
        replace(text, pairs=[pair for pair in text.pairs if out.isdisjoint(keys[pair])])
        for text in texts
    ]
    return PairSplit(
        training, [replace(text, pairs=pairs) for text, pairs in zip(texts, held, strict=True)]
    )


def _all_of(texts: Iterable[PairText]) -> Iterator[Pair]:
    for text in texts:
        yield from text.pairs


def _rank(
    members: Sequence[tuple[int, Pair]], keys: Mapping[Pair, tuple[str, str]], seed: int
) -> bytes:
    """A number by which components are put in an order that looks random."""
    least = min(keys[pair][0] for _, pair in members)
    return hashlib.sha256(f"{seed} {least}".encode()).digest()


class _Components:
    """Strings that hang together, by union and find."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, side: str) -> str:
        parents = self._parents
        while (parent := parents.get(side, side)) != side:
            parents[side] = parents.get(parent, parent)  # halves the way for the next
            side = parent
        return side

    def join(self, one: str, other: str) -> None:
        first = self.root(one)
        second = self.root(other)
        if first != second:
            self._parents[max(first, second)] = min(first, second)
