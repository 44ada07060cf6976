"""Tables A3, A4 and A5: the paper's own figures for Arabic and German, and what is left out of an average."""

from ds_minimodel.costs import EFLOPS_PER_V100_DAY
from ds_minimodel.results import tables
from ds_minimodel.results.comparison import compare_runs
from ds_minimodel.results.curves import near_maximal

from .some_runs import score_row, some_run

DEPTHS = {2: "minijoint N=2", 4: "minijoint", 6: "minijoint N=6"}
# Table A4, XNLI: V100 days of the checkpoints around near-maximal performance; German hits it at all depths.
AROUND = {
    ("de", 2): (0.2, 0.4),
    ("de", 4): (0.3, 0.7),
    ("de", 6): (0.5, 0.9),
    ("ar", 4): (0.7, 1.0),
    ("ar", 6): (0.9, 1.4),
}


def rows_of_table_a4():
    rows = []
    for language in ("de", "ar"):
        rows += curve("bl_base", language, [(0, 0.0), (1, 50.0), (9, 100.0)])
        for depth, variant in DEPTHS.items():
            lower, upper = AROUND.get((language, depth), (1.0, 2.0))
            reached = 96.0 if (language, depth) in AROUND else 90.0
            rows += curve(variant, language, [(0, 0.0), (lower, 94.0), (upper, reached), (9, reached)])
    return rows + curve("bl_base", "tr", [(0, 0.0), (9, 100.0)]) + curve("minijoint", "tr", [(0, 0.0), (9, 100.0)])


def curve(system, language, points):
    return [
        score_row(system, "xnli", language, (1, 1), int(10 * days), days * EFLOPS_PER_V100_DAY, score)
        for days, score in points
    ]


def test_table_a4_has_estimates_bounds_and_infinities_in_the_languages_of_all_depths():
    curves = tables.depth_curves(rows_of_table_a4(), DEPTHS)
    table = tables.depth_estimates_table(DEPTHS, near_maximal(curves), curves)
    assert table.columns == ["", "N = 2", "N = 4", "N = 6", "BL_BASE"]
    cells = {row[0].text: row[1:4] for row in table.rows}
    assert cells["de xnli"] == [
        ("0.30", "(0.20–0.40)", True),
        ("0.50", "(0.30–0.70)", False),
        ("0.70", "(0.50–0.90)", False),
    ]
    assert cells["ar xnli"][:2] == [("∞", "", False), ("0.85", "(0.70–1.00)", True)]
    assert "tr xnli" not in cells, "N = 2 has no Turkish"


def test_table_a3_averages_over_the_languages_of_all_depths():
    curves = tables.depth_curves(rows_of_table_a4(), DEPTHS)
    costs = [{"system": "minijoint", "step": "adapt", "formula_eflops": 21.1}]
    table = tables.depth_scores_table(DEPTHS, curves, costs)
    assert [(row[0].text, row[1].text, row[2].text) for row in table.rows] == [
        ("2", "–", "93.0"),
        ("4", "8.14", "96.0"),
        ("6", "–", "96.0"),
    ]
    assert [row[2].best for row in table.rows] == [False, True, True]
    assert table.references[0][2].text == "100.0" and "(de, ar)" in table.notes[0]


def test_table_a5_compares_pretraining_runs_in_the_languages_that_all_have():
    runs = [some_run(), some_run("second", seed=2, better=3.0, languages=["de"]), some_run("third", seed=3, better=1.0)]
    table = tables.seeds_table(compare_runs(runs).scores)
    assert [[cell.text for cell in row] for row in table.rows[:4]] == [
        ["BL_BASE, seed 1", "60.5"],
        ["BL_BASE, seed 2", "63.5"],
        ["BL_BASE, seed 3", "61.5"],
        ["BL_BASE, range", "3.0"],
    ]
    assert tables.seeds_table(compare_runs(runs[:1]).scores) is None
