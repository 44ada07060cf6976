#!/usr/bin/env python3
"""What WECHSEL and OFA need, made from a recipe's own text and from FreeDict's dictionaries.

    python scripts/word_vectors.py recipes/study.yaml data/study-vectors [KEY=VALUE …]

Writes OUT/LANGUAGE.vec, word vectors that gensim's fastText trains on the text of each language of the recipe, and
OUT/LANGUAGE.pairs.txt, pairs of an English word and its translation, of each target. The dictionaries are Debian's
packages of FreeDict (`apt-get`, no root, nothing is installed); OUT/LICENSES.md names their licences. What is there
already is left as it is. The recipe takes them as `adapt.word_vectors` and `adapt.dictionaries`. Needs the extra
`focus`.
"""

import argparse
import gzip
import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from ds_minimodel_examples.fetch import PACKAGES_FOLDER
from ds_minimodel_examples.packages import Package, PackageStore, licences_page
from ds_minimodel_examples.text import Document

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write
from ds_minimodel.data.reader import read_documents
from ds_minimodel.recipe.reading import load_recipe

PACKAGE = "dict-freedict-eng-"
CODES = {"de": "deu", "es": "spa", "tr": "tur", "fr": "fra", "ru": "rus", "el": "ell"}  # FreeDict's, of ISO 639-3
_NO_TRANSLATION = re.compile(r"\s*(synonym|see\b|note\b|\")", re.IGNORECASE)
_REMARK = re.compile(r"\([^)]*\)|\[[^]]*\]|<[^>]*>|/[^/]*/|^\s*\d+\.")


def words_of(documents: Iterable[Iterable[str]]) -> list[list[str]]:
    """Sentences of a text as lists of words."""
    return [re.findall(r"\w+|[^\w\s]", line) for document in documents for line in document]


def write_vectors(sentences: list[list[str]], path: Path) -> list[str]:
    """Write fastText vectors of the words of `sentences`, most frequent first, in fastText's text form; the words."""
    from gensim.models import FastText

    model = FastText(sentences, vector_size=100, sg=1, min_count=3, epochs=5, workers=1, seed=1, bucket=1 << 17)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    model.wv.save_word2vec_format(str(part))
    part.replace(path)
    return list(model.wv.key_to_index)


def word_pairs(index: Iterable[str], entries: bytes) -> Iterator[tuple[str, str]]:
    """Yield (English word, translation) of a dictionary in dictd's form; what is more than one word is left out.

    index: lines `headword TAB offset TAB length`, numbers in dictd's base 64. An entry has the headword in its first
    line, then translations, separated by commas and semicolons, among remarks in brackets.
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
        value = 64 * value + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(digit)
    return value


def dictionary_documents(language: str, folder: Path) -> Iterator[Document]:
    """Yield the word pairs of an unpacked package as one document, a pair a line."""
    stem = folder / f"usr/share/dictd/freedict-eng-{CODES[language]}"
    with gzip.open(f"{stem}.dict.dz") as packed, open(f"{stem}.index", encoding="utf-8") as index:
        pairs = dict.fromkeys(word_pairs(index, packed.read()))
    yield {"language": language, "lines": ["\t".join(pair) for pair in pairs]}


def write_dictionaries(languages: Iterable[str], out: Path) -> None:
    """Write the word pairs of each language; UserError for one that FreeDict has not."""
    packages = {}
    for language in languages:
        if language not in CODES:
            raise UserError(f"language {language}: no dictionary is known of it; there are {', '.join(CODES)}")
        extract = partial(dictionary_documents, language)
        packages[language] = Package(PACKAGE + CODES[language], extract, "word pairs", required=True)
    if all(pairs_file(out, language).is_file() for language in packages):
        return
    store = PackageStore(out.resolve().parent / PACKAGES_FOLDER, print)
    store.fill(list(packages.values()))
    for language, package in packages.items():
        with atomic_write(pairs_file(out, language), "w") as file:
            file.writelines(f"{line}\n" for document in store.documents(package.name) for line in document["lines"])
    names = [PACKAGE + code for code in CODES.values() if store.has(PACKAGE + code)]
    with atomic_write(out / "LICENSES.md", "w") as file:
        file.write(licences_page({name: {**store.facts(name), "taken": "word pairs"} for name in names}))


def pairs_file(out: Path, language: str) -> Path:
    return out / f"{language}.pairs.txt"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    try:
        recipe = load_recipe(options.recipe, options.overrides)
        if recipe.languages.source != "en":
            raise UserError(f"languages.source: {recipe.languages.source}, but the dictionaries begin with English")
        write_dictionaries(recipe.languages.targets, options.out)
        for language in recipe.languages.all:
            path = options.out / f"{language}.vec"
            if not path.is_file():
                print(path)
                write_vectors(words_of(read_documents(recipe.data.text[language])), path)
    except (UserError, OSError) as error:  # an OSError names the file
        print(f"ds-minimodel: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
