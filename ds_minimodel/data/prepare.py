"""Text to a token store: streaming, over several processes.

The text decides where a shard ends (after a fixed amount of it), not the tokens or the number of
workers. So every shard can be made alone, by any process on any machine, with the same bytes.
"""

from __future__ import annotations

import array
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.data.samples import HELD_OUT
from ds_minimodel.data.store import id_type, write_shard
from ds_minimodel.text.reader import Chunk, documents, find_text, names_of, read_chunks
from ds_minimodel.text.workers import FEW_CHUNKS, MpiRanks, ordered_map
from ds_minimodel.tokenizers.tokenizer import Tokenizer, open_tokenizer

SHARD_BYTES = 1 << 28  # text of a shard


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
    """Tokenise the files `text` into the token store `out`; return the share of their bytes that
    the vocabulary has no piece for.

    held_out: files that go, where given, into a store of their own, in the folder HELD_OUT of
    `out`. whole_documents: whether a document is one text, with its line ends, instead of a
    sentence a line. names: what the manifest says of the text, its files' by default. The store is
    the same, byte for byte, for any number of `workers`, or of `ranks` (workers.py), which work
    instead of them where given. `progress(documents, tokens)` is called as work is done.

    Raises UserError for text that cannot be read (see reader.py), for text of which nothing is
    left, and for a disk that cannot be written.
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
    stores = 1 if held_out is None else 2
    encode = functools.partial(
        _encode_chunk, tokenizer_folder, tokenizer.sha256, len(paths), whole_documents
    )
    jobs = _in_shards(read_chunks(every), shard_bytes)
    parts = (
        ranks.ordered_map(encode, jobs) if ranks else ordered_map(encode, jobs, workers, FEW_CHUNKS)
    )
    counts, num_bytes, unknown, shards = np.zeros((stores, 2), np.int64), 0, 0, 0
    with files.atomic_folder(out) as folder, contextlib.closing(parts) as encoded:
        folders = [folder, folder / HELD_OUT][:stores]
        for number, parts_of_shard in itertools.groupby(encoded, key=lambda part: part.shard):
            with contextlib.ExitStack() as open_shards:
                adds = [
                    open_shards.enter_context(
                        write_shard(own, number, tokenizer.vocabulary.size, tokenizer.sha256)
                    )
                    for own in folders
                ]
                for part in parts_of_shard:
                    adds[part.store](part.ids, part.lengths)
                    counts[part.store] += len(part.lengths), len(part.ids)
                    num_bytes += part.bytes
                    unknown += part.unknown
                    progress(*counts[0].tolist())
            shards = number + 1
        if not counts[0, 0]:
            raise UserError(f"{', '.join(map(str, text))}: no document has tokens; add text")
        facts = {"shards": shards, "text_bytes": num_bytes, "unknown_bytes": unknown, **settings}
        for own, (documents_of, tokens_of) in reversed(
            [*zip(folders, counts.tolist(), strict=True)]
        ):
            facts |= {
                "documents": documents_of,
                "tokens": tokens_of,
                "text": [*names] or names_of(paths),
            }
            files.write_manifest(own, kind="token_store", **facts)
    return unknown / num_bytes


class _Part(NamedTuple):
    """A tokenised chunk, of the store of that number: ids of its documents one after another, and
    how many each has; bytes: of its text; unknown: those that no piece is of.
    """

    shard: int
    store: int
    ids: np.ndarray
    lengths: np.ndarray
    bytes: int
    unknown: int


def _in_shards(chunks: Iterable[Chunk], shard_bytes: int) -> Iterator[tuple[int, Chunk]]:
    """Number the chunks by shard; each shard holds shard_bytes of text or a bit more."""
    shard = size = 0
    for chunk in chunks:
        yield shard, chunk
        size += len(chunk.data)
        if size >= shard_bytes:
            shard, size = shard + 1, 0


@functools.lru_cache(maxsize=1)  # in each process; a folder may get another one
def _opened(folder: str | Path, sha256: str) -> Tokenizer:
    return open_tokenizer(folder)


def _encode_chunk(
    tokenizer_folder: str | Path,
    sha256: str,
    first_held_out: int,
    whole_documents: bool,
    job: tuple[int, Chunk],
) -> _Part:
    """Tokenise a (shard, chunk); held out are the files from number `first_held_out` on. sha256: of
    the tokenizer.

    Each line ends in the vocabulary's end of text, each document in one more. whole_documents: a
    document is one text instead, which ends in one.
    """
    (shard, chunk), tokenizer = job, _opened(tokenizer_folder, sha256)
    eos = tokenizer.vocabulary.require("eos", "a token store")
    kept = [*documents(chunk, whole_documents)]
    if whole_documents:
        kept = [["\n".join(document)] for document in kept]
    # All lines in one call: SentencePiece starts a thread for each. An array takes ids three times
    # as fast as a list.
    sentences = tokenizer.encode(texts := list(itertools.chain.from_iterable(kept)))
    unknown = sum(
        size for pair in zip(texts, sentences, strict=True) for _, size in tokenizer.unknown(*pair)
    )
    tokens, lengths = array.array("I"), list[int]()
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
    store, ids = (
        int(chunk.file >= first_held_out),
        np.array(tokens, id_type(tokenizer.vocabulary.size)),
    )
    return _Part(shard, store, ids, np.array(lengths, np.int64), len(chunk.data), unknown)
