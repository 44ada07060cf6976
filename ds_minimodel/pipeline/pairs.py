"""Pairs of a language and the source as one artifact.

They are read, cleaned and split once, for all that learns from them or is scored by them.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ds_minimodel.common import files
from ds_minimodel.config.schema import Recipe
from ds_minimodel.data.config import Data
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.text.corpus import count_words, words_of
from ds_minimodel.text.pairs import Pair, PairCounts, PairText, read_pairs, split_pairs

_FILE = "pairs.tsv.gz"  # white space of a pair is single spaces
_LEVEL = 1  # of compression


class _TextFacts(files.Stored):
    """A kind of text in the manifest.

    Attributes:
        name: Of the text.
        role: "pairs" for one of `data.pairs`, "test" for one of `data.test_pairs`.
        is_dictionary: As of a PairText.
        training: Count of pairs to learn from.
        held_out: Count of pairs that are held out, or all of a test.
        counts: Fields of its PairCounts.
    """

    name: str
    role: str
    is_dictionary: bool
    training: files.Count
    held_out: files.Count
    counts: dict[str, files.Count]


class PairsManifest(files.Manifest):
    """Manifest of pairs, with the kinds of text in the order of their files."""

    texts: list[_TextFacts]

    noun = "pairs; run the step corpus"
    kinds = ("pairs",)
    required = ((_FILE,),)


class PairCorpus:
    """Pairs on disk.

    Attributes:
        training: Kinds of text, each with the pairs to learn from.
        held_out: The same kinds, each with the lines that are held out.
        tests: Kinds of text of which nothing is learned.
    """

    def __init__(self, folder: str | Path):
        manifest = files.read_artifact(folder, PairsManifest)
        self.training: list[PairText] = []
        self.held_out: list[PairText] = []
        self.tests: list[PairText] = []
        with gzip.open(Path(folder) / _FILE, "rt", encoding="utf-8", newline="\n") as file:
            for facts in manifest.texts:
                counts = PairCounts(**facts.counts)
                empty = PairText(facts.name, [], facts.is_dictionary, counts)
                training = [_pair(next(file)) for _ in range(facts.training)]
                held_out = [_pair(next(file)) for _ in range(facts.held_out)]
                if facts.role == "test":
                    self.tests.append(replace(empty, pairs=held_out))
                else:
                    self.training.append(replace(empty, pairs=training))
                    self.held_out.append(replace(empty, pairs=held_out))

    @property
    def pairs(self) -> list[Pair]:
        """All that is aligned."""
        return [pair for text in self.training for pair in text.pairs]

    @property
    def lines(self) -> list[Pair]:
        """All that is long enough to train on."""
        return [pair for text in self.training for pair in text.lines]


def _pair(line: str) -> Pair:
    source, target = line.rstrip("\n").split("\t")
    return Pair(source, target)


def write_pairs(
    data: Data,
    languages: tuple[str, str],
    out: Path,
    say: Callable[[str], Any] = lambda _: None,
) -> None:
    """Read the files of pairs of a language and write them as an artifact.

    Args:
        data: The recipe's section.
        languages: (source, language).
        out: Folder of the artifact.
        say: Called with a line on each file.

    Raises:
        UserError: As of `read_pairs`.
    """
    language = languages[1]
    columns = None
    if data.pair_columns is not None:
        columns = (data.pair_columns[0], data.pair_columns[1])
    texts = read_pairs(data.pairs[language], languages, columns)
    tests = read_pairs(data.test_pairs.get(language, []), languages, columns)
    split = split_pairs(texts, tests)
    with files.atomic_folder(out) as folder:
        facts: list[_TextFacts] = []
        with gzip.GzipFile(folder / _FILE, "wb", _LEVEL, mtime=0) as file:
            listed = [
                *(("pairs", *sides) for sides in zip(split.training, split.held_out, strict=True)),
                *(("test", replace(text, pairs=[]), text) for text in tests),
            ]
            for role, training, held_out in listed:
                for pair in (*training.pairs, *held_out.pairs):
                    file.write("\t".join(pair).encode() + b"\n")
                facts.append(
                    _TextFacts(
                        name=training.name,
                        role=role,
                        is_dictionary=training.is_dictionary,
                        training=len(training.pairs),
                        held_out=len(held_out.pairs),
                        counts=asdict(training.counts),
                    )
                )
                say(_line(facts[-1], language))
        files.write_manifest(folder, kind="pairs", texts=[text.model_dump() for text in facts])


def _line(facts: _TextFacts, language: str) -> str:
    """Return what a person is told of a file of pairs."""
    counts = PairCounts(**facts.counts)
    kind = "entries, which are aligned" if facts.is_dictionary else "pairs"
    if facts.role == "test":
        return f"{language}, {facts.name}: {facts.held_out:,} pairs to score"
    return (
        f"{language}, {facts.name}: {facts.training:,} {kind}, and {facts.held_out:,} held out; "
        f"left out of {counts.read:,}: {counts}"
    )


def words_of_pairs(
    recipe: Recipe, layout: WorkdirLayout, language: str
) -> tuple[Counter[str], Counter[str]]:
    """Return counts of words: of a target's text and pairs, and of what is to be cut as before."""
    corpora = [layout.corpus(language)] if language in recipe.languages_of_corpora else []
    pairs = PairCorpus(layout.pairs(language)).pairs if language in recipe.data.pairs else []
    words = words_of(corpora) + count_words([[pair.target for pair in pairs]])
    kept = words_of(map(layout.corpus, recipe.languages_kept))
    return words, kept + count_words([[pair.source for pair in pairs]])
