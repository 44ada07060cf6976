"""The notebook, cell by cell in one process and an empty folder, with less text and fewer steps."""

import json
import re
from pathlib import Path

from ..forks import Fork

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples/first_language.ipynb"
FEWER = {
    "documents: int = 2000": "documents: int = 200",
    "{steps: 500,": "{steps: 20,",
    "warmup_steps: 30": "warmup_steps: 3",
    "steps: 1000, snapshot_every: 100": "steps: 20, snapshot_every: 10",
    "epochs: 8": "epochs: 2",
}


def cells(kind):
    return ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def test_its_code_runs_in_an_empty_folder(tmp_path):
    code = "\n".join(cells("code"))
    for many, few in FEWER.items():
        assert many in code
        code = code.replace(many, few)
    (tmp_path / "notebook.py").write_text(code, encoding="utf-8")
    process = Fork("runpy:run_path", "notebook.py", {}, "__main__", cwd=tmp_path, PYTHONPATH=str(ROOT))
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "| MiniJoint | adapt |" in out and "accuracy in Xish by step: {0: " in out
    assert len(re.findall(r"\| (sea|farm|town) (sea|farm|town)$", out, re.MULTILINE)) == 3


def test_its_links_lead_somewhere():
    links = [link for text in cells("markdown") for link in re.findall(r"\]\(([^)#]+)", text)]
    assert links and all((NOTEBOOK.parent / link).exists() for link in links)
