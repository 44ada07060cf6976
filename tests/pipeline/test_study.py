"""The page of a study in miniature: two pretraining seeds, two depths of one body, and half of the text."""

import dataclasses
import json
import shutil
import statistics

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.engine.ranks.launch import CPU
from ds_minimodel.results.run_results import read_run_results, write_run_results

from ..docs import import_script

NAMES = ["seed-1", "seed-11", "depth-1", "depth-2", "little"]
FOUR = "systems=[bl_base, bl_small, minijoint, minipost]"


@pytest.fixture(scope="module")
def study(world, tmp_path_factory):
    """Folder of the runs. What they have in common with the finished world is copied, as scripts/study.sh does."""
    folder, whole = tmp_path_factory.mktemp("study"), world.parent / "run"
    blocks = (world.parent / "xx.txt").read_text().split("\n\n")
    (folder / "half.txt").write_text("\n\n".join(blocks[::2]))

    def make(name, command, shared, *settings):
        for part in shared:
            for path in whole.glob(f"{part}*"):
                copy = shutil.copytree if path.is_dir() else shutil.copy
                (folder / name / path.relative_to(whole)).parent.mkdir(parents=True, exist_ok=True)
                copy(path, folder / name / path.relative_to(whole))
        with pytest.raises(SystemExit) as end:
            main([command, str(world), f"workdir={folder / name}", "adapt.depth_schedule=[]", *settings])
        assert end.value.code == 0

    with pytest.MonkeyPatch.context() as patch:
        for name, value in CPU.items():
            patch.setenv(name, value)
        make(
            "seed-1", "report", ["tokenizer", "tokens", "pretrain", "build-mini", "adapt", "finetune", "evaluate"], FOUR
        )
        make("seed-11", "run", ["tokenizer", "tokens"], "seed=11", "systems=[bl_base, minijoint]")
        of_body = ["tokenizer", "tokens", "pretrain/multijoint", "finetune/multijoint"]
        for depth in (1, 2):
            make(f"depth-{depth}", "run", of_body, "systems=[multijoint]", f"mini.depth={depth}")
        shared = ["tokenizer/en", "tokens/en", "pretrain", "build-mini", "finetune"]
        make("little", "run", shared, FOUR, f"data.text.xx={folder}/half.txt")
    (folder / "pilot/report").mkdir(parents=True)
    set_pilot(folder, topic=99.0, qa=99.0)
    return folder


def set_pilot(folder, **scores):
    """The first seed's results as the pilot's, with these scores of BL_BASE in the source language."""
    run = read_run_results(folder / "seed-1", "pilot")
    made = [row | {"score": scores[row["task"]]} if row["language"] == "en" else row for row in run.scores]
    write_run_results(dataclasses.replace(run, scores=made, records={}), folder / "pilot/report")


@pytest.fixture(scope="module")
def page():
    return import_script("scripts/study_page.py")


def rows_below(text, title):
    """Cells of the table with this title, by the first two of them."""
    lines = text.partition(f"**{title}**\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {(row[0], row[1]): row[2:] for row in cells}


def test_the_page_of_a_study(study, page, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/study.md").write_text("# Registered\n\n---\n")
    (study / "log.txt").write_text(
        "2026-01-01 00:00:00  start: seeds, commit 1\n2026-01-01 00:00:01  seeds: begun\n"
        "2026-01-02 00:00:00  interrupted: killed, or the machine stopped; the newest file was of 2026-01-01 12:00:00\n"
        "2026-01-02 00:00:00  start: seeds, commit 1\n2026-01-02 00:00:01  seeds: begun\n"
        "2026-01-02 01:00:00  seeds: done, CPU time since the start: 20m0.5s 1m0.0s\n"
    )
    for _ in range(2):  # the second time in the place of the first
        page.write(study, NAMES, tmp_path / "out", tmp_path / "docs/study.md")
        with open(tmp_path / "docs/study.md", "a") as file:
            file.write("By hand.\n")
    text = (tmp_path / "docs/study.md").read_text()
    assert text.startswith(f"# Registered\n\n---\n\n{page.BEGIN}\n") and text.count("\n## Results\n") == 1
    assert text.endswith(f"{page.END}\nBy hand.\nBy hand.\n")

    verdicts = rows_below(text, "Verdicts")
    claims = [name for name, _ in verdicts]
    assert claims == ["H1", "H2", "H3", "H3", "H4", "H4", "H5", "H6", "H6", "H7", "H7", "H7"]
    assert {row[-1] for row in verdicts.values()} <= {"confirmed", "refuted", "open"}
    # the costs of the smallest sizes are in the order of the paper's
    assert verdicts["H3", "cost of step 2: MiniJoint \\< MiniPost \\< BL_BASE"][-1] == "confirmed"
    assert verdicts["H6", "cost of step 2 at N = 1, 2"][-1] == "confirmed"
    assert verdicts["H1", "share of MiniJoint against BL_BASE"][2] == "2 / 8", "two tasks, two runs of two seeds"
    value, bound, cells, _ = verdicts["H7", "MiniJoint (little) − BL_SMALL (little)"]
    assert (bound, cells) == ("> 0", "2 / 4")

    rows = json.loads((tmp_path / "out/scores.json").read_text())
    assert {row["run"] for row in rows} == {*NAMES, "pilot"} and {row["language"] for row in rows} == {"en", "xx"}

    def final(system):
        chosen = [row for row in rows if (row["run"], row["system"], row["language"]) == ("little", system, "xx")]
        return statistics.fmean(row["score"] for row in chosen if row["step"] == 8)

    assert value.startswith(f"{final('minijoint') - final('bl_small'):+.2f} [")

    pilot = rows_below(text, "pilot: BL_BASE in en")
    assert {task for task, _ in pilot} == {"topic", "qa"} and all(
        row[-1] in ("enters", "fails") for row in pilot.values()
    )
    assert pilot[next(key for key in pilot if key[0] == "qa")][1] == "–", "questions have no majority class"
    assert rows_below(text, "Interruptions") == {
        ("2026-01-01 12:00:00", "killed, or the machine stopped"): ["2026-01-02 00:00:00"]
    }
    assert ("seeds", "1,260") in rows_below(text, "CPU time of the parts")
    assert "**Measured time of step 2**" in text and "No training diverged." in text
    for figure in page.FIGURES:
        assert f"](../out/{figure})" in text and (tmp_path / "out" / figure).is_file()
    assert "](differences.png)" in (tmp_path / "out/results.md").read_text()


def test_a_task_that_fails_the_pilot_is_not_compared(study, page, tmp_path):
    """Questions at 0 are below word overlap; topics at 99 above the majority class."""
    set_pilot(study, topic=99.0, qa=0.0)
    runs, pilots = ([read_run_results(study / name, name) for name in names] for names in (NAMES[:2], ["pilot"]))
    text = page.markdown_of(page.result_blocks(runs, pilots, tmp_path / "none"))
    set_pilot(study, topic=99.0, qa=99.0)
    assert rows_below(text, "pilot: BL_BASE in en")["qa", "0.0"][-1] == "fails"
    verdicts = rows_below(text, "Verdicts")
    assert verdicts["H1", "share of MiniJoint against BL_BASE"][2] == "1 / 4"
    assert verdicts["H6", "each depth − the next smaller one"][-1] == "no such scores"
    assert "### topic" in text and "### qa" not in text and "None." in text.partition("**Interruptions**")[2]


def test_what_the_page_cannot_do_is_one_line(study, page, tmp_path, monkeypatch, capsys):
    (tmp_path / "study.md").write_text(f"# Registered\n{page.BEGIN}\n")
    options = ["--out", str(tmp_path / "out"), "--page", str(tmp_path / "study.md")]
    for work, names, message in (
        (study, ["seed-1", "none"], "no finished run"),
        (tmp_path, ["seed-1"], "no finished run"),
        (study, ["seed-1", "seed-11"], "without <!-- end of the results"),
    ):
        monkeypatch.setattr("sys.argv", ["study_page.py", str(work), *names, *options])
        assert page.main() == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ds-minimodel: ") and message in line
        assert not (tmp_path / "out").exists()
