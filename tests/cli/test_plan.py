"""`ds-minimodel plan` and `calibrate`: tables, JSON, a picture, and one line for each mistake."""

import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds_minimodel.cli.main import main

ROOT = Path(__file__).parents[2]
PAPER = [f"{ROOT}/recipes/paper.yaml", "systems=[minipost]", "--device", "v100-16g"]
SMALL = [*PAPER, "finetune.tasks={}"]


def ds_minimodel(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*arguments])
    return SimpleNamespace(returncode=ended.value.code, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.fixture(scope="module")
def rows():
    done = ds_minimodel("plan", *SMALL, "--world-size", "8", "--zero", "1", "--json")
    assert done.returncode == 0, done.stderr
    return {row["step"]: row for row in json.loads(done.stdout)["rows"]}


def test_each_step_has_a_row(rows):
    assert list(rows) == ["pretrain", "build-mini", "adapt"]
    assert all(row["precision"] == "fp16" and row["micro_batch_size"] == 32 for row in rows.values())


def test_only_what_trains_takes_more_than_its_weights(rows):
    for step, kinds in (
        ("build-mini", {"prefix", "pass-through", "trainable"}),
        ("adapt", {"pass-through", "trainable"}),
    ):
        parts = rows[step]["parts"]
        assert {part["kind"] for part in parts} == kinds
        for part in parts:
            assert (part["gradients"] > 0) == (part["optimizer"] > 0) == (part["kind"] == "trainable")
            assert part["weights"] == 2 * part["parameters"]


def test_bytes_of_step_2_by_hand(rows):
    """50,000 x 768 embeddings and as many biases: fp16 gradients, a sixth of a fp32 copy and two moments a rank."""
    trained = 50_000 * 769
    memory, wire = rows["adapt"]["memory"], rows["adapt"]["wire"]
    assert memory["gradients"] == 2 * trained and memory["optimizer"] == 12 * trained / 8
    assert wire["all-reduce"] == 2 * 2 * trained * 7 // 8 and wire["all-gather"] == 2 * trained * 7 // 8
    assert memory["activations"] < memory["total"] <= sum(memory[kind] for kind in memory if kind != "total")


def test_it_says_what_fits(rows):
    assert rows["adapt"]["fits"] and rows["adapt"]["largest_micro_batch"] >= 32
    pretrain = rows["pretrain"]
    assert pretrain["fits"] == (pretrain["memory"]["total"] <= 15 * 2**30)


def test_bytes_of_step_2_with_each_replica_on_two_ranks(rows):
    """Half of the rows of the vocabulary a rank, their optimizer state divided among four replicas."""
    done = ds_minimodel("plan", *SMALL, "engine.tensor_parallel=2", "--world-size", "8", "--zero", "1", "--json")
    assert done.returncode == 0, done.stderr
    split = json.loads(done.stdout)["rows"][-1]
    assert (split["step"], split["world_size"], split["tensor_parallel"]) == ("adapt", 8, 2)
    memory, wire = split["memory"], split["wire"]
    assert memory["gradients"] == 25_000 * 769 * 2 and memory["optimizer"] == 25_000 * 769 * 12 / 4
    assert wire["all-reduce"] == 2 * 25_000 * 769 * 2 * 3 // 4
    whole = rows["adapt"]["memory"]
    assert 0.5 * whole["weights"] < memory["weights"] < 0.52 * whole["weights"]
    assert 0.5 * whole["activations"] < memory["activations"] < 0.9 * whole["activations"]


def test_time_of_each_step(rows):
    """Tokens, hours and the paper's days follow from seconds and the recipe; more of the body's work, more time."""
    for row in rows.values():
        time = row["time"]
        assert time["tokens_per_second"] == pytest.approx(2048 * 512 / time["seconds"])
        assert time["hours"] == pytest.approx(125_000 * time["seconds"] / 3600) and time["cost"] is None
        assert 0 < time["share_of_peak"] < 1 and time["fastest"]["seconds"] <= time["seconds"]
    assert rows["pretrain"]["time"]["seconds"] > rows["adapt"]["time"]["seconds"]
    assert round(rows["pretrain"]["time"]["v100_days"], 1) == 30.4  # footnote 2 of the paper


def test_tasks_hours_and_cost():
    arguments = ["--price", "2", "--examples", "3200", "--example-tokens", "64"]
    done = ds_minimodel("plan", *PAPER, "finetune.seeds=2", "model.num_layers=6", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    tasks = {(row["step"], row["task"]): row for row in json.loads(done.stdout)["tasks"]}
    assert {step for step, _ in tasks} == {"finetune", "evaluate"} and ("evaluate", "mlqa") in tasks
    found, evaluated = (tasks[step, "xnli"]["time"] for step in ("finetune", "evaluate"))
    assert found["hours"] == pytest.approx(2 * 3 * 100 * found["seconds"] / 3600)
    assert found["cost"] == pytest.approx(2 * found["hours"])
    assert evaluated["hours"] is None and evaluated["tokens_per_second"] > found["tokens_per_second"]


def test_scaling_has_a_table_and_a_picture(tmp_path):
    """Less efficient on more nodes; a number of ranks that the batch does not have samples for has no row."""
    scale = ["--scale", "8..4096", "--ranks-per-node", "8", "--picture", str(tmp_path / "scaling.png")]
    done = ds_minimodel("plan", *SMALL, "pretrain.batch_size=256", "model.num_layers=6", *scale, "--json")
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if row["step"] == "pretrain"]
    weak, strong = ([row for row in rows if row["scaling"] == kind] for kind in ("weak", "strong"))
    assert [row["world_size"] for row in strong] == [8 << times for times in range(10)]
    first, rest = [row["efficiency"] for row in strong[:6]], [row["efficiency"] for row in strong[6:]]
    assert first == sorted(first, reverse=True) and first[0] == 1 and rest == [None] * 4
    assert all(one["efficiency"] >= (other["efficiency"] or 0) for one, other in zip(weak, strong, strict=True))
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_for_people():
    done = ds_minimodel("plan", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "**Time**" in done.stdout and "paper's V100 days" in done.stdout
    assert "| MiniPost | build-mini | body.layers.0-3 | prefix | replicated |" in done.stdout
    assert "| MiniPost | build-mini | body.layers.4-5 | trainable | replicated |" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--device", "v99"], "--device v99: unknown; there are v100-16g"),
        (["--device", ""], "--device : unknown; there are v100-16g"),
        (["--zero", "4"], "--zero: invalid choice"),
        (["--world-size", "7"], "batch_size 2048 cannot be divided among 7 ranks"),
        (["--world-size", "7", "engine.tensor_parallel=2"], "2 ranks to a replica do not divide 7"),
        (["--world-size", "0"], "'0' is no number of ranks"),
        (["--device", "none.json"], "none.json: no such file"),
        (["--scale", "8"], "'8' is no range of ranks as 8..1024"),
        (["--scale", "8..16"], "cpu has no figures; name a GPU, or measure this machine"),
        (["--picture", "scaling.png"], "--picture: it is of scaling"),
        (["--price", "cheap"], "'cheap' is no price"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message):
    done = ds_minimodel("plan", f"{ROOT}/recipes/paper.yaml", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_calibrate_overwrites_nothing_but_a_calibration(tmp_path):
    (tmp_path / "mine.yaml").write_text("workdir: precious")
    for name, message in (
        (tmp_path / "mine.yaml", "mine.yaml: there already, and no calibration"),
        (tmp_path, "a folder; give the name of a file"),
        ("", "a folder; give the name of a file"),
        (tmp_path / "mine.yaml/device.json", "mine.yaml"),
    ):
        done = ds_minimodel("calibrate", str(name))
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert [path.read_text() for path in tmp_path.iterdir()] == ["workdir: precious"]
