"""A recipe that is as good as any, and how it is refused."""

import pytest

from ds_minimodel.config.reading import load_recipe
from tests.helpers.refusals import refuses

RECIPE = """\
workdir: runs/test
systems: [bl_base, minijoint]
languages: {source: en, targets: [de]}
data:
  text: {en: en.txt, de: [de-1.txt, de-2.txt.xz]}
model: {num_layers: 6, hidden_size: 64, num_heads: 4, ffn_size: 256, max_positions: 128}
mini: {depth: 2}
pretrain: &mlm
  steps: 100
  seq_length: 64
  lr: 7e-4
  warmup_steps: 5
build_mini: *mlm
adapt:
  <<: *mlm
  snapshot_every: 50
finetune:
  max_length: 96
  tasks:
    topic: {kind: classification, train: train.jsonl, test: {de: test.jsonl}}
"""


@pytest.fixture
def load(tmp_path):
    """Load RECIPE with one text replaced by another, and with overrides."""

    def load(*overrides, replace="", by=""):
        assert replace in RECIPE
        path = tmp_path / "recipe.yaml"
        path.write_text(RECIPE.replace(replace, by, 1) if replace else RECIPE)
        return load_recipe(path, overrides)

    return load


@pytest.fixture
def refusal(load):
    """The one line with which RECIPE and overrides are refused."""

    def refusal(*overrides, **replaced):
        with refuses() as refused:
            load(*overrides, **replaced)
        return str(refused.value)

    return refusal
