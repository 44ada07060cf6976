"""`ds-minimodel plan`: tables, JSON, and one line for each mistake."""

import functools
import json

import pytest
from transformers import LlamaConfig, ModernBertConfig

from ds_minimodel.report.render import duration
from tests.helpers.commands import answer, answered

SMALL = "paper systems=[minipost] model.num_layers=2 --device v100-16g --ranks 8".split()
SMALL += ["mini={depth: 1, new_layers: 1}"]


def plan(*options):
    """(exit code, standard output, standard error) of a plan."""
    return answer("plan", *options)


@functools.cache
def rows(*options):
    """{step: its row} of a plan as JSON."""
    out = answered("plan", *SMALL, "--zero", "1", "--peak", "125", "--json", *options)
    return {row["step"]: row for row in json.loads(out)["rows"]}


def test_bytes_of_step_2_by_hand():
    """50,000 x 768 embeddings and as many biases: fp16 gradients, an eighth of a fp32 copy and two
    moments a rank.
    """
    trained = 50_000 * 769
    step = rows()["adapt"]
    memory = step["memory"]
    traffic = step["traffic"]
    assert memory["gradients"] == 2 * trained
    assert memory["optimizer"] == 12 * trained / 8
    assert traffic["all-reduce"] == 2 * 2 * trained * 7 // 8
    assert traffic["all-gather"] == 2 * trained * 7 // 8
    assert (
        memory["activations"]
        < memory["total"]
        <= sum(memory[kind] for kind in memory if kind != "total")
    )


def test_bytes_of_step_2_with_each_replica_on_two_ranks():
    """Half of the rows of the vocabulary a rank, their optimizer state divided among four
    replicas.
    """
    whole = rows()["adapt"]["memory"]
    split = rows("engine.tensor_parallel=2")["adapt"]
    memory = split["memory"]
    assert memory["gradients"] == 25_000 * 769 * 2
    assert memory["optimizer"] == 25_000 * 769 * 12 / 4
    assert split["traffic"]["all-reduce"] == 2 * 25_000 * 769 * 2 * 3 // 4
    assert 0.5 * whole["weights"] < memory["weights"] < 0.52 * whole["weights"]
    assert 0.5 * whole["activations"] < memory["activations"] < 0.9 * whole["activations"]


def test_the_least_time_is_that_of_the_executed_flops_at_the_peak_of_all_devices():
    for row in rows().values():
        assert row["least_hours"] == pytest.approx(
            row["executed_eflops"] * 1e18 / (8 * 125e12) / 3600
        )


def test_a_table_for_people():
    code, out, _ = plan(*SMALL, "--peak", "125")
    assert code == 0
    assert "| at least |" in out
    assert "**Cost of each step**" in out
    assert "| V100 days |" in out
    assert "V100" not in plan("quickstart")[1]


SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    max_position_embeddings=512,
    vocab_size=500,
)


@pytest.mark.parametrize(
    "config, system",
    [
        (LlamaConfig(num_hidden_layers=2, **SIZES), "lora"),
        (ModernBertConfig(num_hidden_layers=2, **SIZES), "bl_base"),
    ],
)
def test_a_model_is_planned_as_extend_would_train_it(config, system, tmp_path):
    """From config.json alone; new pieces are trained beside old ones, and KEY=VALUE count."""
    config.save_pretrained(tmp_path)
    code, out, _ = plan(
        str(tmp_path), "--json", "--zero", "1", "tokenizer.vocab_size=300", "adapt.steps=70"
    )
    (row,) = json.loads(out)["rows"]
    assert code == 0
    assert row["system"] == system
    assert row["step"] == "adapt"
    assert row["steps"] == 70
    assert row["seq_length"] == 128
    fewer = json.loads(
        plan(str(tmp_path), "--json", "--zero", "1", "tokenizer.vocab_size=200", "adapt.steps=70")[
            1
        ]
    )
    assert fewer["rows"][0]["memory"]["optimizer"] < row["memory"]["optimizer"]
    said = " ".join(plan(str(tmp_path), "--peak", "2", "adapt.steps=70")[1].split())
    seconds = plan(str(tmp_path), "--json", "--peak", "2", "adapt.steps=70")[1]
    hours = json.loads(seconds)["rows"][0]["least_hours"]
    assert f"some {duration(hours)} at 2 TFLOP/s" in said
    assert "70 steps of" in said


def test_what_is_no_model_is_refused(tmp_path):
    code, _, err = plan(str(tmp_path))
    assert code == 2
    assert "config.json" in err
    assert err.count("\n") == 1


def test_a_folder_does_not_hide_a_recipe_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "quickstart").mkdir()
    monkeypatch.chdir(tmp_path)
    assert plan("quickstart")[0] == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--device", "v99"], "--device v99: unknown; there are v100-16g"),
        (["--ranks", "7"], "batch_size 2048 cannot be divided among 7 ranks"),
        (["--peak", "inf"], "--peak inf: no number of TFLOP/s"),
        (
            ["--device", "v100-16g", "engine.precision=bf16"],
            "engine.precision bf16: v100-16g has only fp16, fp32",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message):
    code, out, err = plan("paper", *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
