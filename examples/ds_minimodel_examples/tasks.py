"""Labelled tasks out of LibreOffice's help, parallel in all languages: `topic`, and questions."""

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ds_minimodel_examples.extractors import Element
from ds_minimodel_examples.text import clean, same_text_key

Pages = Mapping[str, Mapping[str, list[Element]]]  # {language: {page: elements}}
Split = tuple[str, str]  # (split, language)
Key = str | None  # of an Element

# --- which pages train, tune and test: by a hash of the page's name, so the same in all languages


TEST_PERCENT, DEV_PERCENT = 20, 10


def split_of(page: str) -> str:
    """Split that a page belongs to: "train", "dev" or "test"."""
    bucket = int(hashlib.md5(f"s1{page}".encode()).hexdigest(), 16) % 100
    return (
        "test"
        if bucket < TEST_PERCENT
        else "dev"
        if bucket < TEST_PERCENT + DEV_PERCENT
        else "train"
    )


def is_held_out(page: str) -> bool:
    """Whether a page is in no training data, neither of a task nor of a corpus."""
    return split_of(page) != "train"


def wanted_splits(language: str, source: str) -> tuple[str, ...]:
    """Splits to write in a language: tasks are trained and tuned in the source language only and
    tested in all.
    """
    return ("train", "dev", "test") if language == source else ("test",)


# --- task `topic`: a paragraph of help -> the program that it is about; like XNLI, parallel in all
# languages


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


def topic_records(
    pages: Pages, languages: Iterable[str], source: str = "en"
) -> dict[Split, list[dict[str, str]]]:
    """Return {(split, language): records {text, label, id}} of `pages`.

    Taken are the source's own paragraphs of 8 words or more that stand in one module only, each
    text once (names of programs, case and digits apart, so no text is in two splits); in the other
    languages the same paragraphs, where they are translated.
    """
    chosen = _choose(pages[source])
    records: dict[Split, list[dict[str, str]]] = {}
    for language in languages:
        for split in wanted_splits(language, source):
            records[split, language] = []
        for page, elements in sorted(pages[language].items()):
            split = split_of(page)
            if (split, language) not in records:
                continue
            for element in elements:
                original = chosen.get((page, element.key))
                if (
                    original
                    and not element.heading
                    and (language == source or element.text != original)
                ):
                    records[split, language].append(
                        {
                            "text": strip_names(element.text),
                            "label": LABELS[_module(page)],
                            "id": f"{page}|{element.key}",
                        }
                    )
    return records


def strip_names(text: str) -> str:
    """Text without the names of programs."""
    return clean(_NAMES.sub(" ", text))


def _module(page: str) -> str:
    return page.split("/")[0]


def _choose(pages: Mapping[str, list[Element]]) -> dict[tuple[str, Key], str]:
    """Return {(page, key): text} of the paragraphs that can be told apart by module."""
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for page, elements in pages.items():
        for element in elements:
            modules[_identity(element.text)].add(LABELS.get(_module(page), "shared"))
    chosen: dict[tuple[str, Key], str] = {}
    seen: set[str] = set()
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


def _identity(text: str) -> str:
    return same_text_key(strip_names(text))


# --- questions (SQuAD 1.1), of which repro.py makes items of `match` and `find`: a heading of a
# help page asks, the one-sentence description that follows it is the answer, the page's paragraphs
# around it are the context


MAX_SAME_HEADING = 4  # more often, and it names nothing in particular ("Options", "Example")
MIN_ANSWER_WORDS = 4
MIN_ITEMS_A_PAGE = 3
MAX_CONTEXT_WORDS = 160


def questions_of(pages: Pages, languages: Sequence[str], source: str = "en") -> dict[Split, dict]:
    """Return {(split, language): SQuAD 1.1 data}.

    What is asked and how a page is cut into contexts is decided on the
    source's text, so it is the same in all languages; what is not translated is left out there.
    """
    frequency = Counter(
        element.text
        for elements in pages[source].values()
        for element in elements
        if element.heading
    )
    descriptions = Counter(
        same_text_key(element.extended)
        for elements in pages[source].values()
        for element in elements
        if element.key and element.extended
    )
    questions: dict[Split, list[dict]] = {}
    for language in languages:
        for split in wanted_splits(language, source):
            questions[split, language] = []
    for page, original in sorted(pages[source].items()):
        headings = _described_headings(original, frequency, descriptions)
        split = split_of(page)
        for language in languages if len(headings) >= MIN_ITEMS_A_PAGE else ():
            if (split, language) not in questions:
                continue
            paragraphs = _contexts(page, pages[language].get(page, []), original, headings)
            if paragraphs:
                questions[split, language].append({"title": page, "paragraphs": paragraphs})
    return {key: {"version": "1.1", "data": data} for key, data in questions.items()}


def _described_headings(
    elements: list[Element], frequency: Counter[str], descriptions: Counter[str]
) -> dict[Key, Key]:
    """Return {key of a described paragraph: key of its heading} of a page in the source language.

    A description that stands in two places is left out: it could be in two splits.
    """
    own = [element for element in elements if element.key]
    found: dict[Key, Key] = {}
    for heading, paragraph in itertools.pairwise(own):
        if (
            heading.heading
            and not paragraph.heading
            and paragraph.extended
            and frequency[heading.text] <= MAX_SAME_HEADING
            and descriptions[same_text_key(paragraph.extended)] == 1
            and len(paragraph.extended.split()) >= MIN_ANSWER_WORDS
        ):
            found[paragraph.key] = heading.key
    return found


def _contexts(
    page: str, elements: list[Element], original: list[Element], headings: dict[Key, Key]
) -> list[dict]:
    """SQuAD paragraphs {context, qas} of a page in one language, each with two questions or
    more.
    """
    source_of: dict[Key, Element] = {element.key: element for element in original if element.key}
    heading_text: dict[Key, str] = {
        element.key: element.text for element in elements if element.key and element.heading
    }
    contexts = []
    for chunk in _chunks(elements, source_of):
        context: list[str] = []
        questions: list[dict] = []
        length = 0
        for element in chunk:
            answer = _answer(element, source_of[element.key], elements is original)
            heading = headings.get(element.key)
            if answer and heading in heading_text:
                questions.append(
                    {
                        "id": f"{page}|{element.key}",
                        "question": heading_text[heading],
                        "answers": [
                            {"text": answer, "answer_start": length + element.text.index(answer)}
                        ],
                    }
                )
            context.append(element.text)
            length += len(element.text) + 1
        if len(questions) >= 2:
            contexts.append({"context": " ".join(context), "qas": questions})
    return contexts


def _chunks(elements: list[Element], source_of: dict[Key, Element]) -> Iterator[list[Element]]:
    """Yield runs of whole paragraphs of at most 160 words, counted in the source's text."""
    chunk: list[Element] = []
    words = 0
    for element in elements:
        if element.heading or element.key not in source_of:
            continue
        more = len(source_of[element.key].text.split())
        if chunk and words + more > MAX_CONTEXT_WORDS:
            yield chunk
            chunk, words = [], 0
        chunk.append(element)
        words += more
    if chunk:
        yield chunk


def _answer(element: Element, original: Element, is_source: bool) -> str | None:
    """The description in the paragraph; None where it is not translated or not one piece of the
    text.
    """
    answer = element.extended
    if not answer or answer not in element.text or (not is_source and answer == original.extended):
        return None
    return answer
