"""`plan FOLDER`: what mini-models over somebody's model would save, from its config.json alone."""

import json

import pytest
from transformers import LlamaConfig, ModernBertConfig

from ds_minimodel.cli.main import main
from ds_minimodel.common.errors import UserError
from ds_minimodel.hf.convert import read_config

SIZES = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, max_position_embeddings=512, vocab_size=500)
SMALL = ("tokenizer.vocab_size=300", "adapt.batch_size=8", "build_mini.batch_size=8", "engine.micro_batch_size=4")


def plan(folder, *options):
    with pytest.raises(SystemExit) as end:
        main(["plan", str(folder), *SMALL, *options])
    assert end.value.code == 0


@pytest.mark.parametrize(
    "config, depths",
    [
        (LlamaConfig(num_hidden_layers=12, num_key_value_heads=2, **SIZES), [12, 6, 4, 3, 2]),
        (ModernBertConfig(num_hidden_layers=12, local_attention=8, **SIZES), [12, 6, 3]),  # with layers that see all
    ],
)
def test_a_shallower_mini_costs_less(config, depths, tmp_path, capsys):
    config.save_pretrained(tmp_path)
    plan(tmp_path, "--device", "v100-32g", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["depth"] for row in rows] == depths
    assert [row["new_layers"] for row in rows] == [0] + [2] * (len(rows) - 1)
    assert rows[0]["build_mini"] is None and all(row["build_mini"]["formula_eflops"] > 0 for row in rows[1:])
    for what in (lambda row: row["formula_eflops"], lambda row: row["memory"]["total"]):
        sizes = [what(row["adapt"]) for row in rows]
        assert sizes == sorted(sizes, reverse=True)
    plan(tmp_path, "--peak", "30")
    printed = capsys.readouterr().out
    assert f"| {depths[0]} (all) |" in printed and "step 2 at least" in printed
    assert "trained for 512,000,000 tokens" in printed and "V100" not in printed


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", str(tmp_path)])
    with pytest.raises(UserError, match="config.json"):
        read_config(tmp_path)


def test_a_folder_does_not_hide_a_recipe_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "quickstart").mkdir()
    monkeypatch.chdir(tmp_path)
    plan("quickstart")
