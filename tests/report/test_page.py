"""The report on disk: complete, standing alone, the same bytes each time, and replaced only as a
whole.
"""

import base64
import json
import re
from dataclasses import replace
from html import escape

import pytest
from markdown_it import MarkdownIt

from ds_minimodel.evaluation.comparison import OPENINGS, QUESTIONS, Kept, Measure, Sample
from ds_minimodel.report.curves import read_losses
from ds_minimodel.report.page import write_report
from ds_minimodel.report.render import Cell, Facts, Heading, Plot, Table, to_html, to_markdown
from tests.helpers.files import read_json

from .some_runs import some_run

PNG = b"\x89PNG\r\n\x1a\n"


def texts(folder):
    return [(folder / name).read_text() for name in ("report.md", "report.html")]


def names_of_paper(folder):
    """The paper's tables and figures that a page has, by their captions."""
    return set(re.findall(r"^(?:\*\*|\*)((?:Table|Figure) \w+)", texts(folder)[0], re.MULTILINE))


def test_report_holds_scores_page_and_plots(tmp_path):
    run = some_run(tasks=("topic", "qa"), facts={"Recipe": "a <b> & c"})
    folder = tmp_path / "report"
    write_report(folder, run)
    assert read_json(folder / "scores.json") == run.target_scores
    pngs = {path.name: path.read_bytes() for path in folder.glob("*.png")}
    assert set(pngs) == {"figure-1.png", "figure-3.png", "figure-3-topic.png", "figure-3-qa.png"}
    assert all(data.startswith(PNG) for data in pngs.values())

    markdown, html = texts(folder)
    embedded = [
        base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    ]
    assert sorted(embedded) == sorted(pngs.values())
    assert "a &lt;b&gt; &amp; c" in html
    assert not re.search(r'(src|href)="(?!data:|#)|<script|<link|@import|url\(', html), (
        "the page stands alone"
    )
    assert set(re.findall(r"\]\(([^)]+)\)", markdown)) == set(pngs)
    assert names_of_paper(folder) == {"Figure 1", "Figure 3", "Table 2", "Table 3", "Table 5"}
    for text in (
        "Speedup over BL_BASE",
        "completion, F1",
        "completion, exact match",
        "Cost of each step",
    ):
        assert text in html
        assert text in markdown


def with_scores(rows, **more):
    """The rows, of de with more scores."""
    return [row | more if row["language"] == "de" else row for row in rows]


def kept():
    """What a decoder has kept, as evaluation/comparison.py finds it."""
    measure = Measure(what="cs, held-out pages", unit="bits per byte", before=2, after=1.5)
    answer = Sample(
        kind=QUESTIONS, opening="Who?", before="Ann", after="no no no no", was_right=True
    )
    return Kept(
        key="",
        pack="",
        strength=1.0,
        asked=1,
        lost=100.0,
        sentences=["strength 1.", "de: 2 before, 1.5 after."],
        worse=["cs: 4.0 % more bits."],
        measures=[measure],
        samples=[answer, Sample(kind=OPENINGS, opening="Das Boot", before="is a", after="fährt")],
    )


@pytest.mark.parametrize("base", [None, "base"])
def test_a_page_says_what_was_done_where_nothing_was_scored(tmp_path, base):
    """Held-out loss, or at least the number of updates."""
    run = some_run(languages=("de",), tasks=(), scores=[])
    run = replace(run, recipe=run.recipe.model_copy(update={"base": base}))
    said = write_report(tmp_path, run)
    losses = (
        "BL_BASE, de, loss on held-out text: 2.000 nats per token after 0 updates, 1.600 after 10"
    )
    assert said[0].startswith(losses)
    assert len(said) == 2
    markdown, _ = texts(tmp_path)
    assert "Fewer bits are better" not in markdown, "of a table without a row"
    assert "1.600 best 1.500 at step 5" in re.sub(r"[^\w. ]", "", markdown)
    said = write_report(tmp_path, replace(run, losses=[]))
    assert said[0].startswith("BL_BASE, de: 10 updates, after which nothing was scored")


def test_a_page_over_a_base_has_before_and_after_and_no_table_of_the_paper(tmp_path):
    run = some_run(languages=("de",))
    scores = with_scores(
        run.scores, source_pack_score=58.5, on_source_score=79.9, on_source_cut=0.04
    )
    recipe = run.recipe.model_copy(update={"base": "base"})
    run = replace(run, scores=scores, recipe=recipe, kept={("bl_base", "de"): kept()})
    said = write_report(tmp_path, run)
    markdown, html = texts(tmp_path)
    for text in (
        "BL_BASE, de: 58.5 accuracy before, 60.5 after; en: 80.0 before, 79.9 after, with 0.0 % of "
        "that text in new tokens; 15 min and 2.5 GiB on this machine; 71 % of the FLOPs of "
        "training all weights; ",
        "MiniJoint, de: 58.5 accuracy before, 58.5 after",
    ):
        assert markdown.index(text) < markdown.index("## What was asked for")
        assert text in html
    assert said[1:3] == ["BL_BASE, strength 1.", "BL_BASE, de: 2 before, 1.5 after."]
    first, second, picture = [line for line in markdown.replace("\\", "").splitlines() if line][1:4]
    assert first.startswith("- BL_BASE, de: 58.5 accuracy before, 60.5 after; en: 80.0 before")
    assert first.endswith("; worse: en, topic (80.0 to 79.9 accuracy).")
    assert second.startswith("- MiniJoint, de: 58.5 accuracy before, 58.5 after")
    assert picture.endswith("](before-and-after.png)")
    assert "worse than the untouched model" not in markdown
    assert "has become worse" not in markdown
    assert names_of_paper(tmp_path) == set()
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {"before-and-after.png", "held-out-loss.png"}
    for row in (
        "| BL_BASE, de: de, topic | accuracy | 58.5 | 60.5 | +3.4 % |",
        "| BL_BASE, de: en, topic | accuracy | 80.0 | 79.9 | -0.1 % |",
        "| BL_BASE, de: cs, held-out pages | bits per byte | 2.000 | 1.500 | -25.0 % |",
        "- BL_BASE, cs: 4.0 % more bits.",
        "| Das Boot | is a | fährt |",
        "| Who? | Ann (right) | no no no no (loops) |",
    ):
        assert row in markdown.replace("\\", ""), row
    write_report(tmp_path, replace(run, scores=with_scores(scores, source_pack_score=59.0)))
    (line,) = re.findall("^- .*worse than the untouched model.*", texts(tmp_path)[0], re.MULTILINE)
    assert "de: 59.0 accuracy before, 58.5 after" in line


def test_the_papers_page_begins_with_what_came_out(tmp_path):
    (said,) = write_report(tmp_path, some_run())
    assert said == (
        "Compared with BL_BASE at the end of its training, MiniJoint keeps 97 % of its score for "
        "53 % of its compute, and reaches 95 % of it with 1.75 times less compute."
    )
    rows = [
        row | {"score": 60.0} if row["system"] == "bl_base" else row for row in some_run().scores
    ]
    (there,) = write_report(tmp_path / "there", some_run(scores=rows))
    assert (
        "keeps 98 % of its score for 53 % of its compute, and reaches 95 % of it, which BL_BASE "
        "has unadapted" in there
    )
    without_score = some_run(scores=[row | {"score": 0.0} for row in rows])
    (of_none,) = write_report(tmp_path / "none", without_score)
    assert of_none.endswith("MiniJoint takes 53 % of its compute.")
    markdown = texts(tmp_path)[0]
    assert markdown.index(said) < markdown.index(
        "**MiniJoint**: token embeddings are trained through"
    )
    (said,) = write_report(tmp_path, some_run(systems=["minijoint"]))
    assert said == "Mean scores over languages at the end of training: MiniJoint 58.5 in topic."


def test_a_source_that_has_become_worse_is_said(tmp_path):
    run = some_run(systems=("bl_base",), languages=("de",))
    recipe = run.recipe.model_copy(update={"base": "base"})
    for after, is_said in ((79.3, False), (81.0, False), (79.1, True)):
        scores = with_scores(run.scores, source_pack_score=30.0, on_source_score=after)
        said = write_report(tmp_path, replace(run, scores=scores, recipe=recipe))
        assert len(said) == (2 if is_said else 1)
        warning = "en: 1.1 % worse than before: raise adapt.new_token_penalty"
        assert (warning in said[-1]) == is_said
        assert "--train embeddings" not in said[-1], "which trained"


def test_bits_stand_beside_what_a_compressor_takes(tmp_path):
    run = some_run(systems=("bl_base",), languages=("de",))
    bits_of_run = {"bits_per_byte": 1.5, "source_pack_bits_per_byte": 2.0}
    scores = [row | bits_of_run for row in run.scores]
    recipe = run.recipe.model_copy(update={"base": "base"})
    for bits, said in ((2.5, "to 2.500"), (1.25, "to 1.250, which is better")):
        compressed = {("topic", "de"): bits}
        write_report(tmp_path, replace(run, scores=scores, compressed=compressed, recipe=recipe))
        (verdict,) = read_json(tmp_path / "verdicts.json")
        assert verdict["clauses"] == {
            "topic": f"de: 2.000 bits per byte before, 1.500 after (xz compresses it {said})"
        }


def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_report(tmp_path / name, some_run())
    assert texts(tmp_path / "one") == texts(tmp_path / "two")


def test_what_a_run_lacks_is_left_out(tmp_path):
    write_report(tmp_path / "without-base", some_run(systems=["minijoint"]))
    assert names_of_paper(tmp_path / "without-base") == {"Figure 3", "Table 2", "Table 5"}
    write_report(tmp_path / "without-tasks", some_run(tasks=(), losses=[]))
    assert names_of_paper(tmp_path / "without-tasks") == set()
    assert "Cost of each step" in texts(tmp_path / "without-tasks")[0]


A_TABLE = Table(
    "T",
    ["System", "de|at"],
    rows=[["A", Cell("1.0", "±0.1", best=True)]],
    references=[["ref", "∞"]],
    notes=["a * b"],
)


def test_the_same_blocks_in_all_forms():
    blocks = [
        Heading("H"),
        Facts({"Seed": "1"}),
        A_TABLE,
        Plot("f 1.png", PNG + bytes(16), "caption"),
    ]
    markdown = to_markdown("Title", blocks)
    html = to_html("Title", blocks)
    assert (
        "| System | de\\|at |\n| --- | ---: |\n| A | **1.0** ±0.1 |\n| ref | ∞ |\n\na \\* b"
        in markdown
    )
    assert "- **Seed**: 1" in markdown
    assert "![caption](f%201.png)" in markdown
    assert "<td><b>1.0</b> <small>±0.1</small></td>" in html
    assert "<dt>Seed</dt><dd>1</dd>" in html
    assert '<tbody class="references">' in html


HOSTILE = (
    "[x](javascript:alert(1)) ![x](http://a.b/c) <script>1</script> `|**~~b~~**\n\n# H\n[y]: "
    "http://a.b\n[y][y] __i__"
)


def test_nothing_in_a_text_is_a_link_an_image_or_a_tag():
    """Of labels and texts that a report quotes, wherever they stand."""
    table = Table(
        HOSTILE, ["System", HOSTILE], [["A", Cell(HOSTILE, HOSTILE, best=True)]], notes=[HOSTILE]
    )
    blocks = [Heading(HOSTILE), Facts({HOSTILE: HOSTILE}), table, Plot("f.png", PNG, HOSTILE)]
    markdown = to_markdown("Title", blocks)
    html = to_html("Title", blocks)
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(markdown)
    assert set(re.findall(r"<(\w+)", shown)) <= set(
        "h1 h2 ul li strong em p table thead tbody tr th td img".split()
    )
    (image,) = re.findall("<img[^>]*>", shown)
    assert image == '<img src="f.png" alt="' + escape(" ".join(HOSTILE.splitlines())) + '" />'
    assert "<script" not in html
    assert 'href="java' not in html
    assert "__i__" in shown
    assert "<strong>i<" not in shown


def test_losses_of_a_run(tmp_path):
    records = [
        {"step": 0, "eflops": 0.0},
        {"step": 39, "loss": 4.0, "eflops": 0.0072, "tflops_per_second": 1.0},
    ]
    records += [{"step": 40, "loss": 6.0, "held_out/nats_per_token": 1.5, "eflops": 0.0108}]
    records[-1] |= {"tflops_per_second": 0.5, "memory_gib": 1.5}
    path = tmp_path / "metrics.jsonl"
    whole = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(whole + '{"step": 41, "lo')
    row = {"system": "minijoint", "stage": "adapt", "language": "de", "held_out": [(40, 1.5)]}
    found = read_losses(path, "minijoint", stage="adapt", language="de")
    assert found == {**row, "hours": pytest.approx(2 + 2), "memory_gib": 1.5}
    none = tmp_path / "none.jsonl"
    assert read_losses(none, "minijoint", stage="adapt", language="de") is None
