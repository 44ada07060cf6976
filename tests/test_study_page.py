"""scripts/study_page.py on runs with made-up scores: what it judges, what it writes and what it refuses."""

import dataclasses
import json
import re

import pytest

from ds_minimodel.results.run_results import write_run_results

from .docs import ROOT, import_script
from .pipeline.conftest import make_world
from .results.some_runs import some_run

FOUR = ("bl_base", "bl_small", "minijoint", "minipost")
TASKS = ("topic", "qa")
DEPTHS = [1, 2, 4]


@pytest.fixture
def page():
    return import_script("scripts/study_page.py")


def some_runs():
    """Two seeds, three depths of one body, and other text: BL_BASE 60, BL_SMALL 50, MiniJoint 58, MiniPost 59."""
    of_body = {"systems": ["multijoint"], "tasks": TASKS}
    return [
        some_run("seed-1", systems=FOUR, tasks=TASKS),
        some_run("seed-11", seed=11, systems=FOUR, tasks=TASKS),
        *(some_run(f"depth-{n}", **of_body, mini={"depth": n, "depths": DEPTHS}, better=-n) for n in DEPTHS),
        some_run("little", systems=FOUR, tasks=TASKS, data={"text of de": "2"}, better=-3.0),
    ]


def write_runs(folder, **of_pilot):
    """run.json of every run, and of a pilot with these scores in the source language; the runs' names."""
    make_world(folder)
    pilot = some_run("pilot", systems=["bl_base"], tasks=TASKS, languages=["de"])
    for name, ending in (("topic", "jsonl"), ("qa", "json")):
        files = {key: f"{folder}/{name}.{code}.{ending}" for key, code in (("en", "en"), ("de", "xx"))}
        pilot.recipe["finetune"]["tasks"][name] |= {"train": files["en"], "test": files}
    scores = [row | ({"score": of_pilot[row["task"]]} if row["language"] == "en" else {}) for row in pilot.scores]
    runs = some_runs()
    for run in [dataclasses.replace(pilot, scores=scores), *runs]:
        (folder / run.name / "report").mkdir(parents=True)
        write_run_results(run, folder / run.name / "report")
    return [run.name for run in runs]


def page_of(folder):
    """A page that takes the results."""
    path = folder / "study.md"
    if not path.exists():
        path.write_text("# Registered\n")
    return path


def rows_below(text, title):
    """Cells of the table with this title, by the first two of them."""
    lines = text.partition(f"**{title}**\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {(row[0], row[1]): row[2:] for row in cells}


def test_the_page_of_a_study(page, tmp_path):
    names = write_runs(tmp_path, topic=99.0, qa=99.0)
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs/study.md"
    path.write_text(f"# Registered\n\n---\n\n{page.BEGIN}\nold results\n{page.END}\nBy hand.\n")
    (tmp_path / "log.txt").write_text(
        "2026-01-01 00:00:00  start: seeds, commit 1\n2026-01-01 00:00:01  seeds: begun\n"
        "2026-01-02 00:00:00  interrupted: killed, or the machine stopped; the newest file was of 2026-01-01 12:00:00\n"
        "2026-01-02 00:00:00  start: seeds, commit 1\n2026-01-02 00:00:01  seeds: begun\n"
        "2026-01-02 01:00:00  seeds: done, CPU time since the start: 20m0.5s 1m0.0s\n"
        "2026-01-02 01:00:01  other: begun by hand\n"
    )
    page.write(tmp_path, names, tmp_path / "benchmarks/study", path)
    text = path.read_text()
    assert text.startswith(f"# Registered\n\n---\n\n{page.BEGIN}\n## Results\n")
    assert text.endswith(f"{page.END}\nBy hand.\n") and "old results" not in text
    assert {key: row[1:] for key, row in rows_below(text, "Verdicts").items()} == {
        ("H1", "share of MiniJoint against BL_BASE"): ["≥ 0.95", "4 / 16", "confirmed"],
        ("H2", "MiniJoint − BL_SMALL"): ["> 0", "4 / 16", "confirmed"],
        ("H3", "cost of step 2: MiniJoint \\< MiniPost \\< BL_BASE"): ["strictly between", "–", "confirmed"],
        ("H3", "share of MiniPost against BL_BASE"): ["≥ 0.95", "4 / 16", "confirmed"],
        ("H4", "speedup of MiniJoint against BL_BASE"): ["≥ 2", "4 / 16", "refuted"],
        ("H4", "speedup of MiniPost against BL_BASE"): ["≥ 1.4", "4 / 16", "refuted"],
        ("H5", "BL_BASE − MiniJoint, source language"): ["≤ 1", "2 / 4", "confirmed"],
        ("H6", "cost of step 2 at N = 1, 2, 4"): ["rises", "–", "confirmed"],
        ("H6", "MultiJoint N=2 − MultiJoint"): ["≥ -1", "4 / 8", "confirmed"],
        ("H6", "MultiJoint N=4 − MultiJoint N=2"): ["≥ -1", "4 / 8", "refuted"],
        ("H7", "share of MiniJoint (little) against BL_BASE (little)"): ["≥ 0.95", "4 / 8", "confirmed"],
        ("H7", "MiniJoint (little) − BL_SMALL (little)"): ["> 0", "4 / 8", "confirmed"],
        ("H7", "share of MiniPost (little) against BL_BASE (little)"): ["≥ 0.95", "4 / 8", "confirmed"],
    }
    pilot = rows_below(text, "pilot: BL_BASE in en")
    assert pilot["topic", "99.0"][-1] == pilot["qa", "99.0"][-1] == "enters"
    assert pilot["qa", "99.0"][1] == "–", "questions have no majority class"
    assert rows_below(text, "Interruptions") == {
        ("2026-01-01 12:00:00", "killed, or the machine stopped"): ["2026-01-02 00:00:00"]
    }
    assert ("seeds", "1,260") in rows_below(text, "CPU time of the parts") and "No training diverged." in text
    assert "started beside the script:\n\n- 2026-01-02 01:00:01  other: begun by hand\n" in text
    assert set(re.findall(r"\]\((.*?)\)", text)) == {
        f"../benchmarks/study/{name}" for name in (*page.FIGURES, "results.md")
    }
    assert {file.name for file in (tmp_path / "benchmarks/study").iterdir()} == {
        *page.FIGURES,
        "results.md",
        "scores.json",
    }
    rows = json.loads((tmp_path / "benchmarks/study/scores.json").read_text())
    assert {row["run"] for row in rows} == {"pilot", *names} and {row["language"] for row in rows} == {"de", "tr", "en"}


def test_a_task_that_fails_the_pilot_is_not_compared(page, tmp_path):
    """Questions at 0 are below word overlap; topics at 99 above the majority class."""
    names = write_runs(tmp_path, topic=99.0, qa=0.0)
    text = page.markdown_of(page.result_blocks(page.read_study(tmp_path, names[:2])))
    assert rows_below(text, "pilot: BL_BASE in en")["qa", "0.0"][-1] == "fails"
    verdicts = rows_below(text, "Verdicts")
    assert verdicts["H1", "share of MiniJoint against BL_BASE"][2] == "2 / 8"
    assert verdicts["H6", "each depth − the next smaller one"][-1] == "no such scores"
    assert "### topic" in text and "### qa" not in text and "None." in text.partition("**Interruptions**")[2]


def test_other_bodies_tries_of_finetuning_and_of_step_2_have_their_tables(page, tmp_path):
    """Of `other` nothing enters: it is at 0. A try has other steps, and a point less."""
    names = write_runs(tmp_path, topic=99.0, qa=99.0)
    pilot = page.read_run_results(tmp_path / "pilot", "pilot")
    at_zero = [row | {"score": 0.0} for row in pilot.scores]
    of_body = {"systems": ["multijoint"], "tasks": TASKS, "mini": {"depth": 1, "depths": DEPTHS}}
    tuned = [row | {"score": 41.5} for row in pilot.source_scores if row["task"] == "qa"]
    base, quick = some_runs()[0], some_run("try-quick", adapt={"steps": 50}, better=-1, **of_body)
    slower = base.recipe["pretrain"] | {"lr": 0.5}
    for run in [
        base,
        dataclasses.replace(pilot, name="other", scores=at_zero),
        dataclasses.replace(pilot, name="german", baselines=[row | {"language": "tr"} for row in pilot.baselines]),
        dataclasses.replace(pilot, name="other-german", scores=at_zero),
        dataclasses.replace(pilot, name="find-1e-3x4", scores=tuned),
        quick,
        *(dataclasses.replace(quick, name=name) for name in ("chosen", "fast")),
        some_run("fast-base", adapt={"steps": 60}, systems=["bl_base"], tasks=TASKS),
        dataclasses.replace(base, name="other-seed-1", recipe=base.recipe | {"pretrain": slower}),
    ]:
        (tmp_path / run.name / "report").mkdir(parents=True, exist_ok=True)
        write_run_results(run, tmp_path / run.name / "report")
    page.write(tmp_path, names, tmp_path / "out", page_of(tmp_path))
    text = page_of(tmp_path).read_text()
    assert rows_below(text, "other: BL_BASE in en")["topic", "0.0"][-1] == "fails"
    qa = rows_below(text, "pilot: BL_BASE in en")
    bodies = text.partition("**Which body**")[2].partition("**")[0]
    assert "| random | 2 | 60.5 | 60.5 | 60.5 |" in bodies, "another language's majority class is none of German's"
    assert "| random | 0 | -33.3 | -33.3 | -33.3 |" in bodies
    assert list(rows_below(text, "The search for find").values()) == [["3", "41.5", qa["qa", "99.0"][2]]]
    search = text.partition("### The search for a quarter of the compute")[2].partition("\n### ")[0]
    rows = rows_below(search, "Share of BL_BASE, and speedup by cell")
    assert {"MultiJoint", "MultiJoint (try-quick)"} <= {name for name, _ in rows}
    assert not {"MiniJoint", "MiniPost"} & {name for name, _ in rows}
    assert rows["MultiJoint (try-quick)", "BL_BASE"][-1] != "–"
    for heading, expected in (
        (page.BY_RULE, [("MultiJoint", "BL_BASE")]),
        (page.BESIDE_IT, [("BL_BASE (fast-base)", "BL_BASE"), ("MultiJoint", "BL_BASE")]),
    ):
        part = text.partition(f"### {heading}")[2].partition("\n### ")[0]
        assert list(rows_below(part, "Share of BL_BASE, and speedup by cell")) == expected
    other_body = text.partition("### Over the other body")[2]
    assert re.search(r"^- \*\*other-seed-1\*\*: .*; differs in pretrain.lr \S+ → 0.5$", other_body, re.MULTILINE)
    elsewhere = rows_below(other_body, "Share of BL_BASE, and speedup by cell")
    assert {"MiniJoint", "MiniPost"} <= {name for name, _ in elsewhere}
    assert {row["run"] for row in json.loads((tmp_path / "out/scores.json").read_text())} >= {
        *("other", "german", "other-german", "find-1e-3x4", "try-quick", "chosen", "fast", "other-seed-1")
    }


def test_what_the_page_cannot_do_is_one_line_and_nothing_is_written(page, tmp_path, monkeypatch, capsys):
    names = write_runs(tmp_path, topic=99.0, qa=0.0)
    (tmp_path / "no-pilot/seed-1/report").mkdir(parents=True)
    write_run_results(some_runs()[0], tmp_path / "no-pilot/seed-1/report")
    for work, chosen, target, message in (
        (tmp_path, ["none"], ROOT / "docs/study.md", "no finished run"),
        (tmp_path / "no-pilot", ["seed-1"], ROOT / "docs/study.md", "no pilot; run"),
        (tmp_path, names[:1], tmp_path / "no-page.md", "no-page.md"),
    ):
        options = ["--out", str(tmp_path / "out"), "--page", str(target)]
        monkeypatch.setattr("sys.argv", ["study_page.py", str(work), *chosen, *options])
        assert page.main() == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ds-minimodel: ") and message in line
        assert not (tmp_path / "out").exists()
    with pytest.raises(page.UserError, match="without <!-- end of the results"):
        page.inserted(f"# Registered\n{page.BEGIN}\n", "## Results\n")
