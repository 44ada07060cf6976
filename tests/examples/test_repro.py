"""Tasks of the set `repro`: what they hold, and that training and test data share no text."""

import json
import random

import pytest
from ds_minimodel_examples.fetch import fetch
from ds_minimodel_examples.repro import (
    CHOICES,
    MAX_DIFFERENCE,
    Item,
    Splits,
    description_items,
    match_and_find_records,
    section_records,
)
from ds_minimodel_examples.text import same_text_key

WORDS = {
    "en": "apple bridge candle desert engine forest garden hammer island jacket kettle ladder mirror orange".split(),
    "de": "Apfel Brücke Kerze Wüste Motor Wald Garten Hammer Insel Jacke Kessel Leiter Spiegel Orange".split(),
}
SECTIONS = ["games", "net", "math", "oldlibs"]
SPLITS = Splits({"packages/s001"})  # of the training data, were it no application


def description(language, number, section=None):
    """Document of package p-NUMBER: a synopsis, and a paragraph of two sentences that shares a word with it."""
    draw = random.Random(f"{language}{number}")
    words = [draw.choice(WORDS[language]) + "abcdefghij"[int(digit)] for digit in f"{number:03}" for _ in range(3)]
    sentences = [" ".join([*draw.sample(words, 3), *draw.choices(WORDS[language], k=5)]).capitalize() for _ in "12"]
    return {
        "language": language,
        "lines": [" ".join(words[:4]), f"p-{number:03} {sentences[0]}. {sentences[1]}."],
        "page": f"packages/s{number:03}",
        "label": section or SECTIONS[number % 4],
        "names": [f"p-{number:03}"],
    }


@pytest.fixture
def descriptions():
    """{language: documents} of 200 packages, three quarters of them translated."""
    german = [description("de" if number % 4 else "en", number) | {"language": "de"} for number in range(200)]
    return {"en": [description("en", number) for number in range(200)], "de": german}


@pytest.fixture
def items(descriptions):
    """{language: items} of these descriptions."""
    return {name: [item for one in found for item in description_items(one)] for name, found in descriptions.items()}


def test_sections(descriptions):
    records = section_records(descriptions, SPLITS)
    assert set(records) == {("train", "en"), ("dev", "en"), ("test", "en"), ("test", "de")}
    for (split, language), rows in records.items():
        assert rows
        for row in rows:
            page = row["id"].split("|")[0]
            assert SPLITS.of(page) == split
            number = int(page[-3:])
            assert row["label"] == {"math": "science"}.get(SECTIONS[number % 4], SECTIONS[number % 4])
            assert "p-" not in row["text"]
            assert language == "en" or number % 4  # what is not translated is no example
    assert any(row["id"].startswith("packages/s001|") for row in records["test", "en"])  # an application
    keys = [same_text_key(row["text"]) for rows in records.values() for row in rows]
    assert len(keys) == len(set(keys))


def test_wrong_sentences_share_as_many_words(items):
    pairs, questions = match_and_find_records(items, SPLITS)
    right = {item.short: item for item in items["en"]}
    for split in ("train", "dev", "test"):
        rows = pairs[split, "en"]
        assert [row["label"] for row in rows] == ["1", "0"] * (len(rows) // 2)
        for row in rows:
            page = row["id"].split("|")[0]
            assert SPLITS.of(page) == split
            own = next(item for item in items["en"] if f"{item.id}|{row['label']}" == row["id"])
            given = Item(page, own.kind, row["sentence1"], row["sentence2"])
            assert (given.sentence == own.sentence) == (row["label"] == "1")
            differences = zip(own.shared_with(own), own.shared_with(given), strict=True)
            assert max(abs(one - other) for one, other in differences) <= MAX_DIFFERENCE
        for article in questions[split, "en"]["data"]:
            (paragraph,) = article["paragraphs"]
            (asked,) = paragraph["qas"]
            answer = asked["answers"][0]
            assert paragraph["context"][answer["answer_start"] :].startswith(answer["text"])
            assert paragraph["context"].count(".") == CHOICES
            assert right[asked["question"]].page == article["title"]
    assert pairs["test", "de"] and questions["test", "de"]["data"]


def test_the_set_repro(distribution, help_packages, tmp_path):
    """With real apt: no text of a held-out package is in a corpus, and every task has all its files."""
    english, german = ([description(language, number) for number in range(150)] for language in ("en", "de"))
    packages = "".join(
        f"Package: p-{number:03}\nVersion: 1\nArchitecture: all\nSource: s{number:03}\n"
        f"Section: {one['label']}\nDescription: x\nDescription-md5: {number:032}\n\n"
        for number, one in enumerate(english)
    )

    def index(language, documents):
        return "".join(
            f"Package: p-{number:03}\nDescription-md5: {number:032}\n"
            f"Description-{language}: {one['lines'][0]}\n {one['lines'][1]}\n\n"
            for number, one in enumerate(documents)
        )

    summary = "ein ganz und gar eigener Satz über Anwendungen"
    distribution(
        help_packages,
        {
            "Packages": packages,
            "i18n/Translation-en": index("en", english),
            "i18n/Translation-de": index("de", german),
            "dep11/Components-{architecture}.yml": f"---\nPackage: p-000\nSummary: {{C: Play it, de: {summary}}}\n",
        },
    )
    manifest = fetch(tmp_path / "out", "repro", ["de"], log=lambda line: None)
    assert manifest["tasks"].keys() == {"topic", "section", "match", "find"}
    assert all(all(counts.values()) for counts in manifest["tasks"].values())
    splits = Splits({"packages/s000"})
    for language, documents in (("en", english), ("de", german)):
        text = (tmp_path / f"out/text/{language}.txt").read_text().split("\n")
        for one in documents:
            assert (one["lines"][1] in text) == (splits.of(one["page"]) == "train")
    assert summary not in (tmp_path / "out/text/de.txt").read_text()
    rows = map(json.loads, (tmp_path / "out/tasks/section/test.de.jsonl").read_text().splitlines())
    assert {"text": summary, "label": "games"} in [{key: row[key] for key in ("text", "label")} for row in rows]
    licences = (tmp_path / "out/LICENSES.md").read_text()
    assert "application-descriptions" in licences and "package-descriptions" in licences
