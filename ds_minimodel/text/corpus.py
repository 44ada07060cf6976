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
# Files of a corpus.
_TRAINING = f"training{DOCUMENTS}.gz"
_HELD_OUT = f"held_out{DOCUMENTS}.gz"
_WORDS = "words.json.gz"
_WORD = re.compile(r"\s*\S+|\s+")
# The rest of a UTF-8 character where a block begins, the beginning of one where it ends.
_CUT_CHARACTER = re.compile(
    rb"^[\x80-\xbf]{1,3}|([\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z"
)
_LEVEL = 1  # of compression: six times as fast as the default


class CorpusManifest(files.Manifest):
    """Manifest of a corpus.

    text: names. documents, bytes: of training and held out. dropped: documents. counted: bytes of
    training whose words are counted. repeated_lines: their share.
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

    training, held_out: files that reader.py reads, none where they have no document.
    """

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)
        self.facts = files.read_artifact(folder, CorpusManifest)
        self.training = self._file(_TRAINING, self.facts.documents[0])
        self.held_out = self._file(_HELD_OUT, self.facts.documents[1])

    def _file(self, name: str, count: int) -> list[Path]:
        return [self._folder / name] if count else []

    def words(self) -> Counter[str]:
        """Return how often each word occurs in the counted part of what training can reach, as of
        count_words.
        """
        return Counter(json.loads(gzip.decompress((self._folder / _WORDS).read_bytes())))

    @property
    def share_counted(self) -> float:
        """The share of the bytes that training can reach whose words are counted."""
        return self.facts.counted / self.facts.bytes[0]


def words_of(folders: Iterable[Path]) -> Counter[str]:
    """Return how often each word occurs in some corpora together."""
    return sum((Corpus(folder).words() for folder in folders), Counter[str]())


def count_words(texts: Iterable[Sequence[str]]) -> Counter[str]:
    """Count how often each word occurs in the lines of documents, each with the white space before
    it.
    """
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
    """Write a corpus. It does not depend on the number of workers or ranks.

    Args:
        text: files, globs and data sets.
        out: the artifact.
        held_out: share of the documents that is kept apart.
        min_words: documents of fewer words are dropped.
        column: where files of rows have their text.
        whole_documents: whether lines are kept as they are; else without white space around them
            and without empty ones.
        draw: bytes that are taken, about, of a longer text.
        workers: processes.
        ranks: work instead of them, where given.
        label: of the progress.

    Raises:
        UserError: Text cannot be read, or nothing is left to train on.
    """
    sources = pinned(find_text(text))
    whole_bytes = max(1, bytes_of_text(sources))
    expected_bytes = min(whole_bytes, draw or whole_bytes)
    sort_out = functools.partial(
        _sort_out,
        held_out=held_out,
        min_words=min_words,
        whole_documents=whole_documents,
        share_counted=min(1.0, COUNTED_BYTES / expected_bytes),
    )
    chunks = enumerate(read_drawn(sources, draw, column))
    if ranks:
        parts = ranks.ordered_map(sort_out, chunks)
    else:
        parts = ordered_map(sort_out, chunks, workers=workers, few=FEW_CHUNKS)
    num_documents = np.zeros(2, np.int64)
    sizes = np.zeros(2, np.int64)
    dropped = 0
    counted = 0
    words = Counter[str]()
    lines = [np.zeros(0, np.uint32)]
    with files.atomic_folder(out) as folder, contextlib.ExitStack() as stack:
        progress = Progress(label, None, "documents")
        stack.callback(progress.close)
        written = [
            stack.enter_context((folder / name).open("wb")) for name in (_TRAINING, _HELD_OUT)
        ]
        for part in stack.enter_context(contextlib.closing(parts)):
            for file, data in zip(written, part.texts, strict=True):
                file.write(data)
            num_documents += part.documents
            sizes += part.bytes
            dropped += part.dropped
            # The expected size of compressed text is a guess: so the bound is kept here, too.
            if counted + part.counted <= COUNTED_BYTES:
                counted += part.counted
                words.update(part.words)
                lines.append(part.lines)
            progress.update(int(num_documents.sum()))
        if not num_documents[0]:
            raise UserError(
                f"{', '.join(map(str, text))}: no document is left ({dropped} have fewer than "
                f"min_words={min_words} words, {num_documents[1]} are held out by "
                f"data.held_out={held_out})"
            )
        for file in written:
            file.flush()
        as_json = json.dumps(words, ensure_ascii=False).encode()
        (folder / _WORDS).write_bytes(gzip.compress(as_json, _LEVEL, mtime=0))
        of_lines = np.concatenate(lines)
        repeated = 1 - len(np.unique(of_lines)) / max(1, len(of_lines))
        files.write_manifest(
            folder,
            kind="corpus",
            text=names_of(sources),
            repeated_lines=round(repeated, 4),
            documents=num_documents.tolist(),
            bytes=sizes.tolist(),
            dropped=dropped,
            counted=counted,
        )
        drawn = f", drawn from {whole_bytes:,}" if expected_bytes < whole_bytes else ""
        progress.close(
            f"{sizes[0]:,} bytes{drawn}, and {num_documents[1]:,} documents held out; "
            f"{repeated:.1%} of lines are repetitions"
        )


class _Part(NamedTuple):
    """A sorted chunk. The first three are of training and held out.

    texts: compressed. documents, bytes: how many. dropped: documents. counted: bytes whose words
    are counted. lines: a hash of each counted one.
    """

    texts: list[bytes]
    documents: list[int]
    bytes: list[int]
    dropped: int
    counted: int
    words: Counter[str]
    lines: NDArray[np.uint32]


def _sort_out(
    numbered: tuple[int, Chunk],
    *,
    held_out: float,
    min_words: int,
    whole_documents: bool,
    share_counted: float,
) -> _Part:
    index, chunk = numbered
    dropped = 0
    training: list[list[str]] = []
    apart: list[list[str]] = []
    for lines in documents(chunk, whole_documents):
        if min_words and sum(len(line.split()) for line in lines) < min_words:
            dropped += 1
        elif held_out > 0 and is_held_out(lines, held_out):
            apart.append(lines)
        else:
            training.append(lines)
    texts = [b"".join(map(as_document, side)) for side in (training, apart)]
    # A share of the chunks, spread over all of them; the first one is among them.
    is_counted = math.ceil((index + 1) * share_counted) > math.ceil(index * share_counted)
    counted = training if is_counted else []
    hashes = [zlib.crc32(line.encode()) for lines in counted for line in lines if line.strip()]
    return _Part(
        texts=[gzip.compress(data, _LEVEL, mtime=0) if data else b"" for data in texts],
        documents=[len(training), len(apart)],
        bytes=[len(data) for data in texts],
        dropped=dropped,
        counted=len(texts[0]) if is_counted else 0,
        words=count_words(counted),
        lines=np.array(hashes, np.uint32),
    )


def is_held_out(document: Sequence[str], share: float) -> bool:
    """Return whether a document, a list of lines, is among the `share` of all that is held out: by
    a hash of its text, without empty lines and white space around lines.
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
    """Choose byte ranges of each file and data set, about `max_bytes` in all; () for one that is
    taken whole.

    None takes all. What cannot be read from the middle gets one range at its beginning.
    """
    if max_bytes is None:
        return [()] * len(text)
    sizes = [bytes_of_text([source]) or max_bytes for source in text]
    total = sum(sizes)
    if total <= max_bytes:
        return [()] * len(text)
    drawn: list[Parts] = []
    # Bytes that are still to be drawn up to here: of many small files some give a block for others.
    owed = 0
    for index, (source, size) in enumerate(zip(text, sizes, strict=True)):
        owed += max(1, max_bytes * size // total)
        if owed <= 0:
            drawn.append(NOTHING)
        elif is_plain(source):
            drawn.append(_draw_blocks(size, owed, index))
            owed -= sum(end - start for start, end in drawn[-1])
        else:
            drawn.append(((0, owed),))
            # It is read chunk by chunk, so that this is more at times.
            owed -= max(owed, min(size, CHUNK_BYTES))
    return drawn


def _draw_blocks(size: int, wanted: int, file_index: int) -> Parts:
    """Choose blocks of a plain file of `size` bytes, about `wanted` in all; neighbours are one
    part.
    """
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
    """Yield chunks of the drawn parts, as of read_chunks; but lines of a plain file are counted
    from the part's start.
    """
    for index, (source, parts) in enumerate(zip(text, draw_parts(text, max_bytes), strict=True)):
        if parts == NOTHING:
            continue
        if parts and isinstance(source, Path) and is_plain(source):
            yield from _blocks(source, index, parts)
            continue
        left = parts[0][1] if parts else math.inf
        for chunk in read_chunks([source], column=column):
            yield chunk
            left -= len(chunk.data)
            if left <= 0:
                break


def _blocks(path: Path, file_index: int, parts: Parts) -> Iterator[Chunk]:
    """Yield what the parts of a plain file have between the first and the last good cut."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for start, end in parts:
            file.seek(start)
            data = file.read(end - start)
            is_whole = start == 0 and end == size
            # The last mark is for one line without a space, of which all is taken.
            for mark in (*CUTS, b""):
                first = data.find(mark) + len(mark) if start else 0
                last = data.rfind(mark) + len(mark) if end < size else len(data)
                if data[first:last].strip() and (mark in data or is_whole):
                    yield Chunk(
                        path=f"{path} from byte {start + first:,}" if start else str(path),
                        file=file_index,
                        line=1,
                        data=data[first:last] if mark else _CUT_CHARACTER.sub(b"", data),
                    )
                    break
