"""The report on disk: complete, standing alone, and replaced only as a whole."""

import base64
import json
import re

import pytest

from ds_minimodel.analysis import plots
from ds_minimodel.analysis.losses import read_losses
from ds_minimodel.analysis.page import write_report
from ds_minimodel.analysis.render import Facts, Figure, Heading, to_html, to_markdown
from ds_minimodel.analysis.tables import Cell, Table
from ds_minimodel.errors import UserError

PNG = b"\x89PNG\r\n\x1a\n"
COSTS = [{"system": system, "step": "adapt", "formula_eflops": eflops, "executed_eflops": 0.9 * eflops,
          "v100_days": eflops / 2.592} for system, eflops in (("bl_base", 54.1), ("minijoint", 21.1))]
SCORES = [{"system": system, "task": task, "language": language, "seed": seed, "step": step,
           "eflops": step * eflops, "score": 30.0 + 20 * step + seed}
          for system, eflops in (("bl_base", 27.0), ("minijoint", 10.5)) for task in ("topic", "pair")
          for language in ("de", "tr") for seed in (1, 2) for step in (0, 1, 2)]
BASELINES = [{"baseline": "majority", "task": "topic", "language": "de", "score": 33.3}]
LOSSES = [{"system": "minijoint", "stage": "adapt", "language": "de", "step": step, "eflops": step * 0.1,
           "loss": 6 - 0.01 * step} for step in range(1, 301)]


def test_report_holds_scores_page_and_plots(tmp_path):
    folder = tmp_path / "report"
    write_report(folder, SCORES, COSTS, BASELINES, LOSSES, {"Recipe": "a <b> & c"})
    assert json.loads((folder / "scores.json").read_text(encoding="utf-8")) == SCORES
    pngs = {path.name: path.read_bytes() for path in folder.glob("*.png")}
    assert set(pngs) == {"curves.png", "curves-topic.png", "curves-pair.png", "losses.png"}
    assert all(data.startswith(PNG) for data in pngs.values())

    html, markdown = ((folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    embedded = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', html)]
    assert sorted(embedded) == sorted(pngs.values())
    assert "a &lt;b&gt; &amp; c" in html
    assert not re.search(r'(src|href)="(?!data:)', html), "the page stands alone"
    assert set(re.findall(r"\]\(([^)]+)\)", markdown)) == set(pngs)
    for text in ("Summary", "topic: performance at training completion", "near-maximal", "Cost of each step"):
        assert text in html and text in markdown


def test_report_without_bl_base_losses_or_costs_says_what_there_is(tmp_path):
    scores = [row for row in SCORES if row["system"] == "minijoint" and row["step"] == 2]
    write_report(tmp_path / "report", scores, [], [], [], {})
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "near-maximal" not in markdown.replace("Dotted: near-maximal", "") and "MiniJoint" in markdown


def test_a_failing_report_leaves_the_old_one(tmp_path, monkeypatch):
    folder = tmp_path / "report"
    write_report(folder, SCORES, COSTS, BASELINES, LOSSES, {})
    before = (folder / "report.html").read_bytes()
    with pytest.raises(UserError, match="no scores"):
        write_report(folder, [], COSTS, BASELINES, LOSSES, {})
    monkeypatch.setattr("ds_minimodel.analysis.page.to_html", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(folder, SCORES[:6], COSTS, BASELINES, LOSSES, {})
    assert (folder / "report.html").read_bytes() == before
    assert len(json.loads((folder / "scores.json").read_text(encoding="utf-8"))) == len(SCORES)


def test_one_renderer_for_both_forms():
    table = Table("T", ["System", "de|at"], [[Cell("A"), Cell("1.0", "±0.1", True)]],
                  references=[[Cell("ref"), Cell("∞")]], notes=["a * b"])
    blocks = [Heading("H"), Facts({"Seed": "1"}), table, Figure("f.png", PNG + bytes(16), "caption")]
    markdown, html = to_markdown("Title", blocks), to_html("Title", blocks)
    assert "| System | de\\|at |\n| --- | ---: |\n| A | **1.0** ±0.1 |\n| ref | ∞ |\n\na \\* b" in markdown
    assert "- **Seed**: 1" in markdown and "![caption](f.png)" in markdown
    assert "<td><b>1.0</b> <small>±0.1</small></td>" in html and "<dt>Seed</dt><dd>1</dd>" in html
    assert '<tbody class="references">' in html


def test_losses_of_a_resumed_run_count_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records = [{"step": 1, "loss": 6.0, "eflops": 0.1}, {"step": 2, "loss": 5.0, "eflops": 0.2},
               {"step": 2, "loss": 4.0, "eflops": 0.2, "lr": 1e-3}, {"step": 2, "saved": True}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 3, "lo',
                    encoding="utf-8")
    rows = read_losses(path, "minijoint", "adapt", "de")
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 6.0), (2, 4.0)]
    assert rows[0] == {"system": "minijoint", "stage": "adapt", "language": "de", "step": 1, "eflops": 0.1,
                       "loss": 6.0}


def test_a_long_loss_curve_is_drawn_as_means_of_stretches():
    curve = [(float(step), 4.0 + (-1) ** step) for step in range(1, 2401)]
    drawn = list(plots._binned(curve))
    assert len(drawn) == 120 and {y for _, y in drawn} == {4.0}
    assert sum(x for x, _ in drawn) / 120 == pytest.approx(1200.5)
    assert list(plots._binned(curve[:3])) == curve[:3]


def test_majority_line_is_the_mean_of_the_languages_of_the_panel():
    rows = [{"baseline": "majority", "task": "topic", "language": language, "score": score}
            for language, score in (("de", 30.0), ("tr", 40.0), ("en", 90.0))]
    assert plots._majority(rows, "topic", ["de", "tr"]) == 35.0
    assert plots._majority(rows, "topic", ["de", "es"]) is None
    assert plots._majority(rows, "pair", ["de"]) is None
