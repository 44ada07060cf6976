"""Raw text to a token store: streaming, over several processes, resumed where a run was killed.

The text decides where a shard ends (after a fixed amount of it), not the tokens or the number of
workers. So every shard can be made alone, by any process on any machine, with the same bytes.
"""

from __future__ import annotations

import array
import contextlib
import functools
import gc
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.data.reader import Chunk, Position, documents, find_files, read_chunks
from ds_minimodel.data.store import id_type, is_shard_as_written, shard_name, write_shard
from ds_minimodel.data.tokenizer import Tokenizer, open_tokenizer
from ds_minimodel.data.workers import MpiRanks, ordered_map

SHARD_BYTES = 1 << 28  # text of a shard
_SUFFIXES = (".bin", ".idx", ".crc")  # of its files


def prepare(
    text: Sequence[str | Path],
    tokenizer_folder: str | Path,
    out: str | Path,
    min_words: int = 0,
    workers: int = 1,
    ranks: MpiRanks | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int, float], None] | None = None,
) -> None:
    """Tokenise the files that the paths and globs `text` name into the token store `out`.

    Documents of fewer than `min_words` words are dropped. A killed run leaves OUT.partial with its
    complete shards and OUT.progress.json; the next one with the same text and settings goes on after
    them. The store is the same, byte for byte, however often the work was interrupted and for any
    number of `workers`, or of `ranks` (workers.py), which work instead of them where given.
    `progress(documents, tokens, tokens_per_second)` is called as work is done.

    Raises UserError for text that cannot be read (see reader.py), for text of which nothing is left,
    and for a disk that cannot be written.
    """
    paths = find_files(text)
    tokenizer = open_tokenizer(tokenizer_folder)
    settings = {
        "tokenizer_sha256": tokenizer.sha256,
        **tokenizer.vocabulary.facts(),
        "min_words": min_words,
        "shard_bytes": shard_bytes,
    }
    journal = _Journal(out, {**settings, "text": [_version(path) for path in paths]})
    jobs = _in_shards(read_chunks(paths, journal.position), journal.shards, shard_bytes)
    encode = functools.partial(_encode_chunk, tokenizer_folder, min_words)
    report = _reporter(journal.tokens, progress)
    parts = ranks.ordered_map(encode, jobs) if ranks else ordered_map(encode, jobs, workers)
    with journal.kept_with_documents(), contextlib.closing(parts) as encoded:
        for number, parts_of_shard in itertools.groupby(encoded, key=lambda part: part.shard):
            with write_shard(journal.folder, number, tokenizer.vocabulary.size, tokenizer.sha256) as add:
                for part in parts_of_shard:
                    add(part.tokens, part.lengths)
                    journal.count(part)
                    report(journal.documents, journal.tokens)
            journal.commit()
        if not journal.documents:
            raise UserError(
                f"{', '.join(map(str, text))}: no document is left "
                f"({journal.dropped} have fewer than min_words={min_words} words)"
            )
    journal.finish(kind="token_store", text=[[path.name, path.stat().st_size] for path in paths], **settings)


class _Part(NamedTuple):
    """A tokenised chunk: ids of its documents one after another, and the number of ids of each."""

    shard: int
    end: Position
    tokens: np.ndarray
    lengths: np.ndarray
    dropped: int


def _in_shards(chunks: Iterable[Chunk], first: int, shard_bytes: int) -> Iterator[tuple[int, Chunk]]:
    """Number the chunks by shard, from `first` on; each shard holds shard_bytes of text or a bit more."""
    size = 0
    for chunk in chunks:
        yield first, chunk
        size += len(chunk.data)
        if size >= shard_bytes:
            first, size = first + 1, 0


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Leave cyclic garbage where it is: collections would look through a chunk's lists of ids, which hold none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collections()
def _encode_chunk(tokenizer_folder: str | Path, min_words: int, job: tuple[int, Chunk]) -> _Part:
    """Tokenise a (shard, chunk): each line ends in </s>, each document in one more."""
    shard, chunk = job
    tokenizer = _tokenizer_of_worker(tokenizer_folder)
    eos = tokenizer.vocabulary.need("eos", "a token store")
    found = list(documents(chunk))
    kept = [document for document in found if not min_words or sum(len(line.split()) for line in document) >= min_words]
    # All lines in one call: SentencePiece starts a thread for each. An array takes ids three times as fast as a list.
    sentences = iter(tokenizer.encode(list(itertools.chain.from_iterable(kept))))
    tokens, lengths = array.array("I"), []
    for document in kept:
        before = len(tokens)
        for sentence in itertools.islice(sentences, len(document)):
            if sentence:  # nothing is left of some lines, such as one zero-width space
                tokens.fromlist(sentence)
                tokens.append(eos)
        if len(tokens) > before:
            tokens.append(eos)
            lengths.append(len(tokens) - before)
    return _Part(
        shard,
        chunk.end,
        np.array(tokens, id_type(tokenizer.vocabulary.size)),
        np.array(lengths, np.int64),
        len(found) - len(kept),
    )


@functools.lru_cache(maxsize=1)
def _tokenizer_of_worker(folder: str | Path) -> Tokenizer:
    """The tokenizer of a worker process, which opens it once."""
    return open_tokenizer(folder)


def _version(path: Path) -> list:
    """Path, size and modification time of a text file; they differ where it was replaced."""
    facts = path.stat()
    return [str(path), facts.st_size, facts.st_mtime_ns]


def _reporter(tokens_before: int, progress: Callable[[int, int, float], None] | None) -> Callable[[int, int], None]:
    start = time.monotonic()

    def report(documents: int, tokens: int) -> None:
        if progress:
            progress(documents, tokens, (tokens - tokens_before) / max(time.monotonic() - start, 1e-9))

    return report


class _Progress(files.Stored):
    """Structure of OUT.progress.json."""

    job: dict[str, Any]
    position: Annotated[list[files.Count], Field(min_length=3, max_length=3)]
    shards: files.Count
    documents: files.Count
    tokens: files.Count
    dropped: files.Count
    checksums: list[files.Sha256]  # of each shard's .crc


class _Journal:
    """Progress of a store that is being made: complete shards in OUT.partial, the rest in OUT.progress.json.

    `job` describes the text and the settings; what another job left is thrown away.
    """

    def __init__(self, out: str | Path, job: dict[str, Any]):
        self.out = Path(out)
        self.folder = self.out.with_name(f"{self.out.name}.partial")
        self.path = self.out.with_name(f"{self.out.name}.progress.json")
        self.job = job
        left = set(os.listdir(self.folder)) if self.folder.is_dir() else set()
        former = self._former(left)
        self.shards = former.shards if former else 0
        complete = {shard_name(number) + suffix for number in range(self.shards) for suffix in _SUFFIXES}
        with files.clear_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in left - complete:
                (self.folder / name).unlink()
        self.position = Position(*former.position) if former else Position()
        self.documents = former.documents if former else 0
        self.tokens = former.tokens if former else 0
        self.dropped = former.dropped if former else 0
        self.checksums = list(former.checksums) if former else []

    def _former(self, left: set[str]) -> _Progress | None:
        """Progress of the same job so far, where its shards are among the files that are `left`."""
        if not os.path.lexists(self.path):
            return None
        advice = f"delete it and {self.folder}, and run the step prepare again"
        facts = files.read_model(self.path, _Progress, advice)
        complete = all(shard_name(number) + suffix in left for number in range(facts.shards) for suffix in _SUFFIXES)
        return facts if facts.job == self.job and complete else None

    @contextlib.contextmanager
    def kept_with_documents(self) -> Iterator[None]:
        """Where the block fails before anything was tokenised, leave nothing."""
        try:
            yield
        except UserError:
            if not self.documents:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.path.unlink(missing_ok=True)
            raise

    def count(self, part: _Part) -> None:
        """Add a part that the open shard now holds."""
        self.position = part.end
        self.documents += len(part.lengths)
        self.tokens += len(part.tokens)
        self.dropped += part.dropped

    def commit(self) -> None:
        """Record that a shard is complete: a later run starts after it."""
        checksums = self.folder / f"{shard_name(self.shards)}.crc"
        self.checksums.append(files.sha256_of_file(checksums))
        self.shards += 1
        files.write_sealed_json(
            self.path, {"job": self.job, "position": list(self.position), "checksums": self.checksums, **self._totals()}
        )

    def finish(self, **facts: Any) -> None:
        """Give the complete store its name, in place of an older one."""
        for number, checksum in enumerate(self.checksums):
            path = self.folder / shard_name(number)
            with files.clear_write_errors(path):
                is_bound = files.sha256_of_file(path.with_suffix(".crc")) == checksum
                if not is_bound or not is_shard_as_written(path):
                    raise UserError(
                        f"{path}: changed since it was written; delete {self.folder} and run the step prepare again"
                    )
        files.write_manifest(self.folder, **self._totals(), **facts)
        with files.clear_write_errors(self.out):
            if self.out.exists():
                shutil.rmtree(self.out)
            os.replace(self.folder, self.out)
            files.sync_folder(self.out.parent)
            self.path.unlink()

    def _totals(self) -> dict[str, int]:
        return {"shards": self.shards, "documents": self.documents, "tokens": self.tokens, "dropped": self.dropped}
