"""A language's text as one artifact: it is read once, and all that comes after reads this, in the
reader's own form.

A folder of two files of documents, those that training can reach and those that are held out, and
the counts of words. Of more text than training can use a part is drawn.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.progress import Progress
from ds_minimodel.common.random import permute
from ds_minimodel.text.reader import (
    CHUNK_BYTES,
    COLUMN,
    CUTS,
    NOTHING,
    Chunk,
    Parts,
    TextSource,
    bytes_of_text,
    documents,
    find_text,
    is_plain,
    names_of,
    pinned,
    read_chunks,
)
from ds_minimodel.text.rows import DOCUMENTS, as_document
from ds_minimodel.text.workers import FEW_CHUNKS, MpiRanks, ordered_map

MANY_PAGES = 3  # on which a line is part of the pages, and no text
COUNTED_BYTES = 200_000_000  # of text whose words are counted, about
_FILES = f"training{DOCUMENTS}.gz", f"held_out{DOCUMENTS}.gz"
_WORDS = "words.json.gz"
_WORD = re.compile(r"\s*\S+|\s+")
# The rest of a UTF-8 character where a block begins, the beginning of one where it ends.
_CUT_CHARACTER = re.compile(
    rb"^[\x80-\xbf]{1,3}|([\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z"
)
_LEVEL = 1  # of compression: six times as fast as the default


class CorpusManifest(files.Manifest):
    """Manifest of a corpus. documents, bytes: of training and held out. text: names. counted:
    bytes, of training.
    """

    text: list[str]
    documents: list[files.Count]
    bytes: list[files.Count]
    dropped: files.Count
    counted: files.Count
    repeated_lines: files.Amount

    noun = "a corpus; run the step corpus"
    kinds = ("corpus",)
    required = tuple((name,) for name in (*_FILES, _WORDS))


class Corpus:
    """A corpus on disk. training, held_out: files that reader.py reads, of the latter none where it
    has no document.
    """

    def __init__(self, folder: str | Path):
        self.facts, self._folder = files.read_artifact(folder, CorpusManifest), Path(folder)
        self.training, self.held_out = (
            [self._folder / name] if number else []
            for name, number in zip(_FILES, self.facts.documents, strict=True)
        )

    def words(self) -> Counter[str]:
        """How often each word occurs in the counted part of what training can reach, as of
        count_words.
        """
        return Counter(json.loads(gzip.decompress((self._folder / _WORDS).read_bytes())))

    @property
    def share_counted(self) -> float:
        """Of the bytes that training can reach those whose words are counted."""
        return self.facts.counted / self.facts.bytes[0]


def words_of(folders: Iterable[Path]) -> Counter[str]:
    """How often each word occurs in some corpora together."""
    return sum((Corpus(folder).words() for folder in folders), Counter[str]())


def count_words(texts: Iterable[Sequence[str]]) -> Counter[str]:
    """How often each word occurs in the lines of documents, each with the white space before it."""
    return Counter(
        word for lines in texts for line in lines if line.strip() for word in _WORD.findall(line)
    )


def make_corpus(
    text: Sequence[str | Path],
    out: str | Path,
    held_out: float = 0.0,
    min_words: int = 0,
    column: str = COLUMN,
    whole_documents: bool = False,
    draw: int | None = None,
    workers: int = 1,
    ranks: MpiRanks | None = None,
    label: str = "corpus",
) -> None:
    """Write the corpus `out` of the files, globs and data sets that `text` names.

    Documents of fewer than `min_words` words are dropped; the share `held_out` of the others is
    kept apart. Lines are kept as they are where documents are `whole`, else without white space
    around them and without empty ones. column: where files of rows have their text. draw: of a
    longer text about so many bytes are taken. The result does not depend on the number of
    `workers`, or of `ranks`, which work instead of them where given. UserError for text that cannot
    be read, and where nothing is left to train on.
    """
    sources = pinned(find_text(text))
    whole = max(1, bytes_of_text(sources))
    expected = min(whole, draw or whole)
    numbered = enumerate(read_drawn(sources, draw, column))
    sort_out = functools.partial(
        _sort_out, held_out, min_words, whole_documents, min(1.0, COUNTED_BYTES / expected)
    )
    parts = (
        ranks.ordered_map(sort_out, numbered)
        if ranks
        else ordered_map(sort_out, numbered, workers, FEW_CHUNKS)
    )
    totals, words, lines = np.zeros((4, 2), np.int64), Counter[str](), [np.zeros(0, np.uint32)]
    with files.atomic_folder(out) as folder, contextlib.ExitStack() as stack:
        progress = Progress(label, None, "documents")
        stack.callback(progress.close)
        written = [stack.enter_context((folder / name).open("wb")) for name in _FILES]
        for part in stack.enter_context(contextlib.closing(parts)):
            for file, data in zip(written, part.texts, strict=True):
                file.write(data)
            totals += part.totals
            if totals[3, 0] <= COUNTED_BYTES:
                words.update(part.words)
                lines.append(part.lines)
            else:
                totals[3, 0] -= part.totals[3][0]
            progress.update(int(totals[0].sum()))
        kept, sizes, (dropped, _), (counted, _) = totals.tolist()
        if not kept[0]:
            raise UserError(
                f"{', '.join(map(str, text))}: no document is left ({dropped} have fewer than "
                f"min_words={min_words} "
                f"words, {kept[1]} are held out by data.held_out={held_out})"
            )
        for file in written:
            file.flush()
        (folder / _WORDS).write_bytes(
            gzip.compress(json.dumps(words, ensure_ascii=False).encode(), _LEVEL, mtime=0)
        )
        of_lines = np.concatenate(lines)
        repeated = 1 - len(np.unique(of_lines)) / max(1, len(of_lines))
        facts = {"documents": kept, "bytes": sizes, "dropped": dropped, "counted": counted}
        files.write_manifest(
            folder,
            kind="corpus",
            text=names_of(sources),
            repeated_lines=round(repeated, 4),
            **facts,
        )
        drawn = f", drawn from {whole:,}" if expected < whole else ""
        progress.close(
            f"{sizes[0]:,} bytes{drawn}, and {kept[1]:,} documents held out; {repeated:.1%} of "
            "lines are repetitions"
        )


class _Part(NamedTuple):
    """A sorted chunk. texts: compressed, for training and held out; totals: of these two documents
    and bytes, then (documents dropped, 0), (bytes whose words are counted, 0). lines: a hash of
    each counted one.
    """

    texts: list[bytes]
    totals: list[list[int]]
    words: Counter[str]
    lines: NDArray[np.uint32]


def _sort_out(
    held_out: float,
    min_words: int,
    whole_documents: bool,
    share_counted: float,
    numbered: tuple[int, Chunk],
) -> _Part:
    number, chunk = numbered
    read = list(documents(chunk, whole_documents))
    kept = [
        lines
        for lines in read
        if not min_words or sum(len(line.split()) for line in lines) >= min_words
    ]
    sides: tuple[list[list[str]], list[list[str]]] = [], []
    for lines in kept:
        sides[held_out > 0 and is_held_out(lines, held_out)].append(lines)
    texts = [b"".join(map(as_document, side)) for side in sides]
    is_counted = math.ceil((number + 1) * share_counted) > math.ceil(
        number * share_counted
    )  # the first is
    counted = sides[0] if is_counted else []
    hashes = [
        zlib.crc32(line.encode()) for line in itertools.chain.from_iterable(counted) if line.strip()
    ]
    return _Part(
        [gzip.compress(data, _LEVEL, mtime=0) if data else b"" for data in texts],
        [
            [*map(len, sides)],
            [*map(len, texts)],
            [len(read) - len(kept), 0],
            [len(texts[0]) * is_counted, 0],
        ],
        count_words(counted),
        np.array(hashes, np.uint32),
    )


def is_held_out(document: Sequence[str], share: float) -> bool:
    """Whether a document, a list of lines, is among the `share` of all that is held out: by a hash
    of its text, without empty lines and white space around lines.
    """
    text = "\n".join(filter(None, map(str.strip, document)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


# A draw from more text than training can use: so many bytes from all over it, and hardly more is
# read. Plain files are read in blocks that a seeded permutation names, without the documents that a
# block cuts; of files of rows, compressed ones and data sets of the Hub, which cannot be entered
# anywhere, the beginning. A file of rows is read through once all the same: what tells it from
# others is the whole of it.

BLOCK_BYTES = 1 << 17


def draw_parts(text: Sequence[TextSource], most: int | None) -> list[Parts]:
    """Choose byte ranges of each file and data set, about `most` bytes in all; () for one that is
    taken whole.

    most: None takes all. What cannot be read from the middle gets one range at its beginning.
    """
    if most is None or sum(sizes := [bytes_of_text([source]) or most for source in text]) <= most:
        return [()] * len(text)
    drawn, owed = (
        list[Parts](),
        0,
    )  # bytes that are still to be drawn up to here: many small files have one block each
    for number, (source, size) in enumerate(zip(text, sizes, strict=True)):
        owed, parts = owed + max(1, most * size // sum(sizes)), list[tuple[int, int]]()
        if owed <= 0:
            drawn.append(NOTHING)
            continue
        if not is_plain(source):
            drawn.append(((0, owed),))
            owed -= max(owed, min(size, CHUNK_BYTES))
            continue
        blocks = -(-size // BLOCK_BYTES)
        for place in np.sort(
            permute(np.arange(min(blocks, -(-owed // BLOCK_BYTES))), blocks, 0, number)
        ).tolist():
            start, end = place * BLOCK_BYTES, min(size, (place + 1) * BLOCK_BYTES)
            if parts and parts[-1][1] == start and start - parts[-1][0] < CHUNK_BYTES:
                start, _ = parts.pop()
            parts.append((start, end))
        drawn.append(tuple(parts))
        owed -= sum(end - start for start, end in parts)
    return drawn


def read_drawn(text: Sequence[TextSource], most: int | None, column: str) -> Iterator[Chunk]:
    """Chunks of the drawn parts, as of read_chunks; but lines of a plain file are counted from the
    part's start.
    """
    for number, (source, parts) in enumerate(zip(text, draw_parts(text, most), strict=True)):
        if parts == NOTHING:
            continue
        if parts and isinstance(source, Path) and is_plain(source):
            yield from _blocks(source, number, parts)
            continue
        left = parts[0][1] if parts else None
        for chunk in read_chunks([source], column=column):
            yield chunk
            if left is not None and (left := left - len(chunk.data)) <= 0:
                break


def _blocks(path: Path, number: int, parts: Parts) -> Iterator[Chunk]:
    size = path.stat().st_size
    with path.open("rb") as file:
        for start, end in parts:
            file.seek(start)
            data = file.read(end - start)
            for mark in (*CUTS, b""):  # one line without a space: all of it
                first = data.find(mark) + len(mark) if start else 0
                last = data.rfind(mark) + len(mark) if end < size else len(data)
                if data[first:last].strip() and (mark in data or (start == 0 and end == size)):
                    name = f"{path} from byte {start + first:,}" if start else str(path)
                    yield Chunk(
                        name, number, 1, data[first:last] if mark else _CUT_CHARACTER.sub(b"", data)
                    )
                    break
