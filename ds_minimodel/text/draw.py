"""A draw from more text than training can use: so many bytes from all over it, and hardly more is read.

Plain files are read in blocks that a seeded permutation names, without the documents that a block cuts; of files of
rows, compressed ones and data sets of the Hub, which cannot be entered anywhere, the beginning.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ds_minimodel.common.random import permute
from ds_minimodel.text.reader import CHUNK_BYTES, CUTS, Chunk, Parts, TextSource, bytes_of_text, is_plain, read_chunks

BLOCK_BYTES = 1 << 17


def draw_parts(text: Sequence[TextSource], most: int | None) -> list[Parts]:
    """Of each file and data set the parts, in bytes, of which all have about `most` together; () where it is whole.

    most: None takes all. Of what cannot be entered anywhere one part, as many bytes from the beginning.
    """
    if most is None or sum(sizes := [bytes_of_text([source]) or most for source in text]) <= most:
        return [()] * len(text)
    drawn = list[Parts]()
    for number, (source, size) in enumerate(zip(text, sizes, strict=True)):
        share, parts = max(1, most * size // sum(sizes)), list[tuple[int, int]]()
        if not is_plain(source):
            drawn.append(((0, share),))
            continue
        blocks = -(-size // BLOCK_BYTES)
        for place in np.sort(permute(np.arange(-(-share // BLOCK_BYTES)), blocks, 0, number)).tolist():
            start, end = place * BLOCK_BYTES, min(size, (place + 1) * BLOCK_BYTES)
            if parts and parts[-1][1] == start and start - parts[-1][0] < CHUNK_BYTES:
                start, _ = parts.pop()
            parts.append((start, end))
        drawn.append(tuple(parts))
    return drawn


def read_drawn(text: Sequence[TextSource], most: int | None, column: str) -> Iterator[Chunk]:
    """Chunks of what is drawn; else as read_chunks, but that a plain file's lines count from the start of a block."""
    for number, (source, parts) in enumerate(zip(text, draw_parts(text, most), strict=True)):
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
            for mark in CUTS:
                first = data.find(mark) + len(mark) if start else 0
                last = data.rfind(mark) + len(mark) if end < size else len(data)
                if first < last and (data.find(mark) >= 0 or (start == 0 and end == size)):
                    name = f"{path} from byte {start + first:,}" if start else str(path)
                    yield Chunk(name, number, 1, data[first:last])
                    break
