"""A corpus is a language's text as one artifact: text is read once, and all other steps read it.

It is a folder of two files of documents in the reader's own form, those that training can reach and
those that are held out, and the counts of words. Of more text than training can use a part is
drawn.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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

# A line that is on so many pages is part of the site, and no text.
MANY_PAGES = 3
# About how much of the text has its words counted.
COUNTED_BYTES = 200_000_000
# Files of a corpus.
_TRAINING = f"training{DOCUMENTS}.gz"
_HELD_OUT = f"held_out{DOCUMENTS}.gz"
_WORDS = "words.json.gz"
_WORD = re.compile(r"\s*\S+|\s+")
# The rest of a UTF-8 character where a block begins, the beginning of one where it ends.
_CUT_CHARACTER = re.compile(
    rb"^[\x80-\xbf]{1,3}|([\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z"
)
# Level of compression: six times as fast as the default.
_LEVEL = 1


class CorpusManifest(files.Manifest):
    """Manifest of a corpus.

    Attributes:
        text: names of files and data sets.
        documents: counts of those of training and of those that are held out.
        bytes: of both.
        dropped: how many documents were too short.
        counted: bytes of training whose words are counted.
        repeated_lines: the share of their lines that repeat an earlier one.
    """

    text: list[str]
    documents: list[files.Count]
    bytes: list[files.Count]
    dropped: files.Count
    counted: files.Count
    repeated_lines: files.Amount

    noun = "a corpus; run the step corpus"
    kinds = ("corpus",)
    required = ((_TRAINING,), (_HELD_OUT,), (_WORDS,))


class Corpus:
    """A corpus on disk.

    Attributes:
        facts: the manifest.
        training: files that reader.py reads; none where there is no document.
        held_out: files of the documents that training cannot reach.
    """

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)
        self.facts = files.read_artifact(folder, CorpusManifest)
        self.training = self._file(_TRAINING, self.facts.documents[0])
        self.held_out = self._file(_HELD_OUT, self.facts.documents[1])

    def _file(self, name: str, count: int) -> list[Path]:
        return [self._folder / name] if count else []

    def words(self) -> Counter[str]:
        """Return `count_words` of the counted part of what training can reach."""
        return Counter(json.loads(gzip.decompress((self._folder / _WORDS).read_bytes())))

    @property
    def share_counted(self) -> float:
        """The share of the bytes that training can reach whose words are counted."""
        return self.facts.counted / self.facts.bytes[0]


def words_of(folders: Iterable[Path]) -> Counter[str]:
    """Return how often each word occurs in some corpora together."""
    return sum((Corpus(folder).words() for folder in folders), Counter[str]())


def count_words(texts: Iterable[Sequence[str]]) -> Counter[str]:
    """Count how often each word, with the white space before it, occurs in lines of documents."""
    return Counter(
        word for lines in texts for line in lines if line.strip() for word in _WORD.findall(line)
    )


@dataclass(frozen=True)
class CorpusOptions:
    """What decides, beside the text, which documents a corpus has.

    Args:
        held_out: share of the documents that is kept apart.
        min_words: documents of fewer words are dropped.
        column: where files of rows have their text.
        whole_documents: whether lines are kept as they are; else without white space around them
            and without empty ones.
        draw: bytes that are taken, about, of a longer text.
    """

    held_out: float = 0.0
    min_words: int = 0
    column: str = COLUMN
    whole_documents: bool = False
    draw: int | None = None


def make_corpus(
    text: Sequence[str | Path],
    out: str | Path,
    options: CorpusOptions,
    workers: int = 1,
    ranks: MpiRanks | None = None,
) -> None:
    """Write a corpus, the same for any number of workers or ranks.

    Args:
        text: files, globs and data sets.
        out: the artifact; its name is that of the language in the line of progress.
        options: which documents it has.
        workers: processes.
        ranks: work instead of them, where given.

    Raises:
        UserError: Text cannot be read, or nothing is left to train on.
    """
    sources = pinned(find_text(text))
    whole_bytes = max(1, bytes_of_text(sources))
    expected_bytes = min(whole_bytes, options.draw or whole_bytes)
    sort_out = functools.partial(
        _sort_out, options=options, share_counted=min(1.0, COUNTED_BYTES / expected_bytes)
    )
    chunks = enumerate(read_drawn(sources, options.draw, options.column))
    if ranks:
        parts = ranks.ordered_map(sort_out, chunks)
    else:
        parts = ordered_map(sort_out, chunks, workers=workers, few=FEW_CHUNKS)
    totals = _Totals()
    with files.atomic_folder(out) as folder, contextlib.ExitStack() as stack:
        progress = Progress(f"corpus {Path(out).name}", None, "documents")
        stack.callback(progress.close)
        outputs = [
            stack.enter_context((folder / name).open("wb")) for name in (_TRAINING, _HELD_OUT)
        ]
        for part in stack.enter_context(contextlib.closing(parts)):
            for file, data in zip(outputs, part.texts, strict=True):
                file.write(data)
            totals.add(part)
            progress.update(int(totals.documents.sum()))
        num_training, num_held_out = totals.documents.tolist()
        if not num_training:
            raise UserError(
                f"{', '.join(map(str, text))}: no document is left ({totals.dropped} have fewer "
                f"than min_words={options.min_words} words, {num_held_out} are held out by "
                f"data.held_out={options.held_out})"
            )
        for file in outputs:
            file.flush()
        as_json = json.dumps(totals.words, ensure_ascii=False).encode()
        (folder / _WORDS).write_bytes(gzip.compress(as_json, _LEVEL, mtime=0))
        repeated = totals.repeated_lines()
        files.write_manifest(
            folder,
            kind="corpus",
            text=names_of(sources),
            repeated_lines=round(repeated, 4),
            documents=totals.documents.tolist(),
            bytes=totals.bytes.tolist(),
            dropped=totals.dropped,
            counted=totals.counted,
        )
        drawn = f", drawn from {whole_bytes:,}" if expected_bytes < whole_bytes else ""
        progress.close(
            f"{totals.bytes[0]:,} bytes{drawn}, and {num_held_out:,} documents held out; "
            f"{repeated:.1%} of lines are repetitions"
        )


class _Part(NamedTuple):
    """A sorted chunk.

    Attributes:
        texts: of training and of what is held out, compressed.
        documents: how many these two are.
        bytes: how long they are.
        dropped: how many documents were too short.
        counted: bytes whose words are counted.
        words: how often each occurs there.
        line_hashes: of each line there.
    """

    texts: list[bytes]
    documents: list[int]
    bytes: list[int]
    dropped: int
    counted: int
    words: Counter[str]
    line_hashes: NDArray[np.uint32]


class _Totals:
    """Sums over parts.

    Attributes:
        documents: (2,) of training and of what is held out.
        bytes: (2,) of both.
        dropped: how many documents were too short.
        counted: bytes whose words are counted.
        words: how often each occurs there.
    """

    def __init__(self) -> None:
        self.documents = np.zeros(2, np.int64)
        self.bytes = np.zeros(2, np.int64)
        self.dropped = 0
        self.counted = 0
        self.words = Counter[str]()
        self._line_hashes = [np.zeros(0, np.uint32)]

    def add(self, part: _Part) -> None:
        """Add a part; its words count as far as COUNTED_BYTES go."""
        self.documents += part.documents
        self.bytes += part.bytes
        self.dropped += part.dropped
        # The expected size of compressed text is a guess: so the bound is kept here, too.
        if self.counted + part.counted <= COUNTED_BYTES:
            self.counted += part.counted
            self.words.update(part.words)
            self._line_hashes.append(part.line_hashes)

    def repeated_lines(self) -> float:
        """Return the share of the counted lines that repeat an earlier one."""
        hashes = np.concatenate(self._line_hashes)
        return 1 - len(np.unique(hashes)) / max(1, len(hashes))


def _sort_out(
    numbered: tuple[int, Chunk], *, options: CorpusOptions, share_counted: float
) -> _Part:
    """Sort the documents of a chunk, which comes with its index.

    Args:
        numbered: (index, chunk).
        options: of the corpus.
        share_counted: of the chunks, whose words are counted.
    """
    index, chunk = numbered
    dropped = 0
    training: list[list[str]] = []
    held_out: list[list[str]] = []
    for lines in documents(chunk, whole=options.whole_documents):
        num_words = sum(len(line.split()) for line in lines) if options.min_words else 0
        if num_words < options.min_words:
            dropped += 1
        elif options.held_out > 0 and is_held_out(lines, options.held_out):
            held_out.append(lines)
        else:
            training.append(lines)
    texts = [b"".join(map(as_document, side)) for side in (training, held_out)]
    # Words are counted in a share of the chunks, spread evenly, the first one among them: in those
    # at which the count that is due rises.
    num_due_before = math.ceil(index * share_counted)
    num_due = math.ceil((index + 1) * share_counted)
    is_counted = num_due > num_due_before
    counted = training if is_counted else []
    hashes = [zlib.crc32(line.encode()) for lines in counted for line in lines if line.strip()]
    return _Part(
        texts=[gzip.compress(data, _LEVEL, mtime=0) if data else b"" for data in texts],
        documents=[len(training), len(held_out)],
        bytes=[len(data) for data in texts],
        dropped=dropped,
        counted=len(texts[0]) if is_counted else 0,
        words=count_words(counted),
        line_hashes=np.array(hashes, np.uint32),
    )


def is_held_out(document: Sequence[str], share: float) -> bool:
    """Return whether a document is among the share of all that is held out.

    It is by a hash of its text, without empty lines and white space around lines.

    Args:
        document: its lines.
        share: of all documents.
    """
    text = "\n".join(filter(None, map(str.strip, document)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


# --- A draw from more text than training can use ---
#
# So many bytes from all over it, and hardly more is read. Plain files are read in blocks that a
# seeded permutation names, without the documents that a block cuts; of files of rows, compressed
# ones and data sets of the Hub, which cannot be entered anywhere, the beginning. A file of rows is
# read through once all the same: what tells it from others is the whole of it.

BLOCK_BYTES = 1 << 17


def draw_parts(text: Sequence[TextSource], max_bytes: int | None) -> list[Parts]:
    """Choose byte ranges of each file and data set, about `max_bytes` in all; None takes all.

    What cannot be read from the middle gets one range at its beginning.

    Returns:
        The ranges of each; () for one that is taken whole.
    """
    if max_bytes is None:
        return [()] * len(text)
    sizes = [bytes_of_text([source]) or max_bytes for source in text]
    total = sum(sizes)
    if total <= max_bytes:
        return [()] * len(text)
    drawn: list[Parts] = []
    # Each source adds its share to the bytes that are due, and what is drawn of it is taken off. Of
    # many small files, one that gives a whole block so pays for the next ones, which give nothing.
    due = 0
    for index, (source, size) in enumerate(zip(text, sizes, strict=True)):
        due += max(1, max_bytes * size // total)
        if due <= 0:
            drawn.append(NOTHING)
        elif is_plain(source):
            parts = _draw_blocks(size, due, index)
            drawn.append(parts)
            due -= sum(end - start for start, end in parts)
        else:
            drawn.append(((0, due),))
            # It is read by whole chunks, so at least one chunk is drawn.
            due -= max(due, min(size, CHUNK_BYTES))
    return drawn


def _draw_blocks(size: int, wanted: int, file_index: int) -> Parts:
    """Choose blocks of about `wanted` bytes in a plain file of `size`; neighbours are joined."""
    num_blocks = math.ceil(size / BLOCK_BYTES)
    num_drawn = min(num_blocks, math.ceil(wanted / BLOCK_BYTES))
    drawn = permute(np.arange(num_drawn), num_blocks, seed=0, epoch=file_index)
    parts: list[tuple[int, int]] = []
    for block in np.sort(drawn).tolist():
        start = block * BLOCK_BYTES
        end = min(size, start + BLOCK_BYTES)
        if parts and parts[-1][1] == start and start - parts[-1][0] < CHUNK_BYTES:
            start, _ = parts.pop()
        parts.append((start, end))
    return tuple(parts)


def read_drawn(text: Sequence[TextSource], max_bytes: int | None, column: str) -> Iterator[Chunk]:
    """Yield chunks of the drawn parts, as of read_chunks.

    But lines of a plain file of which parts are drawn are counted from the part's start.
    """
    for index, (source, parts) in enumerate(zip(text, draw_parts(text, max_bytes), strict=True)):
        if parts == NOTHING:
            continue
        if parts and isinstance(source, Path) and is_plain(source):
            yield from _blocks(source, index, parts)
            continue
        # What cannot be entered anywhere has one part, from its beginning on.
        wanted = parts[0][1] if parts else math.inf
        for chunk in read_chunks([source], column=column):
            yield chunk
            wanted -= len(chunk.data)
            if wanted <= 0:
                break


def _blocks(path: Path, file_index: int, parts: Parts) -> Iterator[Chunk]:
    """Yield what the parts of a plain file have between the first and the last good cut."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for start, end in parts:
            file.seek(start)
            data = file.read(end - start)
            begins_file = start == 0
            ends_file = end >= size
            # The best mark is taken that leaves some text. The last one, which is in all data, is
            # for a line without a space, which is taken as a whole.
            for mark in (*CUTS, b""):
                if mark not in data and not (begins_file and ends_file):
                    continue
                first = 0 if begins_file else data.find(mark) + len(mark)
                last = len(data) if ends_file else data.rfind(mark) + len(mark)
                if data[first:last].strip():
                    yield Chunk(
                        path=f"{path} from byte {start + first:,}" if start else str(path),
                        file=file_index,
                        line=1,
                        data=data[first:last] if mark else _CUT_CHARACTER.sub(b"", data),
                    )
                    break
