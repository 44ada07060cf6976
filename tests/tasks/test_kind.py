"""What a kind of task is, is said in tasks/ alone; and what job records hold of a task stays."""

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

from ds_minimodel.recipe.schema import Task
from ds_minimodel.tasks import FINETUNED, KINDS

PACKAGE = Path(__file__).parents[2] / "ds_minimodel"
# In the records of jobs since before kinds were objects: a workdir of then is still complete.
RECORDED: dict[str, object] = {
    "labels": None,
    "columns": {},
    "lr": None,
    "epochs": None,
    "batch_size": None,
    "max_length": None,
    "question_length": 64,
    "stride": 128,
    "answer_length": 30,
    "metric": "squad",
}


@pytest.mark.parametrize("kind", FINETUNED)
def test_job_records_hold_what_they_always_did(kind):
    assert Task(kind=kind, train="a", test={}).settings() == {"kind": kind, **RECORDED}


def test_a_new_kinds_keys_do_not_enter_the_records_of_others(monkeypatch):
    class Keys(BaseModel):
        epochs: int = 1

    monkeypatch.setattr(type(KINDS["tagging"]), "keys", Keys)
    assert "epochs" not in Task(kind="pair", train="a", test={}).settings()
    assert "epochs" in Task(kind="tagging", train="a", test={}).settings()


def kinds_named(tree):
    """Line of each comparison with a kind's name, and of each table by kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            found = node.keys
        else:
            continue
        if any(isinstance(part, ast.Constant) and part.value in KINDS for part in found):
            yield node.lineno


def test_nothing_outside_branches_on_a_kind():
    assert list(kinds_named(ast.parse("a = {'qa': 1}\nb = kind == 'pair'\nc = kind in KINDS"))) == [1, 2]
    files = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "tasks"]
    assert len(files) > 50
    assert [f"{path}:{line}" for path in files for line in kinds_named(ast.parse(path.read_text()))] == []
