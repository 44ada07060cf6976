"""The peak of a training over a base, by its processes' memory, is what the plan says."""

import json
import sys

import pytest
from transformers import LlamaConfig

from benchmarks.llama import write_llama
from benchmarks.peak import peak
from ds_minimodel.launch.hosts import CPU
from tests.helpers.foreign_models import save_llama

from ..forks import done, run
from .conftest import make_world

pytestmark = [pytest.mark.slow, pytest.mark.long]

RECIPE = """
workdir: {folder}/run
systems: [lora]
base: {folder}/base
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocabulary: extend, vocab_size: 24}}
data: {{workers: 1, held_out: 0, text: {{xx: {folder}/xx.txt}}}}
adapt: {{steps: 3, batch_size: 8, seq_length: 128, lr: 1e-3, warmup_steps: 1}}
engine: {{precision: fp32, zero_stage: 0}}
"""


@pytest.mark.parametrize("layers, width", [(4, 1024), (8, 1536)])
def test_a_training_takes_the_memory_that_was_planned(layers, width, tmp_path, monkeypatch):
    """Of 270 and 1,210 MB of fp32 weights."""
    path = make_world(tmp_path)
    save_llama(tmp_path / "en.txt", tmp_path / "base", "$A", tied=True)
    theirs = LlamaConfig.from_pretrained(tmp_path / "base")
    changed = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "head_dim": 64,
    }
    changed |= {"num_attention_heads": width // 64, "num_key_value_heads": width // 128}
    theirs.update({**changed, "max_position_embeddings": 512})
    write_llama(tmp_path / "base", theirs)
    path.write_text(RECIPE.format(folder=tmp_path))
    for step in ("corpus", "tokenizer", "prepare", "pretrain"):
        done(step, path)
    (row,) = json.loads(run(f"plan {path} --json")[1])["rows"]
    for name, value in {**CPU, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    empty, _, _ = peak([sys.executable, "-c", "import torch, deepspeed, time; time.sleep(0.5)"])
    most, _, code = peak([sys.executable, "-m", "ds_minimodel", "adapt", str(path)])
    assert code == 0
    assert most - empty == pytest.approx(row["memory"]["total"], rel=0.2)
