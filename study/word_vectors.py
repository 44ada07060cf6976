#!/usr/bin/env python3
"""What WECHSEL and OFA need, made from a recipe's own text and from FreeDict's dictionaries.

    python study/word_vectors.py study/study.yaml data/study-vectors [KEY=VALUE …]

Writes OUT/LANGUAGE.vec, word vectors that gensim's fastText trains on the text of each language of the recipe, and
OUT/LANGUAGE.pairs.txt, pairs of an English word and its translation, of each target. The dictionaries are Debian's
packages of FreeDict (`apt-get`, no root, nothing is installed; what is fetched stays in debian-packages beside OUT);
OUT/dictionaries.md names their licences. A file that is there is left as it is, word pairs of your own too. The recipe
takes them as `adapt.word_vectors` and `adapt.dictionaries`. Needs the extra `focus`.
"""

import argparse
import gzip
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from ds_minimodel_examples.fetch import PACKAGES_FOLDER
from ds_minimodel_examples.packages import Package, PackageStore, licences_page
from ds_minimodel_examples.text import Document

from ds_minimodel.common.errors import UserError, exit_code
from ds_minimodel.common.files import atomic_write, lock
from ds_minimodel.data.reader import read_documents
from ds_minimodel.data.vectors import require_gensim
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.schema import Recipe

CODES = {"de": "deu", "es": "spa", "tr": "tur", "fr": "fra", "ru": "rus", "el": "ell"}  # FreeDict's, of ISO 639-3
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # dictd's, from 0 to 63
_NO_TRANSLATION = re.compile(r'\s*((synonyms?|see|note):|")', re.IGNORECASE)
LEAST = 3  # times that a word must be there to have a vector
_REMARK = re.compile(r"\([^)]*\)|\[[^]]*\]|<[^>]*>|/[^/]*/|^\s*\d+\.")


def word_pairs(index: Iterable[str], entries: bytes) -> Iterator[tuple[str, str]]:
    """Yield (English word, translation) of a dictionary in dictd's form; what is more than one word is left out.

    index: lines `headword TAB offset TAB length`, numbers in dictd's base 64. An entry has the headword in its first
    line, then translations, separated by commas and semicolons, among remarks in brackets. ValueError for another form.
    """
    for line in index:
        word, start, length = line.rstrip("\n").split("\t")[:3]
        if not word or word.startswith("00") or " " in word:  # the dictionary's own data begin with zeros
            continue
        entry = entries[_number(start) : _number(start) + _number(length)]
        _head, *lines = entry.decode("utf-8", "replace").splitlines()
        for text in lines:
            if _NO_TRANSLATION.match(text):
                break
            for translation in re.split("[,;]", _REMARK.sub("", text)):
                if re.fullmatch(r"[^\W\d_]+", translation.strip()):
                    yield word, translation.strip()


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = 64 * value + _DIGITS.index(digit)
    return value


def package_of(language: str) -> Package:
    """The package of a language's dictionary; UserError where none is known."""
    if language not in CODES:
        raise UserError(
            f"language {language}: no dictionary of it is known here, only of {', '.join(CODES)}; "
            f"give word pairs of your own as OUT/{language}.pairs.txt"
        )
    name = f"dict-freedict-eng-{CODES[language]}"
    return Package(name, partial(dictionary_documents, language), "word pairs", required=True)


def dictionary_documents(language: str, folder: Path) -> Iterator[Document]:
    """Yield the word pairs of an unpacked package as one document, a pair a line."""
    stem = folder / f"usr/share/dictd/freedict-eng-{CODES[language]}"
    try:
        with gzip.open(f"{stem}.dict.dz") as packed, open(f"{stem}.index", encoding="utf-8") as index:
            pairs = dict.fromkeys(word_pairs(index, packed.read()))
    except (EOFError, ValueError, OSError, zlib.error) as error:
        raise UserError(
            f"{stem}.dict.dz: not a dictionary as dictd has them ({error}); run again to fetch it"
        ) from None
    yield {"language": language, "lines": ["\t".join(pair) for pair in pairs]}


def pairs_file(out: Path, language: str) -> Path:
    return out / f"{language}.pairs.txt"


def write_dictionaries(languages: Sequence[str], out: Path) -> None:
    """Write the word pairs of each language that has none, and whose they are; UserError without a dictionary."""
    packages = {language: package_of(language) for language in languages if not pairs_file(out, language).is_file()}
    if not packages:
        return
    store = PackageStore(out.resolve().parent / PACKAGES_FOLDER, print)
    try:
        store.fill(list(packages.values()))
        for language, package in packages.items():
            lines = [line for document in store.documents(package.name) for line in document["lines"]]
            if not lines:
                raise ValueError("without word pairs")
            with atomic_write(pairs_file(out, language), "w") as file:
                file.writelines(f"{line}\n" for line in lines)
        made = [package_of(language) for language in CODES if pairs_file(out, language).is_file()]
        facts = {
            package.name: {**store.facts(package.name), "taken": package.taken}
            for package in made
            if store.has(package.name)
        }
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{store.folder}: a damaged dict-freedict file ({error}); delete these and run again") from None
    with atomic_write(out / "dictionaries.md", "w") as file:
        file.write(licences_page(facts))


def words_of(documents: Iterable[Iterable[str]]) -> list[list[str]]:
    """Sentences of a text as lists of words."""
    return [re.findall(r"\w+|[^\w\s]", line) for document in documents for line in document]


def train_word_vectors(sentences: list[list[str]], path: Path) -> list[str]:
    """Write fastText's vectors of the words of `sentences`, most frequent first, to `path`; return the words.

    UserError where no word is there three times.
    """
    from gensim.models import FastText

    settings = {"vector_size": 100, "sg": 1, "epochs": 5, "workers": 1, "seed": 1, "bucket": 1 << 17}
    model = FastText(min_count=LEAST, **settings)
    model.build_vocab(sentences)
    if not len(model.wv):
        raise UserError(f"{path}: not written, for its text has no word {LEAST} times; give it more text")
    model.train(sentences, total_examples=model.corpus_count, epochs=model.epochs)
    with atomic_write(path, "w") as file:
        file.write(f"{len(model.wv)} {model.vector_size}\n")
        for word, vector in zip(model.wv.index_to_key, model.wv.vectors, strict=True):
            file.write(f"{word} {' '.join(map(str, vector))}\n")
    return list(model.wv.index_to_key)


def check_text(recipe: Recipe) -> None:
    """Raise UserError for a language without readable text: before English is trained, which takes longest."""
    for language in recipe.languages.all:
        next(iter(read_documents(recipe.data.text[language], recipe.data.column)), None)


def write(recipe: Recipe, out: Path) -> None:
    """Write the vectors and dictionaries that are not there; UserError early where one cannot be made."""
    if recipe.languages.source != "en":
        raise UserError(
            f"languages.source: {recipe.languages.source}, but FreeDict's dictionaries are from English; "
            "give word pairs of your own as adapt.dictionaries"
        )
    for language in recipe.languages.targets:
        if not pairs_file(out, language).is_file():
            package_of(language)
    require_gensim(Path(__file__).name)
    check_text(recipe)
    with lock(out / "word_vectors.lock"):
        write_dictionaries(recipe.languages.targets, out)
        for language in recipe.languages.all:
            path = out / f"{language}.vec"
            if not path.is_file():
                print(path)
                train_word_vectors(words_of(read_documents(recipe.data.text[language], recipe.data.column)), path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", help="a recipe; its languages and text are taken")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write to; minutes for each 10 MB of text")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="values of the recipe's keys")
    options = parser.parse_args()
    try:
        return exit_code(lambda: write(load_recipe(options.recipe, options.overrides), options.out))
    except KeyboardInterrupt:
        print("stopped; the same command goes on after the last whole file", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
