"""A decoder with an output matrix of its own, from text to scores, and to Hugging Face's
library.
"""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.files import read_json

from ..forks import done
from .conftest import make_world

pytestmark = pytest.mark.slow

KIND = (
    "model.kind=llama",
    "model.num_kv_heads=1",
    "model.tie_output=false",
    "tokenizer.kind=byte-bpe",
)
SIZES = ("tokenizer.vocab_size=300", "systems=[minijoint, minipost]", "finetune.seeds=1")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Workdir of a run to a report."""
    folder = tmp_path_factory.mktemp("decoder")
    recipe = make_world(folder)
    for language in ("en", "xx"):
        text = (folder / f"{language}.txt").read_text().split("\n\n")[:5]
        (folder / f"bits.{language}.txt").write_text("\n\n".join(text))
    topic = (
        f"{{kind: classification, train: {folder}/topic.en.jsonl, test: {{xx: "
        f"{folder}/topic.xx.jsonl}}}}"
    )
    bits = f"{{kind: bits-per-byte, test: {{en: {folder}/bits.en.txt, xx: {folder}/bits.xx.txt}}}}"
    tasks = f"finetune.tasks={{topic: {topic}, bits: {bits}}}"
    done(f"run {recipe}", *KIND, *SIZES, tasks)
    return folder / "run"


def scores(workdir, system, task):
    return read_json(workdir / f"evaluate/{system}/xx/{task}/seed-3/scores.json")


def test_packs_learn_and_every_task_is_scored(workdir):
    first, *_, last = scores(workdir, "minipost", "bits")
    assert last["bits_per_byte"] < first["bits_per_byte"]
    assert len(scores(workdir, "minipost", "topic")) == 3
    assert "bytes in 100 bits" in (workdir / "report/report.md").read_text()


@pytest.fixture(scope="module")
def exported(workdir):
    """(model, tokenizer) of the body with MiniPost's pack in Hugging Face's library."""
    pack = workdir / "adapt/minipost/xx/pack"
    out = workdir.parent / "hf"
    done(f"export-hf {workdir}/pretrain/bl_base/model {out} --pack {pack}")
    return AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)


def test_bits_a_byte_are_hugging_faces(workdir, exported):
    model, tokenizer = exported
    documents = (workdir.parent / "bits.xx.txt").read_text().strip().split("\n\n")
    nats = 0.0
    lengths = []
    for document in documents:
        ids = tokenizer(document, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == document
        lengths.append(len(ids))
        for first in range(0, len(ids), 47):  # finetune.max_length is 48
            part = torch.tensor([[tokenizer.bos_token_id, *ids[first : first + 47]]])
            with torch.no_grad():
                nats += model(part, labels=part).loss.item() * (part.shape[1] - 1)
    num_bytes = sum(len(document.encode()) for document in documents)
    assert max(lengths) > 47, "no document is long enough"
    assert scores(workdir, "minipost", "bits")[-1]["bits_per_byte"] == pytest.approx(
        nats / math.log(2) / num_bytes
    )
