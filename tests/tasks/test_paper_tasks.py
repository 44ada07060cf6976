"""The paper's recipe on small files of the official forms, under the names that they are downloaded with."""

from pathlib import Path

import pytest

from ds_minimodel.pipeline.check import check_ahead
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.tasks import KINDS

from ..pipeline.conftest import squad

XNLI = (
    "language gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 "
    "sentence2 promptID pairID genre label1 label2 label3 label4 label5 sentence1_tokenized sentence2_tokenized "
    "match"
).split()


def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The paper's recipe in a folder that holds every file that it names."""
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("paper")
    for files in recipe.data.text.values():
        write(files[0], "a line\n")
    tasks = recipe.finetune.tasks
    write(tasks["xnli"].train, 'premise\thypo\tlabel\nA "\t#b\tcontradictory\nc\td\tneutral\ne\tf\tentailment\n')
    rows = [
        [language, label, "", "", "", "", f"{language} 1", '"', "1", "1n", "genre", "", "", "", "", "", "", "", ""]
        for label in ("neutral", "contradiction")
        for language in recipe.languages.all
    ]
    write(tasks["xnli"].test["de"], "".join("\t".join(row) + "\n" for row in [XNLI, *rows]))
    for path in (tasks["pawsx"].train, *tasks["pawsx"].test.values()):
        write(path, "id\tsentence1\tsentence2\tlabel\n1\ta\tb\t0\n2\tNS\tNS\t0\n3\tc\td\t1\n")
    for name in ("mlqa", "xquad"):
        for path in (tasks[name].train, *tasks[name].test.values()):
            write(path, squad(("5a", "?", "北京是首都。", "北京", 0)))
    return recipe


def test_all_four_tasks_are_read_from_their_official_files(recipe):
    assert check_ahead(recipe, ("finetune", "evaluate"), 8) == ["finetune", "evaluate"]
    xnli, kind = recipe.finetune.tasks["xnli"], KINDS["pair"]
    labels = kind.labels(xnli, "en")
    assert labels == ["contradiction", "entailment", "neutral"]
    for language in recipe.languages.all:
        records = kind.read(xnli.test[language], xnli, language, labels)
        assert records.texts == ([f"{language} 1"] * 2, ['"', '"']) and records.targets.tolist() == [2, 0]
