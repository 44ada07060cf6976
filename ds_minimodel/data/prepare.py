"""Text to a token store: streaming, over several processes, resumed where a run was killed.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.data.samples import HELD_OUT
from ds_minimodel.data.store import id_type, shard_name, write_shard
from ds_minimodel.text.reader import Chunk, Position, documents, find_text, identity_of_text, names_of, read_chunks
from ds_minimodel.text.workers import MpiRanks, ordered_map
from ds_minimodel.vocabulary.tokenizer import Tokenizer, open_tokenizer

SHARD_BYTES = 1 << 28  # text of a shard
_SUFFIXES = (".bin", ".idx")  # of its files
_opened_once = functools.lru_cache(maxsize=1)(open_tokenizer)  # by each process


def prepare(
    text: Sequence[str | Path],
    tokenizer_folder: str | Path,
    out: str | Path,
    workers: int = 1,
    ranks: MpiRanks | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] = lambda documents, tokens: None,
    held_out: Sequence[str | Path] | None = None,
    whole_documents: bool = False,
    names: Sequence[str] = (),
) -> float:
    """Tokenise the files `text` into the token store `out`; return the share of their bytes that the vocabulary has no
    piece for.

    held_out: files that go, where given, into a store of their own, in the folder HELD_OUT of `out`.
    whole_documents: whether a document is one text, with its line ends, instead of a sentence a line.
    names: what the manifest says of the text, its files' by default.
    A killed run leaves OUT.partial with its complete shards and OUT.progress.json; the next one with the same text and
    settings goes on after them. The store is the same, byte for byte, however often the work was interrupted and for
    any number of `workers`, or of `ranks` (workers.py), which work instead of them where given.
    `progress(documents, tokens)` is called as work is done.

    Raises UserError for text that cannot be read (see reader.py), for text of which nothing is left,
    and for a disk that cannot be written.
    """
    paths = find_text(text)
    every = paths + find_text(held_out or ())
    tokenizer = open_tokenizer(tokenizer_folder)
    settings = {
        "tokenizer_sha256": tokenizer.sha256,
        **tokenizer.vocabulary.facts(),
        "shard_bytes": shard_bytes,
        "whole_documents": whole_documents,
    }
    stores = ("",) if held_out is None else ("", HELD_OUT)
    job, _ = files.as_json({**settings, "text": identity_of_text(every), "files": [len(paths), len(stores)]}, {})
    journal = _Journal(out, stores, job)
    jobs = _in_shards(read_chunks(every, journal.position), journal.shards, shard_bytes)
    encode = functools.partial(_encode_chunk, tokenizer_folder, len(paths), len(stores), whole_documents)
    parts = ranks.ordered_map(encode, jobs) if ranks else ordered_map(encode, jobs, workers)
    with journal.kept_with_documents(), contextlib.closing(parts) as encoded:
        for number, parts_of_shard in itertools.groupby(encoded, key=lambda part: part.shard):
            with contextlib.ExitStack() as shards:
                adds = [
                    shards.enter_context(write_shard(folder, number, tokenizer.vocabulary.size, tokenizer.sha256))
                    for folder in journal.folders
                ]
                for part in parts_of_shard:
                    for add, tokens in zip(adds, part.stores, strict=True):
                        add(tokens.ids, tokens.lengths)
                    journal.count(part)
                    progress(journal.counts[0].documents, journal.counts[0].tokens)
            journal.commit()
        if not journal.counts[0].documents:
            raise UserError(f"{', '.join(map(str, text))}: no document has tokens; add text")
    journal.finish(kind="token_store", text=[*names] or names_of(paths), **settings)
    return journal.unknown_bytes / journal.bytes


class _Tokens(NamedTuple):
    """Tokenised documents: their ids one after another, the number of ids of each, and bytes that no piece is of."""

    ids: np.ndarray
    lengths: np.ndarray
    unknown: int


class _Part(NamedTuple):
    """A tokenised chunk: the documents of each store. bytes: of its text."""

    shard: int
    end: Position
    bytes: int
    stores: list[_Tokens]


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
def _encode_chunk(
    tokenizer_folder: str | Path, first_held_out: int, stores: int, whole_documents: bool, job: tuple[int, Chunk]
) -> _Part:
    """Tokenise a (shard, chunk) for one of the `stores`: held out are the files from number `first_held_out` on."""
    shard, chunk = job
    texts = [[*documents(chunk, whole_documents)], list[list[str]]()][:stores]
    if chunk.start.file >= first_held_out:
        texts.reverse()
    parts = [_encode(_opened_once(tokenizer_folder), store, whole_documents) for store in texts]
    return _Part(shard, chunk.end, len(chunk.data), parts)


def _encode(tokenizer: Tokenizer, kept: list[list[str]], whole_documents: bool) -> _Tokens:
    """Tokenise documents: each line ends in the vocabulary's end of text, each document in one more.

    whole_documents: a document is one text instead, which ends in one.
    """
    eos = tokenizer.vocabulary.require("eos", "a token store")
    if whole_documents:
        kept = [["\n".join(document)] for document in kept]
    # All lines in one call: SentencePiece starts a thread for each. An array takes ids three times as fast as a list.
    sentences = tokenizer.encode(texts := list(itertools.chain.from_iterable(kept)))
    unknown = sum(size for pair in zip(texts, sentences, strict=True) for _, size in tokenizer.unknown(*pair))
    tokens, lengths = array.array("I"), []
    rest = iter(sentences)
    for document in kept:
        before = len(tokens)
        for sentence in itertools.islice(rest, len(document)):
            if sentence:  # nothing is left of some lines, such as one zero-width space
                tokens.fromlist(sentence)
                tokens.append(eos)
        if len(tokens) > before:
            if not whole_documents:
                tokens.append(eos)
            lengths.append(len(tokens) - before)
    return _Tokens(np.array(tokens, id_type(tokenizer.vocabulary.size)), np.array(lengths, np.int64), unknown)


class _Progress(files.Stored):
    """Structure of OUT.progress.json."""

    job: dict[str, Any]
    position: Annotated[list[files.Count], Field(min_length=3, max_length=3)]
    shards: files.Count
    counts: list[Annotated[list[files.Count], Field(min_length=2, max_length=2)]]  # of each store, as of _Counts
    bytes: files.Count
    unknown_bytes: files.Count


class _Counts(NamedTuple):
    """What a store holds so far."""

    documents: int = 0
    tokens: int = 0


class _Journal:
    """Progress of stores that are being made: complete shards in OUT.partial, the rest in OUT.progress.json.

    `job` describes the text and the settings; what another job left is thrown away. stores: folders below OUT, of which
    the first is OUT itself; all have the same number of shards.
    """

    def __init__(self, out: str | Path, stores: Sequence[str], job: dict[str, Any]):
        self.out = Path(out)
        self.folder = self.out.with_name(f"{self.out.name}.partial")
        self.path = self.out.with_name(f"{self.out.name}.progress.json")
        self.folders, self.job = [self.folder / store for store in stores], job
        left = {path for path in self.folder.rglob("*") if path.is_symlink() or not path.is_dir()}
        former = self._former(left)
        self.shards = former.shards if former else 0
        with files.clear_write_errors(self.folder):
            for path in left.difference(self._files(self.shards)):
                path.unlink()
            for folder in self.folders:
                folder.mkdir(parents=True, exist_ok=True)
        self.position = Position(*former.position) if former else Position()
        self.counts = [_Counts(*counts) for counts in former.counts] if former else [_Counts() for _ in stores]
        self.bytes, self.unknown_bytes = (former.bytes, former.unknown_bytes) if former else (0, 0)

    def _former(self, left: set[Path]) -> _Progress | None:
        """Progress of the same job so far, where its shards are among the files that are `left`."""
        if not os.path.lexists(self.path):
            return None
        advice = f"delete it and {self.folder}, and run the step prepare again"
        facts = files.read_model(self.path, _Progress, advice)
        return facts if facts.job == self.job and left.issuperset(self._files(facts.shards)) else None

    def _files(self, shards: int) -> Iterator[Path]:
        """Of the first shards of every store."""
        for number, folder, suffix in itertools.product(range(shards), self.folders, _SUFFIXES):
            yield folder / f"{shard_name(number)}{suffix}"

    @contextlib.contextmanager
    def kept_with_documents(self) -> Iterator[None]:
        """Where the block fails before anything was tokenised, leave nothing."""
        try:
            yield
        except UserError:
            if not self.counts[0].documents:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.path.unlink(missing_ok=True)
            raise

    def count(self, part: _Part) -> None:
        """Add a part that the open shard now holds."""
        self.position = part.end
        self.counts = [
            _Counts(documents + len(of_store.lengths), tokens + len(of_store.ids))
            for (documents, tokens), of_store in zip(self.counts, part.stores, strict=True)
        ]
        self.bytes += part.bytes
        self.unknown_bytes += sum(of_store.unknown for of_store in part.stores)

    def commit(self) -> None:
        """Record that a shard is complete: a later run starts after it."""
        self.shards += 1
        progress = {key: getattr(self, key) for key in _Progress.model_fields}
        files.write_json(self.path, progress)

    def finish(self, **facts: Any) -> None:
        """Give the complete store its name, in place of an older one."""
        for folder, counts in reversed([*zip(self.folders, self.counts, strict=True)]):
            totals = {"shards": self.shards, **counts._asdict()}
            totals |= {"text_bytes": self.bytes, "unknown_bytes": self.unknown_bytes}
            files.write_manifest(folder, **totals, **facts)
        with files.clear_write_errors(self.out):
            if self.out.exists():
                shutil.rmtree(self.out)
            os.replace(self.folder, self.out)
            files.sync(self.out.parent)
            self.path.unlink()
