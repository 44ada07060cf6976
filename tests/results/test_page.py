"""The report on disk: complete, standing alone, the same bytes each time, and replaced only as a whole."""

import base64
import dataclasses
import json
import re

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import sha256_of_json, write_json
from ds_minimodel.results.losses import read_losses
from ds_minimodel.results.page import write_report
from ds_minimodel.results.render import PALETTES, Cell, Facts, Heading, Notes, Plot, Table, to_html, to_markdown
from ds_minimodel.results.run_results import read_run_results

from .some_runs import some_run

PNG = b"\x89PNG\r\n\x1a\n"


def texts(folder):
    return [(folder / name).read_text(encoding="utf-8") for name in ("report.md", "report.html")]


def names_of_paper(folder):
    """The paper's tables and figures that a page has, by their captions."""
    return set(re.findall(r"^(?:\*\*|\*)((?:Table|Figures?) \w+)", texts(folder)[0], re.MULTILINE))


def left_out(folder):
    return texts(folder)[0].partition("## Left out")[2]


def test_report_holds_scores_page_and_plots(tmp_path):
    run, folder = some_run(tasks=("topic", "qa")), tmp_path / "report"
    run.facts["Recipe"] = "a <b> & c"
    write_report(folder, [run])
    rows = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert rows == run.target_scores
    assert {"system", "task", "language", "seed", "step", "eflops", "score"} == set(rows[0])
    pngs = {path.name: path.read_bytes() for path in folder.glob("*.png")}
    assert set(pngs) == {
        "figure-1.png",
        "figure-3.png",
        "figure-3-topic.png",
        "figure-3-qa.png",
        "losses.png",
        "held-out.png",
    }
    assert all(data.startswith(PNG) for data in pngs.values())

    markdown, html = texts(folder)
    embedded = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', html)]
    assert sorted(embedded) == sorted(pngs.values())
    assert "a &lt;b&gt; &amp; c" in html
    assert not re.search(r'(src|href)="(?!data:|#)|<script|<link|@import|url\(', html), "the page stands alone"
    assert set(re.findall(r"\]\(([^)]+)\)", markdown)) == set(pngs)
    for text in (
        "Summary",
        "Table 2 (qa): performance at training completion, F1",
        "completion, exact match",
        "Table 3 (topic)",
        "Table 5",
        "Cost of each step",
    ):
        assert text in html and text in markdown


def test_confusion_and_predictions_stand_with_their_task(tmp_path):
    found = [
        {
            "system": system,
            "task": "topic",
            "language": language,
            "labels": ["no", "yes"],
            "confusion": [[7, 2], [1, 5]],
            "predictions": [["a\n| text", "no", said]],
        }
        for system, said in (("bl_base", "no"), ("minijoint", "yes"))
        for language in ("de", "tr")
    ]
    write_report(tmp_path / "run/report", [dataclasses.replace(some_run(), examples=found)])
    markdown, html = texts(tmp_path / "run/report")
    assert "| System | gold | predicted no | predicted yes |" in markdown
    assert "| MiniJoint | no | **14** | 4 |" in markdown and "| MiniJoint | yes | 2 | **10** |" in markdown
    assert "| a \\| text | tr | no | **no** | yes |" in markdown and "Confusion matrices" in html
    assert read_run_results(tmp_path / "run", "again").examples == found


def test_several_runs_have_the_papers_ablations_on_one_page(tmp_path):
    runs = [
        some_run(tasks=("topic", "qa")),
        some_run("again", seed=2, tasks=("topic", "qa")),
        some_run("n1", systems=["minijoint"], mini={"depth": 1}, languages=["de"]),
    ]
    write_report(tmp_path / "joint", runs)
    assert names_of_paper(tmp_path / "joint") == {
        "Figure 1",
        "Figure 3",
        "Figure 4",
        "Figures A2",
        "Table 2",
        "Table 3",
        "Table 5",
        "Table A3",
        "Table A4",
        "Table A5",
    }
    assert "Tables A1, A2" in left_out(tmp_path / "joint")
    assert not (tmp_path / "joint/run.json").exists()
    rows = json.loads((tmp_path / "joint/scores.json").read_text(encoding="utf-8"))
    assert {row["run"] for row in rows} == {"first", "again", "n1"}
    assert len(rows) == sum(len(run.target_scores) for run in runs)


def test_several_runs_are_compared_unit_by_unit(tmp_path):
    again, little = some_run("again", seed=2, better=4.0), some_run("little", data={"text of de": "2"})
    little.losses.clear()  # its logs were deleted
    write_report(tmp_path / "joint", [some_run(), again, little])
    markdown, _ = texts(tmp_path / "joint")
    table = markdown.partition("**Paired differences at training completion**")[2]
    # 2 languages of 2 runs of 2 finetuning seeds, MiniJoint 2 below BL_BASE in each
    assert "| MiniJoint − BL_BASE | 2 / 8 | -2.00 [-2.00, -2.00] |" in table
    assert "| MiniJoint (little) − BL_BASE (little) | 2 / 4 |" in table
    assert "**Paired differences in the source language, en**" in table
    assert "| MiniJoint | BL_BASE | 2 / 8 | 0.9" in table.partition("**Share of BL_BASE**")[2]
    measured = table.partition("**Measured time of step 2**")[2]
    found = re.search(r"\| MiniJoint \| ([\d.]+) \| 1,200 \(1,200–1,200\) \| 600 \(600–600\) \| 4 \|", measured)
    of_base = re.search(r"\| BL_BASE \| ([\d.]+) \|", measured)
    speedups = markdown.partition("**Speedup over BL_BASE**")[2]
    row = re.search(r"\| MiniJoint \| BL_BASE \| 2 / 8 \| ([\d.]+) \[.*\] \| [+-].*\] \| ([\d.]+) \|\n", speedups)
    in_seconds = float(row[1]) * 1500 / 600 * float(found[1]) / float(of_base[1])
    assert float(row[2]) == pytest.approx(in_seconds, rel=0.02), "less compute, but at a lower rate"
    little = re.search(r"\| MiniJoint \(little\) \| BL_BASE \(little\) \|.*\| – \|\n", speedups)
    assert little, "nothing was measured there"
    assert (tmp_path / "joint/differences.png").read_bytes().startswith(PNG)


def test_the_same_runs_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_report(tmp_path / name, [some_run(), some_run("fast", adapt={"lr": 1e-2})])
    assert texts(tmp_path / "one") == texts(tmp_path / "two")


def test_a_failing_report_leaves_the_old_one(tmp_path, monkeypatch):
    folder = tmp_path / "report"
    write_report(folder, [some_run()])
    before = (folder / "report.html").read_bytes()
    monkeypatch.setattr("ds_minimodel.results.page.to_html", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(folder, [some_run(better=1.0)])
    assert (folder / "report.html").read_bytes() == before
    assert read_run_results(tmp_path, "first") == some_run()


def test_a_run_is_read_back_unless_its_results_are_newer(tmp_path):
    run, record = some_run(), tmp_path / "evaluate" / "topic.job.json"
    write_json(record, {"complete": True})
    run.records["evaluate/topic.job.json"] = sha256_of_json({"complete": True})
    with pytest.raises(UserError, match="no finished run"):
        read_run_results(tmp_path, "first")
    write_report(tmp_path / "report", [run])
    assert read_run_results(tmp_path, "first") == run
    write_json(record, {"complete": False})
    with pytest.raises(UserError, match="older than its results .evaluate/topic.job.json"):
        read_run_results(tmp_path, "first")
    record.unlink()
    assert read_run_results(tmp_path, "first") == run, "the report folder alone is enough"
    write_json(tmp_path / "report" / "run.json", {"recipe": {}})
    with pytest.raises(UserError, match="written by another version"):
        read_run_results(tmp_path, "first")


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda run: run["data"].pop("base"), "base is missing"),
        (lambda run: run["recipe"].update(systems=["bl_huge"]), "recipe.systems.0"),
        (lambda run: run["recipe"].pop("adapt"), "recipe.adapt"),
        (lambda run: run["recipe"].update(systems=["bl_base"]), "rows of 'minijoint'"),
        (lambda run: run.update(tests={}), "rows of 'topic'"),
    ],
)
def test_a_run_whose_parts_do_not_fit_is_refused(tmp_path, damage, message):
    write_report(tmp_path / "report", [some_run()])
    value = json.loads((tmp_path / "report/run.json").read_text())
    del value["own_sha256"]
    damage(value)
    write_json(tmp_path / "report/run.json", value)
    with pytest.raises(UserError, match=message):
        read_run_results(tmp_path, "first")


def test_one_renderer_for_both_forms():
    table = Table(
        "T",
        ["System", "de|at"],
        [[Cell("A"), Cell("1.0", "±0.1", True)]],
        references=[[Cell("ref"), Cell("∞")]],
        notes=["a * b"],
    )
    blocks = [Heading("H"), Facts({"Seed": "1"}), table, Plot("f.png", PNG + bytes(16), "caption"), Notes(["n < m"])]
    markdown, html = to_markdown("Title", blocks), to_html("Title", blocks)
    assert "| System | de\\|at |\n| --- | ---: |\n| A | **1.0** ±0.1 |\n| ref | ∞ |\n\na \\* b" in markdown
    assert "- **Seed**: 1" in markdown and "![caption](f.png)" in markdown and "- n \\< m" in markdown
    assert "<td><b>1.0</b> <small>±0.1</small></td>" in html and "<dt>Seed</dt><dd>1</dd>" in html
    assert '<tbody class="references">' in html and '<p class="note">n &lt; m</p>' in html


def metrics(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_losses_of_a_resumed_run_count_once(tmp_path):
    path = metrics(
        tmp_path / "metrics.jsonl",
        [
            {"step": 1, "loss": 6.0, "eflops": 0.1, "tflops_per_second": 1e4},
            {"step": 2, "loss": 5.0, "eflops": 0.2, "tflops_per_second": 1e3},
            {"step": 2, "loss": 4.0, "eflops": 0.2, "tflops_per_second": 1e4, "lr": 1e-3},
        ],
    )
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"step": 3, "lo')
    assert read_losses(path, "minijoint", "adapt", "de") == {
        "system": "minijoint",
        "stage": "adapt",
        "language": "de",
        "final": 4.0,
        "curve": [[0.1, 6.0], [0.2, 4.0]],
        "held_out": [],
        "seconds": 20.0,
        "usual_seconds": 20.0,
    }
    assert read_losses(tmp_path / "none.jsonl", "minijoint", "adapt", "de") is None


def test_a_loss_ends_with_the_mean_of_its_last_twentieth_and_is_drawn_as_means_of_stretches(tmp_path):
    path = metrics(
        tmp_path / "metrics.jsonl",
        [
            {
                "step": step,
                "loss": 4.0 + (-1) ** step if step < 2280 else 2.0 + step % 2,
                "eflops": float(step),
                "tflops_per_second": 1.0,
            }
            for step in range(1, 2401)
        ],
    )
    row = read_losses(path, "minijoint", "adapt", "de")
    assert row["final"] == pytest.approx(2.5, abs=0.01)
    assert len(row["curve"]) == 120 and row["curve"][0] == [10.5, 4.0]


# --- The page as people see it: on a phone, in dark mode, by keyboard ---

ENOUGH = 4.5  # of contrast: WCAG 2, level AA


def a_page():
    """A report of 15 languages and 4 tasks, with figures 2,640 pixels wide."""
    columns = ["System", *(f"l{number}" for number in range(15)), "avg"]
    table = Table("Table 2: performance", columns, [[Cell("BL_BASE"), *[Cell("53.7", "±1.0")] * 16]])
    png = PNG + b"\0\0\0\rIHDR" + (2640).to_bytes(4, "big") + bytes(9)
    blocks = [[Heading(task), table, Plot("f.png", png, "Figure 3")] for task in ("xnli", "xquad", "ner", "topic")]
    return to_html("Report", sum(blocks, []))


def test_plots_scale_with_the_page():
    """No figure is held at a width that a phone does not have, nor lies in what scrolls."""
    shown = a_page()
    assert "figure img { max-width: 100%; height: auto;" in shown
    assert shown.count('<figure><img alt="Figure 3" width="1320"') == 4


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("mode", PALETTES)
def test_every_text_has_enough_contrast(mode):
    ground, *texts = (luminance(PALETTES[mode][name]) for name in ("ground", "text", "quiet", "link"))
    for text in texts:
        assert (max(ground, text) + 0.05) / (min(ground, text) + 0.05) >= ENOUGH


def test_colours_are_those_of_the_palettes_and_what_is_wide_scrolls_by_keyboard():
    shown = a_page()
    colors = set(re.findall(r"[ {]color: ([^;]+);", shown))
    assert colors == {"var(--text)", "var(--quiet)", "var(--link)"}
    ids = set(re.findall(r' id="(\w+)"', shown))
    assert set(re.findall(r'href="#(\w+)"', shown)) <= ids
    regions = re.findall(r'<div class="wide" role="region" tabindex="0" aria-labelledby="(\w+)"><table', shown)
    assert len(regions) == shown.count("<table") == 4 and set(regions) <= ids
    assert re.search(r'<body>\n<a class="skip" href="#results">', shown) and '<main id="results">' in shown


def test_what_a_run_lacks_is_left_out_with_a_line(tmp_path):
    write_report(tmp_path / "without-base", [some_run(systems=["minijoint"])])
    assert names_of_paper(tmp_path / "without-base") == {"Figure 3", "Table 2", "Table 5"}
    assert "BL_BASE, which no run has" in left_out(tmp_path / "without-base")

    write_report(tmp_path / "without-tasks", [some_run(tasks=())])
    assert names_of_paper(tmp_path / "without-tasks") == set()
    assert "nothing was scored" in left_out(tmp_path / "without-tasks")
    markdown, _ = texts(tmp_path / "without-tasks")
    assert "Cost of each step" in markdown and "Training loss" in markdown

    write_report(tmp_path / "xquad", [some_run(languages=["de"])])
    assert "Figure 4, Tables A3 and A4" in left_out(tmp_path / "xquad") and "Table A5" in left_out(tmp_path / "xquad")
