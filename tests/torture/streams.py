"""Compressed text of several streams at random, whole or not: read as `gzip`, `xz` and `zstd` read it, or refused."""

import gzip
import lzma
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import zstandard

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.reader import read_chunks

SUFFIXES = {suffix: tool for suffix, tool in {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}.items() if shutil.which(tool)}
_SKIPPED = b"\x50\x2a\x4d\x18\x03\0\0\0abc"  # a frame that holds no text


def _stream(suffix: str, data: bytes, rng: random.Random) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data, rng.randint(1, 9))
    if suffix == ".xz":
        check = rng.choice((lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256))
        return lzma.compress(data, check=check, preset=rng.randint(0, 6))
    return zstandard.ZstdCompressor(level=rng.randint(1, 5), write_checksum=rng.random() < 0.8).compress(data)


def _between(rng: random.Random) -> bytes:
    how: list[Callable[[], bytes]] = [
        bytes,
        bytes,
        lambda: bytes(4 * rng.randint(1, 2000)),
        lambda: bytes(rng.randint(1, 9)),
        lambda: rng.choice((_SKIPPED, b"\n", b"\0\0\0x", rng.randbytes(rng.randint(1, 20)))),
    ]
    return rng.choice(how)()


def make_file(rng: random.Random, folder: Path) -> Path:
    """A compressed file; three in four have no damage but what lies between and after their streams."""
    suffix, data = rng.choice(list(SUFFIXES)), b""
    for _ in range(rng.randint(1, 5)):
        text = rng.choice((rng.randbytes(rng.choice((0, 1, 100, 8000))).hex().encode(), b"a line\n" * 10_000))
        data += _stream(suffix, text, rng) + (b"" if rng.random() < 0.5 else _between(rng))
    at, how = rng.randrange(1, len(data)), rng.random()
    if how < 0.1:
        data = data[:at]
    elif how < 0.25:
        data = data[: at - 1] + bytes([data[at - 1] ^ 1 << rng.randrange(8)]) + data[at:]
    path = folder / f"{'flipped' if 0.1 <= how < 0.25 else 'text'}{suffix}"
    path.write_bytes(data)
    return path


def stream_outcome(path: Path) -> str:
    """("refused", "right" or what is wrong) of reading a file, which the format's own tool reads too."""
    tool = subprocess.run([SUFFIXES[path.suffix], "-dc"], stdin=path.open("rb"), capture_output=True)
    right = None if tool.returncode else tool.stdout
    try:
        found = b"".join(chunk.data for chunk in read_chunks([path]))
    except UserError as error:
        if "holds no text" in str(error):
            found = b""
        else:
            is_held = right is None or path.stem == "flipped"  # older versions of a tool see less
            return "refused" if is_held else f"refused what {SUFFIXES[path.suffix]} reads: {error}"
    if right is None:
        return f"read what {SUFFIXES[path.suffix]} refuses: {tool.stderr.decode(errors='replace').strip()}"
    return "right" if found == right or found == b"" == right.strip() else "other text"
