"""Text of a data set on a Hub of this machine, streamed: tokenizer and store, with the commit that
was read.
"""

import json
import sys

import pytest

from ds_minimodel.text.reader import find_text
from ds_minimodel.text.rows import HubText, rows_of_hub
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses

from ..forks import run
from ..hf.hub_server import COMMIT, hub  # noqa: F401

RECIPE = """
workdir: run
systems: [bl_base]
languages: {source: en, targets: [xx]}
tokenizer: {vocab_size: 45}
data: {workers: 2, text: {en: en.txt, xx: "hf://datasets/someone/texts"}}
"""


def test_names():
    for text, expected in (
        ("hf://datasets/c4", ("c4", None, None, "train")),
        ("hf://datasets/allenai/c4:sw", ("allenai/c4", None, "sw", "train")),
        (
            "hf://datasets/a/b@refs/convert/parquet::test",
            ("a/b", "refs/convert/parquet", None, "test"),
        ),
        ("hf://datasets/a/b@v1:x:y", ("a/b", "v1", "x", "y")),
    ):
        assert HubText.parse(text) == expected
        assert HubText.parse(str(HubText.parse(text))) == expected
    for text in ("hf://a/b", "hf://datasets/a/b/c", "hf://datasets/a/../b:c:d:e", "hf://datasets/"):
        with refuses("not of the form hf://datasets/NAME"):
            find_text([text])


@pytest.fixture
def call(hub, tmp_path):  # noqa: F811
    """Run a step of RECIPE with the Hub here -> (exit code, standard error)."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    words = [f"word{index}" for index in range(40)]
    documents = [" ".join(words[index % 7 : index % 31 + 8]) + "\nthe end" for index in range(200)]
    (tmp_path / "en.txt").write_text("\n\n".join(documents))
    rows = "".join(json.dumps({"text": document, "id": 1}) + "\n" for document in documents)
    hub.repositories["someone/texts"] = {
        "train.jsonl": rows.encode(),
        "test.jsonl": b'{"text": null}\n',
    }
    variables = hub.variables(tmp_path)

    def call(step, *overrides):
        code, _, err = run(step, "recipe.yaml", *overrides, cwd=tmp_path, **variables)
        return code, err

    return call


def test_a_store_of_a_data_set_is_that_of_its_text(hub, call, tmp_path):  # noqa: F811
    pytest.importorskip("datasets", reason="datasets is not installed (pip install datasets)")
    for step in ("corpus", "tokenizer", "prepare"):
        code, err = call(step)
        assert code == 0, err
    for step in ("corpus", "tokens"):
        manifest = read_json(tmp_path / f"run/{step}/xx/manifest.json")
        assert manifest["text"] == [f"hf://datasets/someone/texts@{COMMIT}::train"]
    stores = [
        (tmp_path / f"run/tokens/{language}/00000.bin").read_bytes() for language in ("en", "xx")
    ]
    assert stores[0] == stores[1]
    hub.requests.clear()
    assert call("prepare")[0] == 0
    assert not hub.requests  # complete: no Hub is needed
    for name, words in (
        ("none", "someone/none"),
        ("texts::test", "row 1: 'text' is null, not text"),
    ):
        code, err = call(
            "corpus", f"data.text.xx=hf://datasets/someone/{name}", f"workdir={name[:4]}"
        )
        assert code == 2, err
        assert words in err.splitlines()[-1], err
        assert "Traceback" not in err, err


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refuses(r"not installed; pip install 'ds_minimodel\[datasets\]'"):
        next(rows_of_hub(HubText.parse("hf://datasets/a")))
