"""Text of the samples: the languages, cleaning of lines, and one corpus file for each language."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from ds_minimodel.common.files import atomic_write


class Document(TypedDict):
    """What an extractor yields: a document's lines of text, in one language.

    page: what it is part of, of which all text is in one split of the tasks. elements: the fields
    of an `extractors.Element` for each line of a page of LibreOffice's help. Of a description of a
    package: label is the package's section, names are what it is called. pairs: a widget's label
    and the tip that explains it.
    """

    language: str
    lines: list[str]
    page: NotRequired[str]
    elements: NotRequired[list[tuple]]
    label: NotRequired[str]
    names: NotRequired[list[str]]
    pairs: NotRequired[list[tuple[str, str]]]


@dataclass(frozen=True)
class Language:
    """What packages call a language, and how to recognise its script.

    package: suffix in package names. translation: name of apt's Translation index. script:
    character class that most letters of a line must belong to, None for Latin script.
    """

    package: str
    translation: str
    script: str | None = None


LANGUAGES = {
    "en": Language("en", "en"),
    "de": Language("de", "de"),
    "es": Language("es", "es"),
    "tr": Language("tr", "tr"),
    "zh": Language("zh-cn", "zh_CN", "\u3400-\u9fff"),
    "fr": Language("fr", "fr"),
    "ru": Language("ru", "ru", "\u0400-\u04ff"),
    "el": Language("el", "el", "\u0370-\u03ff\u1f00-\u1fff"),
    "cs": Language("cs", "cs"),
    "hu": Language("hu", "hu"),
}


def language_of_locale(name: str) -> str | None:
    """Language code of a locale or folder name (`de_DE`, `zh-CN`, `es`); None for one not in
    LANGUAGES.

    Only a language's main variant counts: en_GB or es_419 would repeat the text of en and es.
    """
    code = name.replace("-", "_").lower()
    main = {
        "zh_cn": "zh",
        "zh_hans": "zh",
        "de_de": "de",
        "es_es": "es",
        "tr_tr": "tr",
        "fr_fr": "fr",
        "ru_ru": "ru",
        "el_gr": "el",
        "cs_cz": "cs",
        "hu_hu": "hu",
        "en_us": "en",
    }
    return main.get(code) or (code if code in LANGUAGES else None)


# --- lines


MIN_CHARACTERS = 8
MIN_CJK_CHARACTERS = 4
# Function words that no other language of the samples has in the same spelling.
ENGLISH_WORDS = frozenset(
    "the of and to is that with are this it for from by which you not if has been can should must "
    "when".split()
)
_INVISIBLE = re.compile("[\u00ad\u200b\u200c\u200d\ufeff]")
_SPACE_IN_CJK = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = {
    code: re.compile(f"[{language.script}]")
    for code, language in LANGUAGES.items()
    if language.script
}


def clean(text: str) -> str:
    """Text as one line: runs of white space become one space, none in Chinese text; invisible marks
    go.
    """
    return _SPACE_IN_CJK.sub("", " ".join(_INVISIBLE.sub("", text).split()))


def same_text_key(line: str) -> str:
    """Key that is equal for lines that differ only in case, digits, spaces and punctuation."""
    return "".join(_LETTER.findall(line.casefold())) or line


def is_text(line: str, language: str) -> bool:
    """Whether a clean line is text of the language: not code, a number or an untranslated English
    line.
    """
    letters = len(_LETTER.findall(line))
    if letters < 0.5 * len(line.replace(" ", "")):
        return False
    script = _SCRIPTS.get(language)
    if script:
        own = len(script.findall(line))
        if own < 0.4 * letters:
            return False
        if language == "zh":
            return own >= MIN_CJK_CHARACTERS
    if len(line) < MIN_CHARACTERS:
        return False
    return language == "en" or not looks_english(line)


def looks_english(line: str) -> bool:
    """Whether at least a fifth of the words, and two of them, are English function words."""
    words = _WORD.findall(line.lower())
    english = sum(word in ENGLISH_WORDS for word in words)
    return english >= 2 and english >= 0.2 * len(words)


# --- corpora


def merge(
    documents: Iterable[list[str]], english: set[str], held_out: set[str], language: str
) -> Iterator[list[str]]:
    """Yield the lines of each document that belong in the language's corpus; documents without one
    are left out.

    Left out are lines that are not text of the language, repeat an earlier line, are an
    untranslated English line, or stand on a held-out page. english, held_out: sets of
    `same_text_key`; for the English text itself `english` is empty.
    """
    seen: set[str] = set()
    for lines in documents:
        kept = []
        for line in map(clean, lines):
            key = same_text_key(line)
            if line in seen or key in held_out or key in english or not is_text(line, language):
                continue
            seen.add(line)
            kept.append(line)
        if kept:
            yield kept


def write_text(path: Path, documents: Iterable[list[str]]) -> dict[str, int]:
    """Write documents separated by blank lines, a line a paragraph; return {documents, lines,
    bytes}.
    """
    counts = {"documents": 0, "lines": 0, "bytes": 0}
    with atomic_write(path) as file:
        for lines in documents:
            block = ("\n".join(lines) + "\n\n").encode()
            file.write(block)
            counts["documents"] += 1
            counts["lines"] += len(lines)
            counts["bytes"] += len(block)
    return counts
