"""The paper's recipe on small files of the official forms (test_official.py), under the names of
their downloads.
"""

from pathlib import Path

from ds_minimodel.config.reading import load_recipe
from ds_minimodel.evaluation import KINDS
from ds_minimodel.pipeline.check import check_ahead
from tests.evaluation.conftest import XNLI, nli, tsv

from ..pipeline.conftest import squad


def test_all_four_tasks_are_read_from_their_official_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("paper")
    tasks = recipe.finetune.tasks
    languages = recipe.languages.all
    questions = squad(("5a", "?", "北京是首都。", "北京", 0))
    files = [path for text in recipe.data.text.values() for path in text]
    files += [path for task in tasks.values() for path in (task.train, *task.test.values())]
    for path in map(Path, files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(questions if path.suffix == ".json" else "a line\n")
    tsv(
        Path(tasks["xnli"].train),
        ["premise", "hypo", "label"],
        ["a", "b", "contradictory"],
        ["c", "d", "neutral"],
    )
    tsv(
        Path(tasks["xnli"].test["de"]),
        XNLI,
        *(nli("neutral", language, "b", language) for language in languages),
    )
    for path in map(Path, (tasks["pawsx"].train, *tasks["pawsx"].test.values())):
        tsv(
            path,
            ["id", "sentence1", "sentence2", "label"],
            ["1", "a", "b", "0"],
            ["2", "c", "d", "1"],
        )
    assert check_ahead(recipe, ("finetune", "evaluate"), 8) == ["finetune", "evaluate"]
    xnli = tasks["xnli"]
    for language in languages:
        records = KINDS["sentence-pair"].read(
            xnli.test[language], xnli, language=language, labels=xnli.labels
        )
        assert records.texts[0] == [language]
