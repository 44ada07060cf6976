"""Pairs of the fifth study, out of Debian packages.

    python -m study.fifth.texts FOLDER [LANGUAGE…]

writes FOLDER/LANGUAGE/: help.tsv, gimp.tsv and dictionary.tsv to learn from, help-test.tsv,
gnome-test.tsv and story-test.tsv to be scored. The packages' licences are in FOLDER/LICENSES.md.
"""

import argparse
import hashlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from ds_minimodel_examples.packages import PackageStore, licences_page
from ds_minimodel_examples.text import Document

from ds_minimodel.common.files import atomic_write
from ds_minimodel.text.pairs import MIN_LINE, Pair, clean
from study.fifth.packages import LANGUAGES, packages

NUM_TESTS = 1000
MAX_CHARACTERS = 600  # of a side of a line; the model reads some 250 pieces
LEARNED = "help", "gimp", "dictionary"


def pairs_of(documents: Iterable[Document], language: str, shortest: int) -> dict[str, list[Pair]]:
    """{page: pairs} of what is paired, and of pages that have as many lines in both languages."""
    english: dict[str, list[str]] = {}
    other: dict[str, list[str]] = {}
    found: dict[str, list[tuple[str, str]]] = {}
    for document in documents:
        page = document["page"]
        if document["language"] == "en":
            english[page] = document["lines"]
        elif document["language"] == language:
            found.setdefault(page, []).extend(Pair(*sides) for sides in document.get("pairs", ()))
            other[page] = document["lines"]
    for page in english.keys() & other.keys():
        if len(english[page]) == len(other[page]):
            found[page] += zip(english[page], other[page], strict=True)
    whole = {page: clean(found[page])[0] for page in sorted(found)}
    return {
        page: [pair for pair in own if shortest <= len(pair.source) <= MAX_CHARACTERS]
        for page, own in whole.items()
    }


def first_of(pages: dict[str, list[Pair]], known: Iterable[Pair] = ()) -> list[Pair]:
    """Pairs whose English is there for the first time, in an order that looks random."""
    seen = {pair.source for pair in known}
    new = {pair.source: pair for own in pages.values() for pair in own if pair.source not in seen}
    return random.Random(1).sample([*new.values()], len(new))


def is_held_out(page: str) -> bool:
    """Whether a page is one of a tenth."""
    return int(hashlib.sha256(page.encode()).hexdigest()[:8], 16) % 10 == 0


def main(folder: Path, languages: Sequence[str]) -> None:
    languages = languages or LANGUAGES
    chosen = packages(languages)
    store = PackageStore(folder / "debian-packages", print)
    store.fill([package for own in chosen.values() for package in own])
    for language in languages:
        kinds = {
            kind: pairs_of(
                (document for package in own for document in store.documents(package.name)),
                language,
                0 if kind == "dictionary" else MIN_LINE,
            )
            for kind, own in chosen.items()
        }
        held = {page: kinds["help"].pop(page) for page in [*filter(is_held_out, kinds["help"])]}
        tables = {name: first_of(kinds[name]) for name in LEARNED}
        tables["help-test"] = first_of(held, tables["help"])[:NUM_TESTS]
        for kind in ("gnome", "story"):
            tables[f"{kind}-test"] = first_of(kinds[kind])[:NUM_TESTS]
        for name, table in tables.items():
            with atomic_write(folder / language / f"{name}.tsv", "w") as file:
                file.writelines("\t".join(row) + "\n" for row in [("en", language), *table])
        print(language, {name: len(table) for name, table in tables.items()})
    taken = [package for own in chosen.values() for package in own if store.has(package.name)]
    facts = {own.name: {**store.facts(own.name), "taken": own.taken} for own in taken}
    with atomic_write(folder / "LICENSES.md", "w") as file:
        file.write(licences_page(facts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("languages", nargs="*")
    main(**vars(parser.parse_args()))
