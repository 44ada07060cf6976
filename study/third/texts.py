"""Text of the third study: LibreOffice's help trains; held-out pages of it, and manuals of another
source, test.

    python study/third/texts.py FOLDER [LANGUAGE…] [--man]

writes LANGUAGE.train.txt, LANGUAGE.help.txt and LANGUAGE.manual.txt, with --man but for English
LANGUAGE.man.txt of manual pages, too: documents with an empty line between them. A line stands in
one of them alone. The packages' licences are in FOLDER/LICENSES.md.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from ds_minimodel_examples.extractors import mallard_by_folder, man_page_documents
from ds_minimodel_examples.fetch import help_packages
from ds_minimodel_examples.packages import Package, PackageStore, licences_page
from ds_minimodel_examples.text import merge, same_text_key, write_text

from ds_minimodel.common.files import atomic_write

LANGUAGES = "en", "de", "el", "tr"
HELD_OUT = 40  # every so many pages of the help are put aside
TEST_BYTES = 60_000  # of each test text
GNOME = Package("gnome-user-docs", mallard_by_folder, "manual")
MANUALS = {
    "tr": Package("manpages-tr", man_page_documents, "manual pages")
}  # where GNOME's is not translated


def main(folder: Path, languages: Sequence[str], has_man: bool) -> None:
    languages, translated = (
        languages or LANGUAGES,
        [own for own in languages if has_man and own != "en"],
    )
    man = {
        own: Package(f"manpages-{own}", man_page_documents, "manual pages") for own in translated
    }
    packages = [
        *help_packages(languages),
        GNOME,
        *(MANUALS[own] for own in languages if own in MANUALS),
        *man.values(),
    ]
    store = PackageStore(folder / "debian-packages", print)
    store.fill(packages)
    english: set[str] = set()
    for language, package in zip(languages, packages, strict=False):
        pages = list(documents(store, package, language))
        tests = {
            "help": pages[::HELD_OUT],
            "manual": list(documents(store, MANUALS.get(language, GNOME), language)),
        }
        tests |= {"man": list(documents(store, man[language], language))} if language in man else {}
        held_out: set[str] = set()
        for name, test in tests.items():
            chosen = list(first_bytes(merge(test, english, held_out, language), TEST_BYTES))
            write_text(folder / f"{language}.{name}.txt", chosen)
            held_out |= keys(chosen)
        training = merge(
            (page for number, page in enumerate(pages) if number % HELD_OUT),
            english,
            held_out,
            language,
        )
        print(language, write_text(folder / f"{language}.train.txt", training))
        if language == "en":
            english = keys([*pages, *tests["manual"]])
    facts = {
        package.name: {**store.facts(package.name), "taken": package.taken} for package in packages
    }
    with atomic_write(folder / "LICENSES.md") as file:
        file.write(licences_page(facts).encode())


def documents(store: PackageStore, package: Package, language: str) -> Iterator[list[str]]:
    return (
        document["lines"]
        for document in store.documents(package.name)
        if document["language"] == language
    )


def first_bytes(texts: Iterator[list[str]], most: int) -> Iterator[list[str]]:
    """Documents until they have so many bytes."""
    for lines in texts:
        if most <= 0:
            return
        yield lines
        most -= len("\n".join(lines).encode())


def keys(texts: list[list[str]]) -> set[str]:
    return {same_text_key(line) for lines in texts for line in lines}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("languages", nargs="*")
    parser.add_argument("--man", dest="has_man", action="store_true")
    main(**vars(parser.parse_args()))
