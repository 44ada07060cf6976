"""Task `topic`: a paragraph of help -> the program that it is about. Like XNLI, parallel in all languages."""

import re
from collections import defaultdict

from ds_minimodel.sample.lines import clean, same_text_key
from ds_minimodel.sample.splits import split_of, wanted_splits

LABELS = {
    "sbasic": "basic",
    "scalc": "calc",
    "swriter": "writer",
    "simpress": "impress",
    "sdraw": "impress",
    "sdatabase": "base",
    "smath": "math",
}
MIN_WORDS = 8
# The names give the answer away. Chinese sets no spaces around them, so \b would miss them there.
_NAMES = re.compile(
    r"(?<![A-Za-z])(LibreOffice|StarOffice|OpenOffice(\.org)?|Writer|Calc|Impress|Draw|Base"
    r"|Math|Basic)(?![A-Za-z])([’'`]?s(?![A-Za-z]))?",
    re.IGNORECASE,
)


def topic_records(pages, languages, source="en"):
    """{(split, language): records {text, label, id}} of `pages`: {language: {page: elements}}.

    Taken are the source's own paragraphs of 8 words or more that stand in one module only, each text
    once (names of programs, case and digits apart, so no text is in two splits); in the other languages the
    same paragraphs, where they are translated.
    """
    chosen = _choose(pages[source])
    records = {}
    for language in languages:
        for split in wanted_splits(language, source):
            records[split, language] = []
        for page, elements in sorted(pages[language].items()):
            split = split_of(page)
            if (split, language) not in records:
                continue
            for element in elements:
                original = chosen.get((page, element.key))
                if original and not element.heading and (language == source or element.text != original):
                    records[split, language].append(
                        {
                            "text": strip_names(element.text),
                            "label": LABELS[_module(page)],
                            "id": f"{page}|{element.key}",
                        }
                    )
    return records


def strip_names(text):
    return clean(_NAMES.sub(" ", text))


def _module(page):
    return page.split("/")[0]


def _choose(pages):
    """{(page, key): text} of the paragraphs that can be told apart by module."""
    modules = defaultdict(set)
    for page, elements in pages.items():
        for element in elements:
            modules[_identity(element.text)].add(LABELS.get(_module(page), "shared"))
    chosen, seen = {}, set()
    for page, elements in sorted(pages.items()):
        for element in elements if _module(page) in LABELS else ():
            same = _identity(element.text)
            if (
                element.key
                and not element.heading
                and len(element.text.split()) >= MIN_WORDS
                and len(modules[same]) == 1
                and same not in seen
            ):
                seen.add(same)
                chosen[page, element.key] = element.text
    return chosen


def _identity(text):
    return same_text_key(strip_names(text))
