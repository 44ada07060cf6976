"""Tasks out of parallel help pages."""

import pytest
from ds_minimodel_examples.extractors import read_page
from ds_minimodel_examples.tasks import MAX_CONTEXT_WORDS, questions_of, split_of, topic_records


@pytest.fixture
def pages(help_packages, tmp_path):
    """{language: {page: elements}}"""
    found = {"en": {}, "de": {}}
    for language, files in zip(found, help_packages.values(), strict=True):
        for name, text in files.items():
            (tmp_path / "page.html").write_text(text)
            found[language][name.split("/text/")[1]] = read_page(tmp_path / "page.html")
    return found


def test_topic_records_are_parallel(pages):
    records = topic_records(pages, ["en", "de"])
    assert set(records) == {("train", "en"), ("dev", "en"), ("test", "en"), ("test", "de")}
    for (split, _), rows in records.items():
        assert rows
        for row in rows:
            page = row["id"].split("|")[0]
            assert split_of(page) == split
            topics = {"scalc": "calc", "swriter": "writer", "sbasic": "basic", "smath": "math"}
            assert row["label"] == topics[page.split("/")[0]]
            assert "Calc" not in row["text"]
    english = {row["id"] for row in records["test", "en"]}
    german = {row["id"] for row in records["test", "de"]}
    untranslated = {name for name in english if int(name.split("|")[0][-8:-5]) % 10 == 9}
    assert german == english - untranslated
    # what stands in a box, is short, or is a heading is no example
    assert {name.split("|")[1] for name in english} == {
        "par_0#0",
        "par_1#0",
        "par_2#0",
        "par_3#0",
        "par_long#0",
    }


def test_questions_point_at_their_answers(pages):
    for (split, language), squad in questions_of(pages, ["en", "de"]).items():
        assert squad["version"] == "1.1"
        assert squad["data"]
        for article in squad["data"]:
            assert split_of(article["title"]) == split
            for paragraph in article["paragraphs"]:
                assert len(paragraph["qas"]) >= 2
                if language == "en":
                    assert len(paragraph["context"].split()) <= MAX_CONTEXT_WORDS
                for item in paragraph["qas"]:
                    answer = item["answers"][0]
                    assert paragraph["context"][answer["answer_start"] :].startswith(answer["text"])
                    assert item["question"].startswith(
                        {"en": "Command p", "de": "Befehl p"}[language]
                    )
