"""Extension of a base's vocabulary by pieces of another language: the merges of a byte-level BPE go on where they end.

A text is cut as before, and then by the new merges: they join pieces that the old ones leave side by side. So a text in
which no new piece occurs keeps its ids. Pieces that occur in text of the source language are not taken.
"""

from __future__ import annotations

import heapq
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Runner

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.progress import Progress
from ds_minimodel.common.vocabulary import VocabularyManifest
from ds_minimodel.data.reader import COLUMN, find_text, names_of, pinned, read_documents
from ds_minimodel.data.tokenizer import JSON_FILE, TokenizerJson

FEWEST = 2  # occurrences of a new piece in the text
_LONGEST = 32  # pieces of a word that are looked at together
Merge = tuple[str, str]


@dataclass(frozen=True)
class Extension:
    """What a text makes of a base's vocabulary.

    words, num_bytes, tokens: of the text; the tokens are the base's. merges: the further ones, best first. counts: how
    often each occurs in the text as it is cut by those before it.
    """

    file: TokenizerJson
    words: int
    num_bytes: int
    tokens: int
    merges: Sequence[Merge]
    counts: Sequence[int]

    def tokens_with(self, number: int) -> int:
        """Tokens of the text with so many new pieces."""
        return self.tokens - sum(self.counts[:number])


def read_extension(
    base: str | Path,
    text: Sequence[str | Path],
    source_text: Sequence[str | Path],
    most: int,
    label: str = "tokenizer",
    column: str = COLUMN,
) -> Extension:
    """The Extension by at most so many pieces of the vocabulary in the pack or tokenizer `base`.

    text, source_text: paths or globs of the language that is added, and of the base's own, which keeps its pieces; it
    may be empty. UserError where the base is no byte-level BPE.
    """
    file = _byte_level(Path(base))
    runner, words = file.load(), 0

    def lines(patterns: Sequence[str | Path]) -> Iterator[str]:
        nonlocal words
        progress = Progress(label, None, "lines")
        for document in read_documents(map(str, patterns), column) if patterns else ():
            for line in document:
                words += len(line.split())
                yield line
                progress.update(progress.done + 1)
        progress.close("all read")

    of_source = _words(runner, lines(source_text))
    words = 0
    of_text = _words(runner, lines(text))
    pieces = [
        _Word(part, of_text[word], of_source[word])
        for word in sorted(of_text.keys() | of_source.keys())
        for part in _parts([token.value for token in runner.model.tokenize(word)])
    ]
    num_bytes = sum(len("".join(word.pieces)) * word.count for word in pieces)  # a character of a piece is a byte
    tokens = sum(len(word.pieces) * word.count for word in pieces)
    merges, counts = _more_merges(pieces, {*runner.get_vocab()}, most)
    return Extension(file, words, num_bytes, tokens, merges, counts)


def extend_tokenizer(
    base: str | Path,
    rows: int,
    text: Sequence[str | Path],
    source_text: Sequence[str | Path],
    out: str | Path,
    new_pieces: int,
    label: str = "tokenizer",
    column: str = COLUMN,
) -> None:
    """Write the vocabulary of the pack or tokenizer `base` with `new_pieces` more into the artifact folder `out`.

    rows: of the base's embeddings; the new ids follow them. All else that the base's folder has of a tokenizer, such as
    a chat template, is kept. The result is a function of the texts and the arguments. Other arguments and errors as of
    read_extension; UserError, too, where the text supports fewer pieces.
    """
    base, sources = Path(base), pinned(find_text(text))
    extension = read_extension(base, [*map(str, sources)], source_text, new_pieces, label, column)
    if len(extension.merges) < new_pieces:
        raise UserError(
            f"tokenizer.vocab_size={new_pieces}: the text ({', '.join(map(str, text))}) supports at most "
            f"{len(extension.merges)} pieces beside the base's; lower it to that or add text"
        )
    content = with_merges(extension.file.content, extension.merges, rows)
    _write(base, content, out, rows + new_pieces, rows, text=names_of(sources))


def join_tokenizers(first: str | Path, other: str | Path, out: str | Path, kept: int) -> list[int]:
    """Write the vocabulary of `first` with the pieces that only `other` has behind it into the new folder `out`.

    Both extend one base, of which the first `kept` ids are. The merges of `other` follow those of `first`. Returns the
    ids that `other` gives to the pieces that were taken, less `kept`, in the order of their ids in `out`.
    """
    one, two = (TokenizerJson(Path(folder) / JSON_FILE) for folder in (first, other))
    merges = [(left, right) for left, right in two.content["model"]["merges"][-(two.size - kept) :]]
    taken = {*one.strings.values()}
    chosen = [place for place, merge in enumerate(merges) if "".join(merge) not in taken]
    content = with_merges(one.content, [merges[place] for place in chosen], one.size)
    _write(Path(first), content, out, one.size + len(chosen), kept)
    return chosen


def _write(base: Path, content: dict[str, Any], out: str | Path, size: int, kept: int, **facts: Any) -> None:
    """Write the artifact folder `out`: a tokenizer.json of `content`, and all else that `base` has of a tokenizer."""
    extended = TokenizerJson(Path(out) / JSON_FILE, content)
    manifest = files.read_artifact(base, VocabularyManifest, verify=True)
    vocabulary = replace(manifest.vocabulary(base), size=size, kept=kept)
    with files.atomic_folder(out) as folder:
        for name in manifest.files.keys() - {JSON_FILE}:
            if not name.endswith(".safetensors"):
                shutil.copyfile(base / name, folder / name)
        extended.load().save(str(folder / JSON_FILE))
        files.write_manifest(folder, kind="tokenizer", **vocabulary.facts(), **facts)


def _byte_level(base: Path) -> TokenizerJson:
    """The base's file; UserError where its merges cannot go on."""
    path = base / JSON_FILE
    file = TokenizerJson(path) if path.is_file() else None
    if file is None or not file.is_byte_level or file.content["model"].get("byte_fallback"):
        kind = "SentencePiece" if file is None else file.kind
        raise UserError(
            f"{base}: a {kind} vocabulary, and only byte-level BPE is extended; leave tokenizer.vocabulary out, "
            "so that the language has a vocabulary of its own"
        )
    return file


def _words(runner: Runner, lines: Iterable[str]) -> Counter[str]:
    """How often each word, as the vocabulary parts text, occurs."""
    counts: Counter[str] = Counter()
    for line in lines:
        normal = runner.normalizer.normalize_str(line) if runner.normalizer else line
        counts.update(word for word, _ in runner.pre_tokenizer.pre_tokenize_str(normal))
    return counts


def _parts(pieces: list[str]) -> Iterator[list[str]]:
    """A word's pieces, of a longer one than words are (text without spaces) in parts, whose pairs are counted anew."""
    yield from (pieces[start : start + _LONGEST] for start in range(0, len(pieces), _LONGEST))


@dataclass
class _Word:
    """A word as the pieces it is cut into, and how often the text and the source text have it."""

    pieces: list[str]
    count: int
    in_source: int


def _more_merges(words: Sequence[_Word], taken: set[str], number: int) -> tuple[list[Merge], list[int]]:
    """At most `number` merges that go on where those of a BPE end, best first, and how often each occurs in the text.

    words: of which the pieces are changed. taken: pieces that there are. The best is the pair that is most frequent in
    the text as it is cut so far, as in training; of equal ones the first in the order of strings. Pairs that occur in
    the source text are left out.
    """
    in_source = {pair for word in words if word.in_source for pair in pairwise(word.pieces)}  # of words that stay
    counts, places = Counter[Merge](), defaultdict[Merge, set[int]](set)  # places: where a pair is or once was

    def count(place: int, pieces: Sequence[str], sign: int = 1) -> None:
        times = sign * words[place].count
        for pair in pairwise(pieces):
            counts[pair] += times
            places[pair].add(place)

    for place, word in enumerate(words):
        count(place, word.pieces)
    heap = [(-occurrences, pair) for pair, occurrences in counts.items() if occurrences >= FEWEST]
    heapq.heapify(heap)
    merges, found = list[Merge](), list[int]()
    while heap and len(merges) < number:
        negative, pair = heapq.heappop(heap)
        (left, right), joined = pair, "".join(pair)
        if -negative != counts[pair]:  # counted anew since
            if counts[pair] >= FEWEST:
                heapq.heappush(heap, (-counts[pair], pair))
        elif pair not in in_source and joined not in taken:
            merges.append(pair)
            found.append(-negative)
            taken.add(joined)
            touched = set[Merge]()
            for place in sorted(places[pair]):
                pieces = words[place].pieces
                for at, piece in enumerate(pieces):  # which grows shorter
                    if piece == left and pieces[at + 1 : at + 2] == [right]:
                        before = max(0, at - 1)
                        count(place, pieces[before : at + 3], -1)
                        pieces[at : at + 2] = [joined]
                        around = pieces[before : at + 2]
                        count(place, around)
                        touched.update(pairwise(around))
            del places[pair]
            for other in touched:
                if counts[other] >= FEWEST:
                    heapq.heappush(heap, (-counts[other], other))
    return merges, found


def with_merges(content: dict[str, Any], merges: Sequence[Merge], first: int) -> dict[str, Any]:
    """A tokenizer.json's content with more merges, whose pieces have the ids from `first` on.

    Added tokens stand among the model's pieces then: the library would give those that do not ids behind the new ones.
    """
    model = content["model"]
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    new = {"".join(pair): first + number for number, pair in enumerate(merges)}
    vocab = {**model["vocab"], **added, **new}
    return {**content, "model": {**model, "vocab": vocab, "merges": [*model["merges"], *map(list, merges)]}}
