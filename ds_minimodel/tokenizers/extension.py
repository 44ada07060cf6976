"""Extension of a base's vocabulary by pieces of another language.

New pieces are merged from those that the base cuts the language into.

Merges are found as if BPE training went on over the text as the base cuts it, whatever kind the
base is: a BPE gets the merges, WordPiece the pieces, of which it takes the longest, and a unigram
vocabulary each piece with a score a hair above that of its parts. Characters without a piece may
get one. Pieces that would change how text of the source, or of another language that is to stay, is
cut are not taken. Added tokens that match whole words alone would change none in the library, but
transformers.js finds them inside words, too, and llama.cpp takes them for pieces.
"""

from __future__ import annotations

import heapq
import math
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Runner

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.vocabulary import MAX_UNKNOWN, MIN_OCCURRENCES, VocabularyManifest
from ds_minimodel.tokenizers.guard import COMMON
from ds_minimodel.tokenizers.losses import MAX_EQUAL, losses_of
from ds_minimodel.tokenizers.tokenizer import (
    BYTE_OF_CHARACTER,
    BYTES,
    JSON_FILE,
    WORD_START,
    TokenizerJson,
    open_tokenizer,
)

# Occurrences of a new piece in the text, at least.
MIN_PIECE_OCCURRENCES = 2
# A new piece may cut guarded words that are so many times as frequent in their language as the
# piece in its own; lists of English words hold German ones.
MAX_CUT = 1e-3
# Words of a text, at least, by which its counts become frequencies: in a short one a piece that
# occurs a few times looks frequent.
MIN_TOTAL = 20_000
# A guarded word also stands inside words that no list knows, such as names in programs: so many
# times for each time that it stands alone.
INSIDE = 3e-3
MIN_INSIDE = 3  # letters of a piece that is looked for inside words
# Pieces of a word that are looked at together, at most.
_MAX_CHUNK = 32
# Between the scores of a piece and of its parts: more than rounding, less than what chooses words.
_HAIR = 1e-6
Parts = tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """A new piece.

    parts: the two that it joins, or of a character itself. score: in a unigram vocabulary.
    """

    string: str
    parts: Parts
    score: float = 0.0


@dataclass(frozen=True)
class Extension:
    """What a text makes of a base's vocabulary.

    words, num_bytes: of the text. text: how often each pre-token occurs. pieces: new ones, best
    first. counts: of each, how often it occurs when all of them cut the text, alone or within a
    longer one. With only the pieces before it a piece occurs as often: exactly for a BPE, nearly
    for other kinds.
    """

    kind: _Kind
    words: int
    num_bytes: int
    text: Counter[str]
    pieces: Sequence[Piece]
    counts: Sequence[int]

    @property
    def often(self) -> int:
        """Count of the new pieces that occur MIN_OCCURRENCES times."""
        return sum(count >= MIN_OCCURRENCES for count in self.counts)

    def tokens_with(self, number: int) -> tuple[int, float]:
        """Count a text's tokens with so many new pieces, and its share of bytes without a piece."""
        model = self.kind.model(self.pieces[:number])
        tokens = 0
        unknown = 0
        whole = 0
        for word, times in self.text.items():
            cut = model.tokenize(word)
            known = sum(
                token.offsets[1] - token.offsets[0]
                for token in cut
                if token.id != self.kind.unknown
            )
            tokens += times * len(cut)
            # Of pieces that are bytes each has the whole character's offsets.
            unknown += times * max(0, len(word.encode()) - known)
            whole += times * len(word.replace(WORD_START, " ").encode())
        return tokens, unknown / max(1, whole)


def read_extension(
    base: str | Path,
    text: Mapping[str, int],
    kept_text: Mapping[str, int],
    most: int,
    guard: Mapping[str, float] = MappingProxyType({}),
) -> Extension:
    """The Extension by at most so many pieces of the vocabulary in the pack or tokenizer `base`.

    text, kept_text: how often each word occurs (corpus.py, count_words) of the language that is
    added, and of those that keep their pieces; it may be empty. guard: words (guard.py) that keep
    theirs, too, and how frequent they are. In a text of another script than Latin all new pieces
    but single characters have a letter of it.

    Raises:
        UserError: where the base has no tokenizer.json, much of the text stays unknown to it, or
            its added tokens would cut the kept text.
    """
    return _read_candidates(base, text, kept_text, guard).extension(most)


def count_new_pieces(
    base: str | Path,
    text: Mapping[str, int],
    kept_text: Mapping[str, int],
    most: int,
    guard: Mapping[str, float] = MappingProxyType({}),
) -> int:
    """Return how many new pieces `extend_tokenizer` can be asked for, at most so many.

    Which ones is kept in memory until it asks.

    Arguments and errors as of read_extension.
    """
    candidates = _read_candidates(base, text, kept_text, guard)
    asked = most
    extension = candidates.extension(asked)
    # With fewer asked for, others are tried first, and some of them are left out in the end.
    while 0 < len(extension.pieces) < asked:
        asked = len(extension.pieces)
        extension = candidates.extension(asked)
    _counted[_key_of(base, text, kept_text, asked, guard)] = extension
    return len(extension.pieces)


# What count_new_pieces found, by the hash of its arguments.
_counted: dict[int, Extension] = {}


def _key_of(
    base: str | Path,
    text: Mapping[str, int],
    kept_text: Mapping[str, int],
    most: int,
    guard: Mapping[str, float],
) -> int:
    """Return a hash of what decides an extension, within this process."""
    texts = [frozenset(words.items()) for words in (text, kept_text, guard)]
    return hash(((Path(base) / JSON_FILE).read_bytes(), *texts, most))


def _read_candidates(
    base: str | Path,
    text: Mapping[str, int],
    kept_text: Mapping[str, int],
    guard: Mapping[str, float],
) -> _Candidates:
    """Read what pieces are chosen from; arguments and errors as of read_extension."""
    path = Path(base) / JSON_FILE
    if not path.is_file():
        raise UserError(
            f"{base}: a SentencePiece vocabulary is not extended; use tokenizer.vocabulary: replace"
        )
    return _Candidates(_Kind(TokenizerJson(path)), text, kept_text, guard)


def extend_tokenizer(
    base: str | Path,
    rows: int,
    text: Mapping[str, int],
    kept_text: Mapping[str, int],
    out: str | Path,
    new_pieces: int,
    guard: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write the vocabulary of a pack or tokenizer with `new_pieces` more into the folder `out`.

    rows: of the base's embeddings; the new ids follow them. All else that the base's folder has of
    a tokenizer, such as a chat template, is kept. The result is a function of the texts and the
    arguments. Other arguments and errors as of read_extension; UserError, too, where the text
    supports fewer pieces.
    """
    base = Path(base)
    extension = None
    if _counted:
        extension = _counted.pop(_key_of(base, text, kept_text, new_pieces, guard), None)
    if extension is None:
        extension = read_extension(base, text, kept_text, new_pieces, guard)
    equal = losses_of(open_tokenizer(base), text).equal
    if equal > MAX_EQUAL:
        raise UserError(
            f"{base}: {100 * equal:.0f} % of the words of {Path(out).name}'s text lose what tells "
            "them from others, such as accents, and become another; take a base whose vocabulary "
            "keeps them"
        )
    if len(extension.pieces) < new_pieces:
        raise UserError(
            f"tokenizer.vocab_size={new_pieces}: the text of {Path(out).name} has only "
            f"{len(extension.pieces)} tokens beside the base's, of which {extension.often} occur "
            f"{MIN_OCCURRENCES} times and can be learned; lower it to these or add text"
        )
    content = with_pieces(extension.kind.file.content, extension.pieces, rows)
    _write(base, content, out, rows + new_pieces, rows)


def _write(base: Path, content: dict[str, Any], out: str | Path, size: int, num_base: int) -> None:
    """Write a tokenizer.json of `content`, and all else that `base` has of a tokenizer."""
    extended = TokenizerJson(Path(out) / JSON_FILE, content)
    manifest = files.read_artifact(base, VocabularyManifest, verify=True)
    vocabulary = replace(manifest.vocabulary(base), size=size, num_base=num_base)
    vocabulary = replace(vocabulary, roundtrip_counterexample=extended.lost_text(vocabulary))
    with files.atomic_folder(out) as folder:
        for name in manifest.files.keys() - {JSON_FILE}:
            if not name.endswith(".safetensors"):
                shutil.copyfile(base / name, folder / name)
        extended.load().save(str(folder / JSON_FILE))
        files.write_manifest(folder, kind="tokenizer", **vocabulary.facts())


def _parted(runner: Runner, words: Mapping[str, int], *, later_lines: bool = False) -> Counter[str]:
    """Count each pre-token of words.

    A pre-token is a part of a word by the vocabulary's normaliser and pre-tokenizer, or a whole
    word where it has none. words: with the white space before them.
    later_lines: whether words without, at a line's start, are counted once more as they stand in a
    document, without the space that some vocabularies put before it.
    """

    def parts(text: str) -> list[str]:
        normal = runner.normalizer.normalize_str(text) if runner.normalizer else text
        return (
            [part for part, _ in runner.pre_tokenizer.pre_tokenize_str(normal)]
            if runner.pre_tokenizer
            else [normal]
        )

    counts = Counter[str]()
    before = "".join(parts("a"))
    for word, times in words.items():
        of_word = [] if word[0].isspace() else parts(word)
        if word[0].isspace() or later_lines:
            first, *others = parts(f"a{word}" if word[0].isspace() else f"a\n{word}")
            of_word += [first.removeprefix(before), *others]
        for part in filter(None, of_word):
            counts[part] += times
    return counts


@cache
def _is_letter_beyond_latin(character: str) -> bool:
    # U+FFFD stands for some bytes of a character.
    is_letter = character == "\ufffd" or (character.isalpha() and character > "\u024f")
    return is_letter and "LATIN" not in unicodedata.name(character, "")


@cache
def _is_sign(character: str) -> bool:
    is_of_words = character in f"'’{WORD_START}\ufffd"
    return not is_of_words and unicodedata.category(character)[0] in "PSN"


@cache
def _class(character: str) -> str:
    """Whether a character is of a word, a digit, a sign …; "▁" is of its own."""
    return (
        WORD_START
        if character == WORD_START
        else unicodedata.category(character)[0].replace("M", "L")
    )


class _Kind:
    """How the pieces of a base are merged.

    scores: of a unigram vocabulary. is_bpe: whether a piece needs its parts.

    Byte-level vocabularies split words first. Of others, character classes that never stand side by
    side in a piece of the base, such as two digits or a letter and a comma, are not merged.
    """

    def __init__(self, file: TokenizerJson):
        model = file.content["model"]
        self.file = file
        self.is_bpe = file.kind == "BPE"
        self.scores: dict[str, float] = dict(model["vocab"]) if file.kind == "Unigram" else {}
        self.least = min(self.scores.values(), default=0.0)
        unknown = model.get("unk_id") if self.scores else model["vocab"].get(model["unk_token"])
        self.unknown = -1 if unknown is None else int(unknown)
        self._inside = model.get("continuing_subword_prefix") or ""
        self._has_bytes = bool(model.get("byte_fallback"))
        texts = (self.text(string) for string in file.strings.values() if self._is_text(string))
        self._beside = {pair for text in texts for pair in pairwise(map(_class, text))}

    def model(self, pieces: Sequence[Piece] = ()) -> Any:
        """Return what cuts a word, with `pieces` behind the base's."""
        return self.file.load(with_pieces(self.file.content, pieces, self.file.size)).model

    def _is_text(self, string: str) -> bool:
        is_unused = string.startswith("\0")
        return (
            not is_unused
            and string not in self.file.added
            and not (self._has_bytes and BYTES.fullmatch(string))
        )

    def is_inside(self, string: str) -> bool:
        """Whether a piece may stand inside a word."""
        return string.startswith(self._inside)

    def text(self, string: str) -> str:
        """Return a piece without what says that it begins inside a word."""
        return string.removeprefix(self._inside)

    def is_beyond_latin(self, string: str) -> bool:
        """Return whether a pre-token or piece has a letter beyond Latin, or a part of one."""
        return any(map(_is_letter_beyond_latin, self._decoded(string)))

    def has_sign(self, string: str) -> bool:
        """Whether a piece has a sign or digit other than an apostrophe."""
        return any(map(_is_sign, self._decoded(self.text(string))))

    def _decoded(self, string: str) -> str:
        """Return a pre-token or piece as text; U+FFFD stands for a part of a character."""
        if not self.file.is_byte_level:
            return string
        data = bytes(BYTE_OF_CHARACTER.get(character, 0) for character in string)
        return data.decode(errors="replace")

    def joined(self, parts: Sequence[str]) -> str:
        return parts[0] + "".join(map(self.text, parts[1:]))

    def piece(self, parts: Parts) -> Piece:
        """A new one; of two that are as good the earlier is better."""
        string = self.joined(parts)
        score = 0.0
        if self.scores:
            hair = _HAIR * (2 - 1e-7 * len(self.scores))
            score = (
                self.least
                if parts == (string,)
                else sum(self.scores[part] for part in parts) + hair
            )
            self.scores[string] = score
        return Piece(string, parts, score)

    def letters(self, words: Counter[str]) -> Counter[str]:
        """Count the pieces of characters as if all characters of the words were pieces."""
        counts = Counter[str]()
        for word, times in words.items():
            for index, character in enumerate(word):
                counts[(self._inside if index else "") + character] += times
        return counts

    def chunks(self, tokens: Iterable[Any]) -> Iterator[Parts]:
        """The pieces of a word in parts, each of pieces that may be joined."""
        chunk = list[str]()
        for token in tokens:
            string = token.value
            is_text = token.id != self.unknown and self._is_text(token.value)
            if chunk and not (
                is_text and len(chunk) < _MAX_CHUNK and self._joins(chunk[-1], string)
            ):
                yield tuple(chunk)
                chunk = []
            chunk += [string] if is_text else []
        if chunk:
            yield tuple(chunk)

    def _joins(self, left: str, right: str) -> bool:
        if self.file.is_byte_level:
            return True
        return (
            right[0] != WORD_START
            and (_class(left[-1]), _class(self.text(right)[0])) in self._beside
        )


class _Candidates:
    """A text as the base cuts it, from which new pieces are chosen.

    It also has what they must not cut otherwise, is made once, and serves any number of pieces.

    text, kept, guard: as of read_extension.
    """

    def __init__(
        self,
        kind: _Kind,
        text: Mapping[str, int],
        kept: Mapping[str, int],
        guard: Mapping[str, float],
    ):
        self.kind = kind
        self.words = sum(times for word, times in text.items() if not word.isspace())
        self.num_bytes = sum(len(word.encode()) * times for word, times in text.items())
        self.of_text = _parted(kind.file.load(), text)
        self.of_kept = _parted(kind.file.load(), kept, later_lines=True)
        self.num_words = max(MIN_TOTAL, self.of_text.total())
        self.is_foreign = _is_beyond_latin(kind, self.of_text)
        self._scores = dict(kind.scores)
        self._taken = {*kind.file.strings.values()}
        self.letters = {
            letter
            for letter, times in kind.letters(self.of_text).items()
            if times >= MIN_PIECE_OCCURRENCES
        }
        self.letters -= self._taken | kind.letters(self.of_kept).keys()
        with one_line(kind.file.path, "not a tokenizer"):
            self._cut(kept, guard)

    def _cut(self, kept: Mapping[str, int], guard: Mapping[str, float]) -> None:
        """Cut the text, the kept text and the guard's words by the base's pieces and letters."""
        kind = self.kind
        least = kind.least
        model = kind.model([Piece(letter, (letter,), least) for letter in sorted(self.letters)])
        self._chunks = Counter[Parts]()
        for word, times in self.of_text.items():
            if not self.is_foreign or kind.is_beyond_latin(word):
                for chunk in kind.chunks(model.tokenize(word)):
                    self._chunks[chunk] += times

        old = kind.model()
        # Of each word that is to be cut as before the ids of its pieces.
        self._before = {word: [token.id for token in old.tokenize(word)] for word in self.of_kept}
        added = {token["id"] for token in kind.file.content["added_tokens"]} - {kind.unknown}
        if not all(map(added.isdisjoint, self._before.values())):
            _refuse_other_cuts(kind.file, kept)
        self._in_kept = set[Parts]()
        for word in self._before:
            for chunk in kind.chunks(model.tokenize(word)):
                self._in_kept.update(pairwise(chunk))

        # Pieces that all have a letter beyond Latin cut no word that has none.
        self._frequencies = _guarded_parts(kind, guard, is_foreign=self.is_foreign)
        self._in_guard: dict[Parts, float] = {}
        for word, frequency in self._frequencies.items():
            if word not in self._before and (not self.is_foreign or kind.is_beyond_latin(word)):
                self._before[word] = [token.id for token in old.tokenize(word)]
                for chunk in kind.chunks(model.tokenize(word)):
                    for pair in {*pairwise(chunk)}:
                        self._in_guard[pair] = self._in_guard.get(pair, 0.0) + frequency
        self._inside = _inside(self._frequencies)

    def _is_barred(self, parts: Parts, count: int) -> bool:
        """Whether no piece joins two that occur so often side by side in the text."""
        kind = self.kind
        string = kind.joined(parts)
        if self.is_foreign and len(parts) > 1 and not kind.is_beyond_latin(string):
            return True
        # A list of words says nothing about signs.
        if self._frequencies and not self.is_foreign and len(parts) > 1 and kind.has_sign(string):
            return True
        cut = self._in_guard.get(parts, 0.0)
        if kind.is_inside(string):
            cut += INSIDE * self._inside.get(kind.text(string), 0.0)
        return parts in self._in_kept or cut > self._most_cut(count)

    def _most_cut(self, count: int) -> float:
        """Return how frequent guarded words may be at most that a piece of such a count cuts.

        A count may lie two standard deviations above what is usual.
        """
        usual = max(0.0, math.sqrt(count) - 1) ** 2
        return MAX_CUT * usual / self.num_words

    def extension(self, most: int) -> Extension:
        """Return the extension by at most so many pieces.

        Raises:
            UserError: Much of the text stays unknown with them.
        """
        pieces, counts = self._choose(most)
        extension = Extension(
            self.kind, self.words, self.num_bytes, self.of_text, pieces=pieces, counts=counts
        )
        _, unknown = extension.tokens_with(len(pieces))
        if unknown > MAX_UNKNOWN:
            raise UserError(
                f"{self.kind.file.path.parent}: {unknown:.0%} of the text stays unknown to it with "
                f"{len(pieces):,} new tokens; take more of them, or use tokenizer.vocabulary: "
                "replace"
            )
        return extension

    def _choose(self, most: int) -> tuple[list[Piece], list[int]]:
        """Return at most so many pieces, and their counts, as of Extension."""
        kind = self.kind
        kind.scores = dict(self._scores)
        merges = _more_merges(
            kind, self._chunks, self._is_barred, letters=self.letters, taken={*self._taken}
        )
        pieces = list[Piece]()
        gone = set[str]()
        while True:
            pieces = [piece for piece in pieces if piece.string not in gone]
            while len(pieces) < most and (parts := next(merges, None)):
                pieces.append(kind.piece(parts))
            lost = {
                piece.string for piece in pieces if kind.is_bpe and not gone.isdisjoint(piece.parts)
            }
            if not lost:
                counts, lost = self._uses(pieces)
            if not lost:
                if not kind.is_bpe:
                    pieces.sort(key=lambda piece: -counts[piece.string])
                return pieces, [counts[piece.string] for piece in pieces]
            gone |= lost

    def _uses(self, pieces: Sequence[Piece]) -> tuple[dict[str, int], set[str]]:
        """Return how often each piece occurs when all cut the text, and those not to be taken.

        These cut otherwise what is to be cut as before, or occur too seldom.
        """
        kind = self.kind
        size = kind.file.size
        model = kind.model(pieces)
        lost = set[str]()
        cut = Counter[str]()
        for word, ids in self._before.items():
            after = [token.id for token in model.tokenize(word)]
            if after != ids:
                new = {pieces[id - size].string for id in after if id >= size}
                new = new or {piece.string for piece in pieces if kind.text(piece.string) in word}
                if word in self.of_kept:
                    lost |= new
                else:
                    cut.update(dict.fromkeys(new, self._frequencies[word]))

        uses = Counter[int]()
        for word, times in self.of_text.items():
            for token in model.tokenize(word):
                uses[token.id] += times
        ids_of = {piece.string: id for id, piece in enumerate(pieces, size)}
        for piece in reversed(pieces):
            for part in ids_of.keys() & piece.parts if len(piece.parts) > 1 else ():
                uses[ids_of[part]] += piece.parts.count(part) * uses[ids_of[piece.string]]
        counts = {string: uses[id] for string, id in ids_of.items()}

        for string, frequency in cut.items():
            if frequency > self._most_cut(counts[string]):
                lost.add(string)
        # Of a BPE the merges' counts were exact.
        if not kind.is_bpe:
            lost |= {string for string, count in counts.items() if count < MIN_PIECE_OCCURRENCES}
        return counts, lost


def _is_beyond_latin(kind: _Kind, of_text: Counter[str]) -> bool:
    """Whether most letters of the text's words are of another script than Latin."""
    sides = Counter[bool]()
    for word, times in of_text.items():
        sides[kind.is_beyond_latin(word)] += times * len(word)
    return sides[True] > sides[False]


def _guarded_parts(
    kind: _Kind, words: Mapping[str, float], *, is_foreign: bool
) -> dict[str, float]:
    """Pre-tokens of a guard's words, each as frequent as the most frequent word that has it.

    is_foreign: whether words of ASCII's characters alone are left out.
    """
    runner = kind.file.load()
    normal = dict[str, float]()
    for text, frequency in words.items():
        if is_foreign and text.isascii():
            continue
        if runner.normalizer:
            text = runner.normalizer.normalize_str(text)
        normal[text] = max(normal.get(text, 0.0), frequency)
    found = dict[str, float]()
    for text, frequency in normal.items():
        parts = [text]
        if runner.pre_tokenizer:
            parts = [part for part, _ in runner.pre_tokenizer.pre_tokenize_str(text)]
        for part in parts:
            found[part] = max(found.get(part, 0.0), frequency)
    return found


def _inside(frequencies: Mapping[str, float]) -> dict[str, float]:
    """Return strings inside common pre-tokens, behind their first letter, and how frequent."""
    inside: dict[str, float] = defaultdict(float)
    for word, frequency in frequencies.items():
        if frequency < COMMON or word != word.lower():
            continue
        ends = range(MIN_INSIDE + 1, len(word) + 1)
        for string in {word[start:end] for end in ends for start in range(1, end - MIN_INSIDE + 1)}:
            inside[string] += frequency
    return dict(inside)


def _refuse_other_cuts(file: TokenizerJson, words: Iterable[str]) -> None:
    """Refuse added tokens that, as pieces of the model (see with_pieces), change a word's ids."""
    folder = file.path.parent
    changed = TokenizerJson(file.path, with_pieces(file.content, (), file.size))
    vocabulary = files.read_artifact(folder, VocabularyManifest).vocabulary(folder)
    runners = file.runner(vocabulary), changed.runner(vocabulary)
    for word in words:
        if (
            len({tuple(runner.encode(word, add_special_tokens=False).ids) for runner in runners})
            > 1
        ):
            raise UserError(
                f"{folder}: an added token would part {word!r:.40}; use tokenizer.vocabulary: "
                "replace"
            )


def _more_merges(
    kind: _Kind,
    chunks: Counter[Parts],
    is_barred: Callable[[Parts, int], bool],
    letters: Set[str],
    taken: set[str],
) -> Iterator[Parts]:
    """Yield pairs that go on where a BPE's merges end, best first, and letters, each alone.

    chunks: of the text's words, and how often each occurs. taken: pieces that there are; the new
    ones come to it. The best is what is most frequent in the text as it is cut so far, as in
    training; of equal ones the first in the order of strings. Pairs that are barred, such as those
    of the kept text, are left out; but where a piece does without its parts, what is longer is
    still made of them.
    """
    words = [[*chunk] for chunk in chunks]
    times = [*chunks.values()]
    # Places: where it is or once was
    counts = Counter[Parts]()
    places = defaultdict[Parts, set[int]](set)

    def candidates(pieces: Sequence[str]) -> Iterator[Parts]:
        yield from pairwise(pieces)
        yield from ((piece,) for piece in pieces if piece in letters)

    def count(place: int, pieces: Sequence[str], sign: int = 1) -> None:
        for parts in candidates(pieces):
            counts[parts] += sign * times[place]
            places[parts].add(place)

    for place, word in enumerate(words):
        count(place, word)
    heap = [
        (-occurrences, parts)
        for parts, occurrences in counts.items()
        if occurrences >= MIN_PIECE_OCCURRENCES
    ]
    heapq.heapify(heap)
    while heap:
        negative, parts = heapq.heappop(heap)
        joined = kind.joined(parts)
        if -negative != counts[parts]:  # counted anew since
            if counts[parts] >= MIN_PIECE_OCCURRENCES:
                heapq.heappush(heap, (-counts[parts], parts))
        elif (
            joined not in taken
            and not (kind.is_bpe and is_barred(parts, counts[parts]))
            and (parts == (joined,) or taken.issuperset(parts))
        ):
            if is_barred(parts, counts[parts]):
                kind.piece(parts)  # which gives the longer ones their scores
            else:
                yield parts
            taken.add(joined)
            touched = set[Parts]()
            for place in sorted(places[parts]):
                pieces = words[place]
                # The list grows shorter while it is read.
                for index, piece in enumerate(pieces):
                    if piece == parts[0] and pieces[index : index + len(parts)] == [*parts]:
                        before = max(0, index - 1)
                        count(place, pieces[before : index + len(parts) + 1], -1)
                        pieces[index : index + len(parts)] = [joined]
                        around = pieces[before : index + 2]
                        count(place, around)
                        touched.update(candidates(around))
            del places[parts]
            for other in touched:
                if counts[other] >= MIN_PIECE_OCCURRENCES:
                    heapq.heappush(heap, (-counts[other], other))


def _unused(id: int) -> str:
    """A token that no text becomes: none has a NUL."""
    return f"\0{id}\0"


def with_pieces(content: dict[str, Any], pieces: Sequence[Piece], first: int) -> dict[str, Any]:
    """A tokenizer.json's content with more pieces, of the ids from `first` on.

    Added tokens stand among the model's pieces then: the library would give those that do not ids
    behind the new ones. So do unused ones, where an id before `first` has none: transformers counts
    tokens to find the next free id.
    """
    model = content["model"]
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    strings = {id: string for string, id in added.items()}
    if model["type"] == "Unigram":  # a list
        least = min(score for _, score in model["vocab"])
        between = [
            [strings.get(id, _unused(id)), least] for id in range(len(model["vocab"]), first)
        ]
        vocab = [*model["vocab"], *between, *([piece.string, piece.score] for piece in pieces)]
        return {**content, "model": {**model, "vocab": vocab}}
    new = {piece.string: id for id, piece in enumerate(pieces, first)}
    unused = {
        _unused(id): id for id in {*range(first)} - {*model["vocab"].values()} - strings.keys()
    }
    model = {**model, "vocab": {**model["vocab"], **added, **unused, **new}}
    if model["type"] == "BPE":
        model["merges"] = [
            *model["merges"],
            *([*piece.parts] for piece in pieces if len(piece.parts) > 1),
        ]
    return {**content, "model": model}
