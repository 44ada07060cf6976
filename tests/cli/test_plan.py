"""`ds-minimodel plan`: tables, JSON, and one line for each mistake."""

import contextlib
import io
import json
from types import SimpleNamespace

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.recipe.costs import recipe_costs
from ds_minimodel.recipe.reading import load_recipe

SMALL = ["paper", "systems=[minipost]", "finetune.tasks={}", "--device", "v100-16g"]


def ds_minimodel(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*arguments])
    return SimpleNamespace(returncode=ended.value.code, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.fixture(scope="module")
def rows():
    done = ds_minimodel("plan", *SMALL, "--ranks", "8", "--zero", "1", "--json")
    assert done.returncode == 0, done.stderr
    return {row["step"]: row for row in json.loads(done.stdout)["rows"]}


def test_only_what_trains_takes_more_than_its_weights(rows):
    for step in ("build-mini", "adapt"):
        modules = rows[step]["modules"]
        assert {module["trains"] for module in modules} == {True, False}
        for module in modules:
            assert (module["gradients"] > 0) == (module["optimizer"] > 0) == module["trains"]
            assert module["weights"] == 2 * module["parameters"]


def test_bytes_of_step_2_by_hand(rows):
    """50,000 x 768 embeddings and as many biases: fp16 gradients, a sixth of a fp32 copy and two moments a rank."""
    trained = 50_000 * 769
    memory, traffic = rows["adapt"]["memory"], rows["adapt"]["traffic"]
    assert memory["gradients"] == 2 * trained and memory["optimizer"] == 12 * trained / 8
    assert traffic["all-reduce"] == 2 * 2 * trained * 7 // 8 and traffic["all-gather"] == 2 * trained * 7 // 8
    assert memory["activations"] < memory["total"] <= sum(memory[kind] for kind in memory if kind != "total")


def test_bytes_of_step_2_with_each_replica_on_two_ranks(rows):
    """Half of the rows of the vocabulary a rank, their optimizer state divided among four replicas."""
    done = ds_minimodel("plan", *SMALL, "engine.tensor_parallel=2", "--ranks", "8", "--zero", "1", "--json")
    assert done.returncode == 0, done.stderr
    split = json.loads(done.stdout)["rows"][-1]
    assert (split["step"], split["ranks"], split["tensor_parallel"]) == ("adapt", 8, 2)
    memory, traffic = split["memory"], split["traffic"]
    assert memory["gradients"] == 25_000 * 769 * 2 and memory["optimizer"] == 25_000 * 769 * 12 / 4
    assert traffic["all-reduce"] == 2 * 25_000 * 769 * 2 * 3 // 4
    whole = rows["adapt"]["memory"]
    assert 0.5 * whole["weights"] < memory["weights"] < 0.52 * whole["weights"]
    assert 0.5 * whole["activations"] < memory["activations"] < 0.9 * whole["activations"]


def test_the_least_time_of_a_step():
    """The executed FLOPs that `flops` says, at the peak of all devices."""
    done = ds_minimodel("plan", *SMALL, "--ranks", "8", "--peak", "125", "--json")
    costs = recipe_costs(load_recipe("paper", SMALL[1:3]))
    least = [cost["executed_eflops"] * 1e18 / (8 * 125e12) / 3600 for cost in costs]
    assert [row["least_hours"] for row in json.loads(done.stdout)["rows"]] == pytest.approx(least)


def test_a_table_for_people():
    done = ds_minimodel("plan", *SMALL, "--peak", "125")
    assert done.returncode == 0, done.stderr
    assert "| at least |" in done.stdout and "**Cost of each step**" in done.stdout
    assert "| MiniPost | build-mini | body.layers.0-3 | no | whole |" in done.stdout
    assert "| MiniPost | build-mini | body.layers.4-5 | yes | whole |" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--device", "v99"], "--device v99: unknown; there are v100-16g"),
        (["--ranks", "0"], "'0' is no number of ranks"),
        (["--zero", "4"], "--zero: invalid choice"),
        (["--ranks", "7"], "batch_size 2048 cannot be divided among 7 ranks"),
        (["--peak", "inf"], "'inf' is no number of TFLOP/s"),
        (["--device", "v100-16g", "engine.precision=bf16"], "engine.precision bf16: v100-16g has fp16, fp32 alone"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message):
    done = ds_minimodel("plan", "paper", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1
