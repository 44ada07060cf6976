"""A study in miniature: two pretraining seeds, two depths of one body, and half of the text."""

import json
import shutil
import statistics

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.results.comparison import compare_runs
from ds_minimodel.results.paired_tables import times_table
from ds_minimodel.results.run_results import read_run_results

from ..docs import import_script

FOUR = "systems=[bl_base, bl_small, minijoint, minipost]"
OF_BODY = ["tokenizer", "tokens", "pretrain/multijoint", "finetune/multijoint"]
RUNS = {  # name: command, what is copied from the finished world as scripts/study.sh does, settings
    "seed-1": ("report", ["tokenizer", "tokens", "pretrain", "build-mini", "adapt", "finetune", "evaluate"], [FOUR]),
    "seed-11": ("run", ["tokenizer", "tokens"], ["seed=11", "systems=[bl_base, minijoint]"]),
    "depth-1": ("run", OF_BODY, ["systems=[multijoint]", "mini.depth=1"]),
    "depth-2": ("run", OF_BODY, ["systems=[multijoint]", "mini.depth=2"]),
    "little": ("run", ["tokenizer/en", "tokens/en", "pretrain", "build-mini", "finetune"], [FOUR]),
}


def copy_parts(whole, parts, workdir):
    for part in parts:
        for path in whole.glob(f"{part}*"):
            place = workdir / path.relative_to(whole)
            place.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, place)


def test_runs_of_a_study_join(world, tmp_path):
    """By what they are made of: seeds of one system, depths of one body, systems over other text."""
    (tmp_path / "half.txt").write_text("\n\n".join((world.parent / "xx.txt").read_text().split("\n\n")[::2]))
    for name, (command, parts, settings) in RUNS.items():
        copy_parts(world.parent / "run", parts, tmp_path / name)
        own = [*settings, *([f"data.text.xx={tmp_path}/half.txt"] if name == "little" else [])]
        with pytest.raises(SystemExit) as end:
            main([command, str(world), f"workdir={tmp_path / name}", "adapt.depth_schedule=[]", *own])
        assert end.value.code == 0, name

    comparison = compare_runs([read_run_results(tmp_path / name, name) for name in RUNS])
    rows = import_script("scripts/study_page.py").verdicts(comparison).rows
    verdicts = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in rows}
    assert [hypothesis for hypothesis, _ in verdicts] == "H1 H2 H3 H3 H4 H4 H5 H6 H6 H7 H7 H7".split()
    assert verdicts["H1", "share of MiniJoint against BL_BASE"][2] == "2 / 8", "two tasks, two runs of two seeds"
    assert verdicts["H2", "MiniJoint − BL_SMALL"][2] == "2 / 4", "the other run has no BL_SMALL"
    assert verdicts["H3", "cost of step 2: MiniJoint < MiniPost < BL_BASE"][-1] == "confirmed"
    assert verdicts["H6", "cost of step 2 at N = 1, 2"][-1] == "confirmed"
    assert verdicts["H6", "MultiJoint N=2 − MultiJoint"][2] == "2 / 4"

    def final(system):
        files = (tmp_path / f"little/evaluate/{system}").rglob("scores.json")
        of_system = [row for file in files for row in json.loads(file.read_text())]
        return statistics.fmean(row["score"] for row in of_system if row["step"] == 8)

    value = verdicts["H7", "MiniJoint (little) − BL_SMALL (little)"][0]
    assert value.startswith(f"{final('minijoint') - final('bl_small'):+.2f} [")
    measured = times_table(comparison.losses, comparison.costs)
    assert measured is not None and len(measured.rows) == 4 + 2 + 4
