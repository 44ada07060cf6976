"""study/second: the rates that are chosen, the gate's verdict, and tables that are those of the results."""

import json

import pytest

from ds_minimodel.common.files import write_json
from tests.docs import ROOT, import_script


@pytest.fixture(scope="module")
def tables():
    return import_script("study/second/tables.py")


def finish(folder, training, **losses):
    run = folder / training / "run"
    run.mkdir(parents=True)
    (folder / training / "pack").mkdir()
    lines = [{"step": 0, "held_out/nats_per_token": 9.0}, {"step": 2, "loss": 1.0} | losses]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("losses", "best", "then"),
    [
        ({"1.5e-3": 3, "3e-3": 2, "6e-3": 4}, "0.003", ""),
        ({"1.5e-3": 2, "3e-3": 3, "6e-3": 4}, "0.0015", "0.00075"),
        ({"1.5e-3": 4, "3e-3": 3, "6e-3": 2}, "0.006", "0.012"),
        ({"1.5e-3": 4, "3e-3": 3, "6e-3": 2, "0.012": 1}, "0.012", ""),  # once
    ],
)
def test_the_best_rate_and_the_next_to_try(tmp_path, losses, best, then):
    script = import_script("study/second/losses.py")
    for rate, loss in losses.items():
        finish(tmp_path / f"tune-{rate}", "pretrain/bl_base", **{"held_out/nats_per_token": loss})
    assert script.best(tmp_path, "tune") == best
    assert script.next_rate(tmp_path, "tune") == then


def test_the_number_of_steps_that_ends_nearest_to_a_loss(tmp_path):
    script = import_script("study/second/losses.py")
    for steps, loss in {"250": 6.4, "500": 5.9, "1000": 5.1}.items():
        finish(tmp_path / f"stage-{steps}", "pretrain/bl_base", **{"held_out/nats_per_token": loss})
    assert script.best(tmp_path, "stage", 5.6) == "500"


def test_step_2_is_chosen_by_the_whole_body_and_unfinished_trainings_by_nothing(tmp_path):
    script = import_script("study/second/losses.py")
    run = tmp_path / "rate-3e-3"
    finish(run, "pretrain/bl_base", **{"held_out/nats_per_token": 1.0})
    finish(run, "adapt/bl_base/de", **{"held_out/nats_per_token": 2.0, "held_out/body_nats_per_token": 2.5})
    assert script.chosen_by(script.last_losses(run)) == 2.5
    (tmp_path / "rate-6e-3").mkdir()
    with pytest.raises(script.UserError, match="rate-6e-3: no finished training"):
        script.best(tmp_path, "rate")


@pytest.mark.parametrize(
    ("leads", "verdicts"),
    [((0.07, 0.06), ["–", "yes"]), ((0.07, 0.04), ["–", "no"]), ((0.07,), ["–"]), ((0.04,), ["no"])],
)
def test_a_kind_passes_with_both_seeds_and_fails_with_one(tables, leads, verdicts):
    losses = {}
    for seed, lead in enumerate(leads, 1):
        for system, bits in (("bl_base", 1.7), ("bl_small", 1.7 + lead)):
            found = {"held_out/bits_per_byte": bits, "held_out/nats_per_token": bits * 2.5}
            losses[f"gate30-llama-{system}-{seed}"] = {f"pretrain/{system}": found}
    rows = [[cell.text for cell in row] for row in tables.gate_table(losses).rows]
    assert [row[-1] for row in rows] == verdicts and rows[0][8] == f"{leads[0]:.4f}"


def test_body_and_plug_are_compared_by_their_last_scores(tables):
    def row(run, system, language, step, bits):
        return {"run": run, "system": system, "language": language, "step": step, "bits_per_byte": bits}

    rows = [
        row("main-1", "bl_base", "de", 1500, 1.6),
        row("main-1", "minijoint", "de", 1500, 2.0),
        row("main-1", "minijoint", "de", 0, 4.0),
        row("whole-1", "multijoint", "de", 1500, 1.6),
    ]
    losses = {
        "main-1": {"pretrain/minijoint": {"held_out/bits_per_byte/depth_3": 1.5}},
        "small-1": {"pretrain/bl_small": {"held_out/bits_per_byte": 1.2}},
    }
    for number, own in (("1", 1.5), ("2", 1.7)):
        last = {"held_out/bits_per_byte": own, "held_out/body_bits_per_byte": own + 0.25}
        losses.setdefault(f"main-{number}", {})["adapt/minijoint/de"] = last
        losses[f"main-{number}"]["adapt/bl_base/de"] = last | {"held_out/body_bits_per_byte": own}
    (plug,) = tables.plug_table(losses).rows
    assert [cell.text for cell in plug] == ["MiniJoint", "de", "1.6000", "1.8500", "+0.2500"]
    shares = [line[-1].text for line in tables.fault_table(rows, losses).rows]
    assert shares == ["1.000", "0.800", "0.800"]


def test_tables_are_those_of_the_results(tables, tmp_path):
    write_json(tmp_path / tables.RESULTS, json.loads((ROOT / "study/second" / tables.RESULTS).read_text()))
    tables.write(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (ROOT / "study/second" / path.name).read_text()


def test_a_folder_without_results_is_refused_in_a_line(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tables.py", str(tmp_path)])
    assert tables.main() == 2 and not list(tmp_path.iterdir())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ds-minimodel: {tmp_path}/results.json: no such file")
