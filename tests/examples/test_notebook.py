"""The notebook, cell by cell in a fresh process and an empty folder, with fewer steps."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples/first_language.ipynb"
FEWER = (("{steps: 500,", "{steps: 20,"), ("steps: 1000, snapshot_every: 100", "steps: 20, snapshot_every: 10"))


def cells(kind):
    return ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def test_its_code_runs_in_an_empty_folder(tmp_path):
    code = "\n".join(cells("code")).replace("warmup_steps: 30", "warmup_steps: 3")
    for many, few in FEWER:
        assert many in code
        code = code.replace(many, few)
    done = subprocess.run(
        [sys.executable, "-"],
        input=code,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "| MiniJoint | adapt |" in done.stdout and "accuracy in Xish by step: {0: " in done.stdout
    assert len(re.findall(r"\| (sea|farm|town) (sea|farm|town)$", done.stdout, re.MULTILINE)) == 3


def test_its_links_lead_somewhere():
    links = [link for text in cells("markdown") for link in re.findall(r"\]\(([^)#]+)", text)]
    assert links and all((NOTEBOOK.parent / link).exists() for link in links)
