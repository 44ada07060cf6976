"""Every command of docs/hugging-face.md and docs/initialisation.md runs, on small files under the names used there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ..interop.conftest import roberta, text_file, unigram_folder, xlm_r  # noqa: F401
from ..interop.test_fairseq import xlm_r_of_fairseq  # noqa: F401
from .conftest import make_world
from .test_base import assert_shared_rows_are_the_bases

DOCS = Path(__file__).parents[2] / "docs"
MASKED_LM = {"steps": 4, "batch_size": 8, "seq_length": 32, "warmup_steps": 1, "lr": 2e-3}
# What makes the recipe of the docs small.
SMALL = [f"{section}.{key}={value}" for section in ("build_mini", "adapt") for key, value in MASKED_LM.items()]
SMALL += ["systems=[minipost]", "tokenizer.vocab_size=60", "data.workers=1", "mini={depth: 1, new_layers: 1}",
          "finetune.seeds=1", "finetune.epochs=1", "finetune.batch_size=8", "finetune.max_length=64",
          "engine.micro_batch_size=8",
          "finetune.tasks.qa={kind: qa, question_length: 8, stride: 16, train: data/qa.en.json, "
          "test: {en: data/qa.en.json, de: data/qa.de.json}}"]


def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


def commands(page):
    return re.findall("^ds-minimodel .*", text_of(page), re.M)


def run(line, folder):
    arguments = shlex.split(line)[1:]
    if arguments[0] not in ("import-hf", "import-fairseq", "export-hf"):
        arguments += SMALL
    done = subprocess.run([sys.executable, "-m", "ds_minimodel", *arguments], cwd=folder, text=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(DOCS.parent)})
    assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the docs' commands run: text and tasks of the two made-up languages as English and German."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "data").mkdir()
    make_world(folder / "data")
    for path in (folder / "data").glob("*xx*"):
        path.rename(path.with_name(path.name.replace("xx", "de")))
    return folder


@pytest.mark.timeout(900)         # six processes, of which one runs a pipeline
def test_hugging_face(folder, roberta, xlm_r_of_fairseq):  # noqa: F811
    shutil.copytree(roberta, folder / "roberta-base")
    shutil.copytree(xlm_r_of_fairseq, folder / "roberta.base")
    (recipe,) = re.findall("^```yaml\n(.*?)^```", text_of("hugging-face.md"), re.M | re.S)
    (folder / "extend.yaml").write_text(recipe, encoding="utf-8")
    lines = commands("hugging-face.md")
    assert len(lines) == 6
    for line in lines:
        run(line, folder)
    rows = json.loads((folder / "runs/extend/report/scores.json").read_text())
    assert {(row["task"], row["language"], row["step"]) for row in rows} == {
        (task, "de", step) for task in ("topic", "qa") for step in (0, 4)}
    assert_shared_rows_are_the_bases(folder / "models/roberta", folder / "runs/extend", "de")
    tokenizer = AutoTokenizer.from_pretrained(folder / "out/topic-de")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "out/topic-de")
    assert torch.isfinite(model(**tokenizer("a b", return_tensors="pt")).logits).all()


def test_initialisation(folder):
    """After test_hugging_face, whose base and recipe it goes on with."""
    lines = commands("initialisation.md")
    assert len(lines) == 2
    words = "the\nof\n".split()
    for language in ("en", "de"):
        rows = "".join(f"{word} {number} 1.5 -2\n" for number, word in enumerate(words))
        (folder / f"data/{language}.vec").write_text(f"{len(words)} 3\n{rows}")
    (folder / "data/en-de.txt").write_text("the\tthe\n")
    for line in lines:
        run(line, folder)
