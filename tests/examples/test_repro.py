"""Tasks of the set `repro`: what they hold, and that training and test data share no text."""

import random

from ds_minimodel_examples.fetch import fetch
from ds_minimodel_examples.repro import Splits

from tests.helpers.files import read_json_lines

WORDS = {
    "en": (
        "apple bridge candle desert engine forest garden hammer island jacket kettle ladder mirror "
        "orange"
    ).split(),
    "de": (
        "Apfel Brücke Kerze Wüste Motor Wald Garten Hammer Insel Jacke Kessel Leiter Spiegel Orange"
    ).split(),
}
SECTIONS = ["games", "net", "math", "oldlibs"]


def description(language, number, section=None):
    """Document of package p-NUMBER: a synopsis, and a paragraph of two sentences that shares a word
    with it.
    """
    draw = random.Random(f"{language}{number}")
    words = [
        draw.choice(WORDS[language]) + "abcdefghij"[int(digit)]
        for digit in f"{number:03}"
        for _ in range(3)
    ]
    sentences = [
        " ".join([*draw.sample(words, 3), *draw.choices(WORDS[language], k=5)]).capitalize()
        for _ in "12"
    ]
    return {
        "language": language,
        "lines": [" ".join(words[:4]), f"p-{number:03} {sentences[0]}. {sentences[1]}."],
        "page": f"packages/s{number:03}",
        "label": section or SECTIONS[number % 4],
        "names": [f"p-{number:03}"],
    }


def test_the_set_repro(distribution, help_packages, tmp_path):
    """With real apt: no text of a held-out package is in a corpus, and every task has all its
    files.
    """
    english = [description("en", number) for number in range(150)]
    german = [description("de", number) for number in range(150)]
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
            "dep11/Components-{architecture}.yml": (
                f"---\nPackage: p-000\nSummary: {{C: Play it, de: {summary}}}\n"
            ),
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
    rows = read_json_lines(tmp_path / "out/tasks/section/test.de.jsonl")
    assert {"text": summary, "label": "games"} in [
        {key: row[key] for key in ("text", "label")} for row in rows
    ]
    licences = (tmp_path / "out/LICENSES.md").read_text()
    assert "application-descriptions" in licences
    assert "package-descriptions" in licences
