"""The notebook, cell by cell in one process, over a tiny model under the real one's name."""

import re
from pathlib import Path

from tests.helpers.files import read_json

from ..forks import Fork
from ..pipeline.sentence_world import pairs_of, save_sentence_model

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples/first_language.ipynb"


def cells(kind):
    return [
        "".join(cell["source"])
        for cell in read_json(NOTEBOOK)["cells"]
        if cell["cell_type"] == kind
    ]


def test_its_code_runs_where_model_and_pairs_are(tmp_path):
    save_sentence_model(tmp_path / "all-MiniLM-L6-v2")
    pairs = tmp_path / "data/help/pairs/de.tsv"
    pairs.parent.mkdir(parents=True)
    lines = ["\t".join(pair) for pair in pairs_of(400, seed=1)]
    pairs.write_text("\n".join(["en\tde", *lines]) + "\n")
    code = "\n".join(cells("code"))
    assert "tokens=300_000" in code
    code = code.replace("300_000", "20_000")
    (tmp_path / "notebook.py").write_text(code)
    process = Fork(
        "runpy:run_path", "notebook.py", {}, "__main__", cwd=tmp_path, PYTHONPATH=str(ROOT)
    )
    out, err = process.communicate()
    assert process.returncode == 0, err
    shares = [float(share) for share in re.findall(r"([\d.]+)% of 40 lines are found", out)]
    before, aligned, trained = shares
    assert before < 40 < 80 < aligned, out
    assert trained > 80, out
    assert out.count("    -> ") == 9


def test_its_links_lead_somewhere():
    links = [link for text in cells("markdown") for link in re.findall(r"\]\(([^)#]+)", text)]
    assert links
    assert all((NOTEBOOK.parent / link).exists() for link in links)
