"""Text becomes a token store, streamed over several processes.

The text decides where a shard ends (after a fixed amount of it), not the tokens or the number of
workers. So every shard can be made alone, by any process on any machine, with the same bytes.
"""

from __future__ import annotations

import array
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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

# Bytes of text in a shard.
SHARD_BYTES = 1 << 28


@dataclass(frozen=True)
class StoreText:
    """The text that a token store is made of.

    Args:
        files: as reader.find_text takes them.
        held_out: files that go into a second store, in the folder HELD_OUT of the first.
        names: what the manifest says of the text; by default the names of `files`.
        whole_documents: whether a document is one text, with its line ends, instead of a sentence
            a line.
    """

    files: Sequence[str | Path]
    held_out: Sequence[str | Path] | None = None
    names: Sequence[str] = ()
    whole_documents: bool = False


def prepare(
    text: StoreText,
    tokenizer_folder: str | Path,
    out: str | Path,
    workers: int = 1,
    ranks: MpiRanks | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] = lambda documents, tokens: None,
) -> float:
    """Tokenise files into a token store, the same byte for byte for any number of processes.

    Args:
        text: the files.
        tokenizer_folder: folder of the tokenizer.
        out: folder of the new store.
        workers: processes of this machine that tokenise.
        ranks: ranks of MPI that tokenise instead of the workers.
        shard_bytes: bytes of text in a shard.
        progress: is called with the documents and tokens so far as work is done.

    Returns:
        The share of the text's bytes that the vocabulary has no piece for.

    Raises:
        UserError: where text cannot be read, no document has tokens, or the disk cannot be
            written.
    """
    paths = find_text(text.files)
    held_out_paths = find_text(text.held_out or ())
    tokenizer = open_tokenizer(tokenizer_folder)
    encode = functools.partial(
        _encode_chunk,
        tokenizer_folder=tokenizer_folder,
        sha256=tokenizer.sha256,
        num_training_files=len(paths),
        whole_documents=text.whole_documents,
    )
    jobs = _in_shards(read_chunks(paths + held_out_paths), shard_bytes)
    if ranks:
        parts = ranks.ordered_map(encode, jobs)
    else:
        parts = ordered_map(encode, jobs, workers=workers, few=FEW_CHUNKS)
    with files.atomic_folder(out) as folder, contextlib.closing(parts) as encoded:
        folders = [folder] if text.held_out is None else [folder, folder / HELD_OUT]
        totals = _write_shards(encoded, folders, tokenizer=tokenizer, progress=progress)
        if not totals.documents[0]:
            raise UserError(f"{', '.join(map(str, text.files))}: no document has tokens; add text")
        # The outer folder's manifest lists the files of the inner one, which is finished first.
        for index in reversed(range(len(folders))):
            files.write_manifest(
                folders[index],
                kind="token_store",
                text=[*text.names] or names_of(paths),
                tokenizer_sha256=tokenizer.sha256,
                **tokenizer.vocabulary.facts(),
                shard_bytes=shard_bytes,
                whole_documents=text.whole_documents,
                shards=totals.shards,
                documents=totals.documents[index],
                tokens=totals.tokens[index],
                text_bytes=totals.bytes,
                unknown_bytes=totals.unknown,
            )
    return totals.unknown / totals.bytes


@dataclass
class _Totals:
    """What was written: documents and tokens of each store, and sums over all."""

    documents: list[int]
    tokens: list[int]
    shards: int = 0
    bytes: int = 0
    unknown: int = 0


def _write_shards(
    parts: Iterable[_Part],
    folders: Sequence[Path],
    tokenizer: Tokenizer,
    progress: Callable[[int, int], None],
) -> _Totals:
    """Write the parts, which come in the order of their shards, into the stores of `folders`."""
    totals = _Totals([0] * len(folders), [0] * len(folders))
    for shard, parts_of_shard in itertools.groupby(parts, key=lambda part: part.shard):
        with contextlib.ExitStack() as open_shards:
            adds = [
                open_shards.enter_context(
                    write_shard(
                        store,
                        index=shard,
                        num_ids=tokenizer.vocabulary.size,
                        tokenizer_sha256=tokenizer.sha256,
                    )
                )
                for store in folders
            ]
            for part in parts_of_shard:
                adds[part.store](part.ids, part.lengths)
                totals.documents[part.store] += len(part.lengths)
                totals.tokens[part.store] += len(part.ids)
                totals.bytes += part.bytes
                totals.unknown += part.unknown
                progress(totals.documents[0], totals.tokens[0])
        totals.shards = shard + 1
    return totals


class _Part(NamedTuple):
    """A tokenised chunk.

    Attributes:
        shard: index of its shard.
        store: index of its store: 0, or 1 for what is held out.
        ids: of its documents, one after another.
        lengths: how many ids each document has.
        bytes: of its text.
        unknown: bytes of it that no piece covers.
    """

    shard: int
    store: int
    ids: np.ndarray
    lengths: np.ndarray
    bytes: int
    unknown: int


def _in_shards(chunks: Iterable[Chunk], shard_bytes: int) -> Iterator[tuple[int, Chunk]]:
    """Number the chunks by shard; each shard holds shard_bytes of text or a bit more."""
    shard = 0
    size = 0
    for chunk in chunks:
        yield shard, chunk
        size += len(chunk.data)
        if size >= shard_bytes:
            shard += 1
            size = 0


# One tokenizer a process is kept. Its hash is in the key, as a folder may get another one.
@functools.lru_cache(maxsize=1)
def _opened(folder: str | Path, sha256: str) -> Tokenizer:
    return open_tokenizer(folder)


def _encode_chunk(
    job: tuple[int, Chunk],
    *,
    tokenizer_folder: str | Path,
    sha256: str,
    num_training_files: int,
    whole_documents: bool,
) -> _Part:
    """Tokenise a chunk.

    Each line ends in the vocabulary's end of text, each document in one more; a whole document is
    one text, which ends in one.

    Args:
        job: (shard, chunk).
        tokenizer_folder: folder of the tokenizer.
        sha256: of the tokenizer.
        num_training_files: the files behind so many are held out.
        whole_documents: whether a document is one text.
    """
    shard, chunk = job
    tokenizer = _opened(tokenizer_folder, sha256)
    eos = tokenizer.vocabulary.require("eos", "a token store")
    texts_of_documents = [*documents(chunk, whole=whole_documents)]
    if whole_documents:
        texts_of_documents = [["\n".join(lines)] for lines in texts_of_documents]
    # All lines go in one call, for which SentencePiece starts its threads once.
    texts = list(itertools.chain.from_iterable(texts_of_documents))
    sentences = tokenizer.encode(texts)
    unknown = sum(
        size for pair in zip(texts, sentences, strict=True) for _, size in tokenizer.unknown(*pair)
    )
    # An array takes ids three times as fast as a list.
    tokens = array.array("I")
    lengths: list[int] = []
    rest = iter(sentences)
    for document in texts_of_documents:
        before = len(tokens)
        for sentence in itertools.islice(rest, len(document)):
            # Nothing is left of some lines, such as one zero-width space.
            if sentence:
                tokens.fromlist(sentence)
                tokens.append(eos)
        if len(tokens) > before:
            if not whole_documents:
                tokens.append(eos)
            lengths.append(len(tokens) - before)
    return _Part(
        shard=shard,
        store=0 if chunk.file < num_training_files else 1,
        ids=np.array(tokens, id_type(tokenizer.vocabulary.size)),
        lengths=np.array(lengths, np.int64),
        bytes=len(chunk.data),
        unknown=unknown,
    )
