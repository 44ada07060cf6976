"""A retrieval task in a finished workdir: scored with the bodies as they are, and nothing is finetuned."""

import json

import numpy as np
import pytest

from ds_minimodel.api import Embedder

from ..forks import run
from .conftest import copy_of
from .test_status import states

SYSTEMS = ("bl_base", "bl_small", "minijoint", "minipost", "multijoint")
BODIES = {"bl_base": "bl_base", "minijoint": "minijoint", "minipost": "bl_base"}


@pytest.fixture
def recipe(world, tmp_path):
    """The finished world with one more task, and it alone; the first 40 lines of the text, which are parallel."""
    path = copy_of(world, tmp_path)
    for language in ("en", "xx"):
        lines = [line for line in (path.parent / f"{language}.txt").read_text().split("\n") if line][:40]
        (path.parent / f"lines.{language}").write_text("\n".join(lines))
    task = {
        "kind": "retrieval",
        "pool": "mean",
        "depth": 2,
        "test": {"xx": f"{path.parent}/lines.xx"},
        "translations": {"xx": f"{path.parent}/lines.en"},
    }
    head, _, rest = path.read_text().partition("  tasks:")
    path.write_text(f"{head}  tasks: {json.dumps({'lines': task})}\n{rest[rest.index('engine:') :]}")
    return path


def accuracy(queries, candidates):
    """Percent of the rows whose nearest is of the same row."""
    queries, candidates = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, candidates))
    return 100 * np.mean((queries @ candidates.T).argmax(1) == np.arange(len(queries)))


def test_scores_status_and_report(recipe, capsys):
    data, workdir = recipe.parent, recipe.parent / "run"
    (workdir / "finetune").rename(data / "finetune")  # none of it is needed
    code, _, err = run("run", recipe)
    assert code == 0, err
    assert not (workdir / "finetune").exists()
    lines = {language: (data / f"lines.{language}").read_text().split("\n") for language in ("en", "xx")}
    for system, body in BODIES.items():
        rows = json.loads((workdir / f"evaluate/{system}/xx/lines/seed-3/scores.json").read_text())
        assert [(row["seed"], row["step"]) for row in rows] == [(3, 0), (3, 4), (3, 8)]
        folder, pack = workdir / f"pretrain/{body}", workdir / f"adapt/{system}/xx/pack"
        embedder = Embedder(folder / "body", {"en": folder / "pack", "xx": pack}, depth=2)
        own, of_source = (embedder.embed(lines[language], language) for language in ("xx", "en"))
        assert len({*lines["xx"]}) == 40
        expected = accuracy(own, of_source), accuracy(of_source, own)
        assert (rows[-1]["to_source"], rows[-1]["from_source"]) == pytest.approx(expected)
        assert rows[-1]["score"] == pytest.approx(sum(expected) / 2)
    page = (workdir / "report/report.md").read_text()
    for text in ("accuracy of nearest neighbours", "not finetuned", "chance", "TF-IDF of letters", "to source"):
        assert text in page, text
    with open(data / "lines.en", "a") as file:
        file.write("s")  # of another content
    found = {name: row["state"] for name, row in states(capsys, recipe).items() if "evaluate" in name}
    stale = {f"evaluate/{system}/xx/lines/seed-3": "stale" for system in SYSTEMS}
    assert found == {**stale, "evaluate/baselines/xx/lines": "stale"}
