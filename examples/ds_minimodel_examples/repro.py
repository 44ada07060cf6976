"""Tasks of the set `repro`, large enough to tell systems apart: `section`, `match` and `find`.

section (classification): of which of nine topics is a package, by its description? The label is its
section in Debian. match (pair): does a sentence belong to the short text before it? find (SQuAD
1.1): which of four sentences does?

The short texts and sentences are the synopses and descriptions of packages and of applications,
headings and the help below them, labels of widgets and their tips. A wrong sentence is one that
shares about as many words with the short text as the right one does, so that counting words is of
little use. All text of a source package, of a page of help or of a dialog is in one split.
Applications are all in "test": they are translated into more languages than the rest is.
"""

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ds_minimodel_examples.tasks import Split, split_of, wanted_splits
from ds_minimodel_examples.text import Document, clean, is_text, same_text_key

_SECTIONS = {  # of Debian, by topic
    "games": "games",
    "science": "science math",
    "net": "net mail news",
    "web": "web httpd",
    "media": "sound video",
    "graphics": "graphics",
    "admin": "admin kernel",
    "text": "text editors tex",
    "devel": "devel debug vcs",
}
TOPICS = {section: topic for topic, sections in _SECTIONS.items() for section in sections.split()}
TRAIN_EXAMPLES = {"section": 20_000, "match": 40_000, "find": 15_000}  # at most
HELD_OUT_EXAMPLES = 1_000  # at most, of a task, language and split
SENTENCES = 3  # of a description, at most; the first ones say what it is about
MIN_WORDS, MAX_WORDS = 6, 30  # of a sentence
MAX_DESCRIPTION_WORDS = 60  # of a text of `section`
CANDIDATES = 150  # sentences that a wrong one is chosen from
MAX_DIFFERENCE = (
    0.12  # between the shares of words, and of letters, that the right and a wrong sentence have
)
CHOICES = 4  # sentences of a context of `find`
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_WORD, _HAN, _STEM_LETTERS = re.compile(r"\w+"), re.compile("[\u3400-\u9fff]"), 5
_BRACKETS = re.compile(r"^[\s:;,.–—-]+|\(\s*\)")  # what names leave behind


@dataclass(frozen=True)
class Item:
    """A short text and a sentence that says more about the same thing. `kind`: what both are;
    `page`: see Document.
    """

    page: str
    kind: str
    short: str
    sentence: str

    @property
    def id(self) -> str:
        return (
            f"{self.page}|{hashlib.md5(f'{self.short}|{self.sentence}'.encode()).hexdigest()[:8]}"
        )

    @cached_property
    def pieces(self) -> tuple[set[str], set[str], set[str], set[str]]:
        """Stems of the short text and of the sentence, and letter triples of both."""
        return stems(self.short), stems(self.sentence), triples(self.short), triples(self.sentence)

    def shared_with(self, other: "Item") -> tuple[float, float]:
        """Share of the short text's stems, and of its letter triples, that the sentence of `other`
        has.
        """
        return overlap(self.pieces[0], other.pieces[1]), overlap(self.pieces[2], other.pieces[3])


def stems(text: str) -> set[str]:
    """First letters of the words; each Chinese character counts as a word."""
    return {word[:_STEM_LETTERS] for word in _WORD.findall(_HAN.sub(r" \g<0> ", text.lower()))}


def triples(text: str) -> set[str]:
    """All runs of three letters or digits, across words."""
    letters = "".join(_WORD.findall(text.lower()))
    return {letters[at : at + 3] for at in range(len(letters) - 2)}


def overlap(wanted: set[str], present: set[str]) -> float:
    """Share of `wanted` that is `present`; 0 of nothing."""
    return len(wanted & present) / len(wanted) if wanted else 0.0


class Splits:
    """Which split a page is in; applications: pages of applications, all of them for testing."""

    def __init__(self, applications: Iterable[str]) -> None:
        self.applications = frozenset(applications)

    def of(self, page: str) -> str:
        return "test" if page in self.applications else split_of(page)

    def is_held_out(self, page: str) -> bool:
        """Whether a page is in no training data, neither of a task nor of a corpus."""
        return self.of(page) != "train"


def section_records(
    descriptions: Mapping[str, Sequence[Document]], splits: Splits, source: str = "en"
) -> dict[Split, list[dict[str, str]]]:
    """Return {(split, language): records {text, label, id}}; descriptions: documents of packages by
    language.

    A text is the synopsis and the first paragraph, the package's names left out; each stands there
    once.
    """
    records: dict[Split, list[dict[str, str]]] = {}
    seen: dict[str, set[str]] = {}  # what is not translated is a text of the source language
    for language in sorted(descriptions, key=lambda language: language != source):
        seen[language] = set(seen.get(source, ()))
        of_split = defaultdict(list)
        for document in descriptions[language]:
            topic, page = TOPICS.get(document["label"]), document["page"]
            text = without_names(" – ".join(document["lines"][:2]), document["names"])
            text = clean(" ".join(text.split(" ")[:MAX_DESCRIPTION_WORDS]))
            key = same_text_key(text)
            if (
                topic
                and key not in seen[language]
                and is_text(text, language)
                and word_count(text) >= MIN_WORDS
            ):
                seen[language].add(key)
                name = hashlib.md5(text.encode()).hexdigest()[:8]
                of_split[splits.of(page)].append(
                    {"text": text, "label": topic, "id": f"{page}|{name}"}
                )
        for split in wanted_splits(language, source):
            found = sorted(of_split[split], key=lambda record: _rank(record["id"]))
            records[split, language] = found[: _most("section", split)]
    return records


def match_and_find_records(
    items: Mapping[str, Sequence[Item]], splits: Splits, source: str = "en"
) -> tuple[dict[Split, list[dict[str, str]]], dict[Split, dict]]:
    """Return ({(split, language): pair records}, {(split, language): SQuAD 1.1 data}) of the items
    by language.
    """
    pairs: dict[Split, list[dict[str, str]]] = {}
    questions: dict[Split, dict] = {}
    english: set[str] = set()
    for language in sorted(items, key=lambda language: language != source):
        usable = list(_usable(items[language], language, english))
        if language == source:
            english = {same_text_key(item.sentence) for item in usable}
        of_split: defaultdict[str, list[Item]] = defaultdict(list)
        for item in sorted(usable, key=lambda item: _rank(item.id)):
            of_split[splits.of(item.page)].append(item)
        for split in wanted_splits(language, source):
            pairs[split, language] = list(_pairs(of_split[split], language, _most("match", split)))
            articles = list(_articles(of_split[split], language, _most("find", split)))
            questions[split, language] = {"version": "1.1", "data": articles}
    return pairs, questions


def description_items(document: Document) -> Iterator[Item]:
    """Yield the items of a description: its synopsis with each of its first sentences, names left
    out.
    """
    synopsis, *paragraphs = (without_names(line, document["names"]) for line in document["lines"])
    sentences = (clean(sentence) for line in paragraphs for sentence in _SENTENCE_END.split(line))
    proper = [sentence for sentence in sentences if MIN_WORDS <= word_count(sentence) <= MAX_WORDS]
    for sentence in proper[:SENTENCES]:
        yield Item(document["page"], "description", synopsis, sentence)


def widget_items(document: Document) -> Iterator[Item]:
    """Yield the items of a dialog: a label and the first sentence of its tip."""
    for label, tip in document["pairs"]:
        yield Item(document["page"], "tip", label, _SENTENCE_END.split(tip)[0])


def help_items(questions: dict) -> Iterator[Item]:
    """Yield the items of LibreOffice's help, from the questions that `tasks.questions_of` asks of
    it.
    """
    for article in questions["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                sentence = _SENTENCE_END.split(asked["answers"][0]["text"])[0]
                yield Item(article["title"], "help", asked["question"], sentence)


def without_names(text: str, names: Iterable[str]) -> str:
    """Text without the names of a package, which would give the answer away."""
    lower = text.lower()
    present = [
        name
        for name in sorted(names, key=len, reverse=True)
        if len(name) > 1 and name.lower() in lower
    ]
    found = "|".join(
        map(re.escape, present)
    )  # compiling one for every package would take longest of all
    bare = re.sub(rf"(?<!\w)({found})(?!\w)", " ", text, flags=re.IGNORECASE) if found else text
    return clean(_BRACKETS.sub(" ", clean(bare)))


def word_count(text: str) -> int:
    """Number of words; two Chinese characters count as one."""
    return max(len(text.split()), sum("\u3400" <= letter <= "\u9fff" for letter in text) // 2)


def _usable(items: Iterable[Item], language: str, english: set[str]) -> Iterator[Item]:
    """Yield the items that are translated, of fair length, and of which neither text stands on
    another page too.
    """
    items = list(dict.fromkeys(items))
    pages: defaultdict[str, set[str]] = defaultdict(set)
    times = Counter(same_text_key(item.sentence) for item in items)
    for item in items:
        pages[same_text_key(item.short)].add(item.page)
    for item in items:
        key = same_text_key(item.sentence)
        if (
            len(item.short) > 2
            and word_count(item.short) <= MAX_WORDS
            and MIN_WORDS <= word_count(item.sentence) <= MAX_WORDS
            and is_text(item.sentence, language)
            and times[key] == 1
            and len(pages[same_text_key(item.short)]) == 1
            and key not in english
        ):
            yield item


def _pairs(items: list[Item], language: str, most: int) -> Iterator[dict[str, str]]:
    """Yield each short text twice: with its own sentence, and with a wrong one."""
    for _, item, _, wrong in _with_wrong_ones(items, language, 1, most // 2):
        for label, sentence in (("1", item.sentence), ("0", wrong[0])):
            yield {
                "sentence1": item.short,
                "sentence2": sentence,
                "label": label,
                "id": f"{item.id}|{label}",
            }


def _articles(items: list[Item], language: str, most: int) -> Iterator[dict]:
    for number, item, draw, wrong in _with_wrong_ones(items, language, CHOICES - 1, most):
        place = draw.randrange(CHOICES)
        sentences = [*wrong[:place], item.sentence, *wrong[place:]]
        answer = {
            "text": item.sentence,
            "answer_start": sum(len(one) + 1 for one in sentences[:place]),
        }
        asked = {"id": f"{number}|{item.id}", "question": item.short, "answers": [answer]}
        yield {"title": item.page, "paragraphs": [{"context": " ".join(sentences), "qas": [asked]}]}


def _with_wrong_ones(
    items: list[Item], language: str, count: int, most: int
) -> Iterator[tuple[int, Item, random.Random, list[str]]]:
    """Yield (number, item, random draws of its own, `count` wrong sentences) of at most `most`
    items.

    Left out are items for which too few sentences share as many words with the short text as the
    right one does.
    """
    of_kind: defaultdict[str, list[Item]] = defaultdict(list)
    for item in items:
        of_kind[item.kind].append(item)
    number = 0
    for item in items:
        if number == most:
            return
        draw = random.Random(f"{language} {count} {item.id}")
        own = item.shared_with(item)
        candidates = draw.sample(of_kind[item.kind], min(CANDIDATES, len(of_kind[item.kind])))
        differences = [
            (max(abs(a - b) for a, b in zip(own, item.shared_with(other), strict=True)), at)
            for at, other in enumerate(candidates)
            if other.page != item.page
        ]
        near = sorted(pair for pair in differences if pair[0] <= MAX_DIFFERENCE)[:count]
        if len(near) == count:
            wrong = [candidates[at].sentence for _, at in near]
            draw.shuffle(wrong)
            yield number, item, draw, wrong
            number += 1


def _most(task: str, split: str) -> int:
    return TRAIN_EXAMPLES[task] if split == "train" else HELD_OUT_EXAMPLES


def _rank(name: str) -> str:
    """Place of an example in an order that has nothing to do with what it says."""
    return hashlib.md5(f"study {name}".encode()).hexdigest()
