"""Files of texts and their translations.

They are tables, rows, TMX, XLIFF, catalogs of gettext, and dictionaries of dictd and StarDict.
A form of file is one reader and its entry in READERS. A reader gives pairs as they stand in the
file; pairs.py cleans them.
"""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.extras import import_extra
from ds_minimodel.text import rows
from ds_minimodel.text.reader import bytes_of, form_of

RawPairs = Iterator[tuple[str, str]]
_MAX_TEXT_BYTES = 1 << 30  # of a dictionary


def is_language(name: str, language: str) -> bool:
    """Return whether a name such as "en", "en-US" or "EN_us" is of this language."""
    return re.split("[-_]", name.strip().lower())[0] == language.lower()


class PairFile(NamedTuple):
    """A file of pairs, and what is asked of it.

    path: the file. languages: codes of the source and the target. columns: names of their columns,
    or their numbers from 1; None where they are found by their language.
    """

    path: Path
    languages: tuple[str, str]
    columns: tuple[str, str] | None

    def columns_among(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Return the names of the source's and the target's column; None where one lacks."""
        if self.columns is not None:
            return self.columns if {*self.columns} <= {*names} else None
        chosen: list[str] = []
        for language in self.languages:
            found = [name for name in names if is_language(name, language)]
            if len(found) != 1:
                return None
            chosen += found
        return chosen[0], chosen[1]

    def no_columns(self, where: str, names: Iterable[str]) -> UserError:
        """Return the error for a table of the columns `names` that lacks those that are asked."""
        wanted = " and ".join(map(repr, self.columns or self.languages))
        listed = ", ".join(f"{name:.40}" for name in names) or "none"
        return UserError(f"{where}: no columns {wanted}; there are: {listed}; name the two columns")

    def no_languages(self, codes: Iterable[str]) -> UserError:
        """Return the error for a file that has the languages `codes` and no pair of those asked."""
        listed = ", ".join(filter(None, codes)) or "none"
        return UserError(
            f"{self.path}: no translation of {self.languages[0]} into {self.languages[1]}; "
            f"languages there: {listed:.200}"
        )


# --- Tables and rows ---


def _text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return a column's text; nothing where it has no value."""
    return "" if name in row and row[name] is None else rows.text_field(row, name, where)


def _table_pairs(file: PairFile) -> RawPairs:
    form = ".csv" if form_of(file.path) == ".csv" else ".tsv"
    names: list[str] = []
    chosen: tuple[str, str] | None = None
    for where, values in rows.fields_of_table(bytes_of(file.path), file.path, form):
        if not names:
            names = values
            chosen = file.columns_among(names)
            if chosen is not None:
                continue
            # No header: columns have numbers, and two of them need no names.
            names = [str(number) for number in range(1, len(values) + 1)]
            chosen = ("1", "2") if file.columns is None and len(names) == 2 else file.columns
            if chosen is None or not {*chosen} <= {*names}:
                raise file.no_columns(where, values)
        if len(values) != len(names):
            raise UserError(
                f"{where}: {len(values)} fields where the first line has {len(names)}; check "
                "separators and quotes"
            )
        assert chosen is not None
        row = dict(zip(names, values, strict=True))
        yield _text_of(row, chosen[0], where), _text_of(row, chosen[1], where)


def _pairs_of_rows(file: PairFile, table: rows.Rows) -> RawPairs:
    """Yield pairs of rows with names, also where one column holds both sides (`translation`)."""
    for where, whole in table:
        inner = whole.get("translation")
        row = inner if isinstance(inner, dict) and file.columns is None else whole
        names = [str(name) for name in row]
        chosen = file.columns_among(names)
        if chosen is None:
            raise file.no_columns(where, names)
        yield _text_of(row, chosen[0], where), _text_of(row, chosen[1], where)


def _json_pairs(file: PairFile) -> RawPairs:
    return _pairs_of_rows(file, rows.rows_of_json_lines(bytes_of(file.path), file.path))


def _parquet_pairs(file: PairFile) -> RawPairs:
    # Its columns are known by a row without values, which a file has that has none of those named.
    _, header = next(rows.rows_of_parquet(file.path, ()))
    names = [*header]
    chosen = file.columns_among(names)
    wanted = chosen if chosen is not None else ("translation",)
    if not {*wanted} <= {*names}:
        raise file.no_columns(str(file.path), names)
    return _pairs_of_rows(file, rows.rows_of_parquet(file.path, wanted))


# --- XML: translation memories ---

# Inside a translation these elements hold codes of the document that it was taken from.
_CODES = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex"}
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Attributes of XLIFF 1.2 and 2.
_SOURCE_CODES = ("source-language", "srcLang")
_TARGET_CODES = ("target-language", "trgLang")


def _elements(path: Path, tags: Sequence[str]) -> Iterator[Any]:
    """Yield the XML elements of these names, in any namespace, each while the file is read.

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
        for piece in filter(None, bytes_of(path)):
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
    """Return the text of an element without codes."""
    text = element.text or ""
    for child in element:
        # A comment's tag is a function.
        if isinstance(child.tag, str) and child.tag.rpartition("}")[2] not in _CODES:
            text += _inner_text(child)
        text += child.tail or ""
    return text


def _tmx_pairs(file: PairFile) -> RawPairs:
    source, target = file.languages
    codes = dict[str, None]()
    has_pairs = False
    for unit in _elements(file.path, ["tu"]):
        sides = dict[str, str]()
        for variant in unit.iterfind("{*}tuv"):
            code = variant.get(_LANGUAGE) or variant.get("lang") or ""
            codes[code] = None
            segment = variant.find("{*}seg")
            for language in file.languages:
                if segment is not None and is_language(code, language):
                    sides.setdefault(language, _inner_text(segment))
        if source in sides and target in sides:
            has_pairs = True
            yield sides[source], sides[target]
    if not has_pairs:
        raise file.no_languages(codes)


def _xliff_pairs(file: PairFile) -> RawPairs:
    codes = dict[str, None]()
    has_pairs = False
    # Version 1.2 has units, version 2 segments in them.
    for unit in _elements(file.path, ["trans-unit", "segment"]):
        source_code = _stated(unit, _SOURCE_CODES)
        target_code = _stated(unit, _TARGET_CODES)
        codes |= {source_code: None, target_code: None}
        source = unit.find("{*}source")
        target = unit.find("{*}target")
        if source is None or target is None:
            continue
        source_fits = is_language(source_code, file.languages[0])
        if source_fits and is_language(target_code, file.languages[1]):
            has_pairs = True
            yield _inner_text(source), _inner_text(target)
    if not has_pairs:
        raise file.no_languages(codes)


def _stated(element: Any, names: Sequence[str]) -> str:
    """Return the value of an attribute by the nearest element around this one that has it."""
    for around in element.iterancestors():
        for name in names:
            if value := around.get(name):
                return value
    return ""


# --- Catalogs of gettext ---


def _catalog_pairs(file: PairFile) -> RawPairs:
    """Yield the messages of a catalog that are translated, and not marked as doubtful."""
    polib = import_extra("polib", "pairs")
    with one_line(file.path, "not a gettext catalog"):
        read = polib.mofile if file.path.suffix.lower() == ".mo" else polib.pofile
        catalog: Any = read(str(file.path))
    code = catalog.metadata.get("Language", "")
    if code and not is_language(code, file.languages[1]):
        raise UserError(f"{file.path}: a catalog of {code:.40}, not of {file.languages[1]}")
    for entry in catalog.translated_entries():
        if entry.msgid_plural:
            forms = [entry.msgstr_plural[key] for key in sorted(entry.msgstr_plural)]
            yield entry.msgid, forms[0]
            yield entry.msgid_plural, forms[-1]
        else:
            yield entry.msgid, entry.msgstr


# --- Dictionaries ---

# An entry's text begins with the word, often with how it is said; of what follows the first
# translation and quoted examples are taken.
DICTIONARIES = (".index", ".ifo", ".idx", ".dict", ".dz")  # suffixes
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # of dictd's numbers
# Signs of at most so many characters: a line of "<" alone would be searched to its end from each.
_MARKUP = re.compile(r"<[^>]{0,300}>|\[[^\]]{0,300}\]|\{[^}]{0,300}\}|/[^/ ]+/")
_EXAMPLE = re.compile(r'\s*"([^"]+)"\s+- (.+)')
_REMARK = re.compile(r"see:|see also:|synonyms?:|antonyms?:|note:|cf\b", re.IGNORECASE)
_NUMBER = re.compile(r"^\W*\d+[.)]\s*")

# Words of an index, each with the first byte and the size of its entry in the text.
_Entries = Iterator[tuple[str, int, int]]


def _dictionary_pairs(file: PairFile) -> RawPairs:
    stem = str(file.path).removesuffix(".dz")
    stem = stem[: stem.rindex(".")]
    is_stardict = Path(f"{stem}.ifo").is_file() and file.path.suffix.lower() != ".index"
    text = _dictionary_text(file.path, stem)
    entries = _stardict_entries(file.path, stem) if is_stardict else _dictd_entries(file.path, stem)
    for word, start, size in entries:
        if not 0 <= start <= start + size <= len(text):
            raise UserError(
                f"{file.path}: the entry {word!r:.40} lies outside the dictionary's text"
            )
        entry = text[start : start + size].decode("utf-8", "replace")
        yield from _pairs_of_entry(word, entry, has_head=not is_stardict)


def _dictionary_text(path: Path, stem: str) -> bytes:
    """Return what a dictionary says, of the file beside its index, which may be compressed."""
    for name in (f"{stem}.dict.dz", f"{stem}.dict"):
        if Path(name).is_file():
            with gzip.open(name) if name.endswith(".dz") else open(name, "rb") as file:
                text = file.read(_MAX_TEXT_BYTES + 1)
            if len(text) > _MAX_TEXT_BYTES:
                raise UserError(f"{name}: more than {_MAX_TEXT_BYTES:,} bytes; take a part of it")
            return text
    raise UserError(f"{path}: {stem}.dict.dz or {stem}.dict is missing, which belongs to it")


def _dictd_entries(path: Path, stem: str) -> _Entries:
    index = Path(f"{stem}.index")
    if not index.is_file():
        raise UserError(f"{path}: {index} is missing, which belongs to it")
    for line_number, line in enumerate(index.read_bytes().split(b"\n"), 1):
        if line:
            values = line.decode("utf-8", "replace").split("\t")
            if len(values) < 3 or not {*values[1], *values[2]} <= {*DIGITS}:
                raise UserError(f"{index}:{line_number}: not an entry of a dictd index")
            if not values[0].startswith("00"):  # about the dictionary itself
                yield values[0], _base_64(values[1]), _base_64(values[2])


def _base_64(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 64 + DIGITS.index(digit)
    return value


def _stardict_entries(path: Path, stem: str) -> _Entries:
    described = Path(f"{stem}.ifo").read_text(encoding="utf-8", errors="replace")
    facts = dict(line.split("=", 1) for line in described.splitlines() if "=" in line)
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
    # Of each word the index has its text, a NUL, and two numbers.
    numbers = struct.Struct(">QI" if facts.get("idxoffsetbits") == "64" else ">II")
    begin = 0
    while begin < len(data):
        end = data.find(b"\0", begin)
        if end < 0 or end + 1 + numbers.size > len(data):
            raise UserError(f"{index}: not a StarDict index, or cut short")
        start, size = numbers.unpack_from(data, end + 1)
        yield data[begin:end].decode("utf-8", "replace"), start, size
        begin = end + 1 + numbers.size


def _pairs_of_entry(word: str, text: str, *, has_head: bool) -> RawPairs:
    """Yield the first translation of a word, and the examples in its entry.

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


_Reader = Callable[[PairFile], RawPairs]
_DICTIONARY_READERS: dict[str, _Reader] = dict.fromkeys(DICTIONARIES, _dictionary_pairs)
READERS: dict[str, _Reader] = {
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
    **_DICTIONARY_READERS,
}
