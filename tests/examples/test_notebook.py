"""The notebook, cell by cell in one process, over a tiny model under the real one's name."""

import json
import re
from pathlib import Path

from ..forks import Fork
from ..hf.conftest import text_file  # noqa: F401
from ..hf.test_decoders import save_llama
from ..pipeline.conftest import make_world

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples/first_language.ipynb"
TEMPLATE = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}"


def cells(kind):
    return [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == kind
    ]


def test_its_code_runs_where_model_and_text_are(tmp_path, text_file):  # noqa: F811
    save_llama(text_file, tmp_path / "SmolLM2-135M-Instruct", "$A")
    (tmp_path / "SmolLM2-135M-Instruct/chat_template.jinja").write_text(TEMPLATE)
    texts = tmp_path / "data/sample/text"
    texts.mkdir(parents=True)
    make_world(tmp_path)
    for language, own in (("en", "en"), ("de", "xx")):
        (tmp_path / f"{own}.txt").rename(texts / f"{language}.txt")
    code = "\n".join(cells("code"))
    assert "tokens=60_000" in code
    code = code.replace("60_000", "5_000")
    (tmp_path / "notebook.py").write_text(code, encoding="utf-8")
    process = Fork(
        "runpy:run_path", "notebook.py", {}, "__main__", cwd=tmp_path, PYTHONPATH=str(ROOT)
    )
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("asked: ") == out.count("continued: Klicken Sie auf") == 3
    assert re.search(r"de, held-out text: [\d.]+ before, [\d.]+ after", out), out


def test_its_links_lead_somewhere():
    links = [link for text in cells("markdown") for link in re.findall(r"\]\(([^)#]+)", text)]
    assert links and all((NOTEBOOK.parent / link).exists() for link in links)
