"""The tables of the paper from its own figures, and what they say where something is missing."""

import pytest

from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.report import tables
from ds_minimodel.report.curves import ComputeUnit, near_maximal, training_curves
from ds_minimodel.report.render import Cell
from ds_minimodel.report.tables import adapt_costs

from ..recipes import recipe_of
from .some_runs import score_rows

COSTS = recipe_costs(recipe_of(["bl_base", "bl_small", "minipost", "minijoint"]))
EFLOPS = adapt_costs(COSTS)
# Table 2.
PAWS_X = {
    "bl_base": [84.7, 85.8, 86.0, 77.3],
    "bl_small": [74.2, 76.4, 76.6, 70.8],
    "minipost": [83.8, 86.2, 86.3, 76.0],
    "minijoint": [84.4, 85.1, 86.7, 77.9],
}
LANGUAGES = ["de", "fr", "es", "zh"]


def paws_x_rows():
    """Each system rises linearly from 50 at step 0 to its score in Table 2."""
    rows = []
    for system, scores in PAWS_X.items():
        for language, score in zip(LANGUAGES, scores, strict=True):
            points = [(0, 0.0, 50.0), (125000, EFLOPS[system], score)]
            rows += score_rows(system, "paws-x", language, points=points)
    return rows


def column(table, name, rows=None):
    index = table.columns.index(name)
    return {row[0]: row[index] for row in (table.rows if rows is None else rows)}


def texts(table, name):
    return [getattr(cell, "text", cell) for cell in column(table, name).values()]


def test_final_scores_are_table_2():
    curves = training_curves(paws_x_rows())
    table = tables.final_scores_table("paws-x", "accuracy", curves=curves, costs=COSTS)
    assert [row[0] for row in table.rows] == ["BL_BASE", "BL_SMALL", "MiniPost", "MiniJoint"]
    assert texts(table, "EFLOPs") == ["54.1", "21.1", "29.3", "21.1"]
    averages = {system: float(cell.text) for system, cell in column(table, "avg").items()}
    assert averages == pytest.approx(
        {"BL_BASE": 83.4, "BL_SMALL": 74.5, "MiniPost": 83.1, "MiniJoint": 83.5}, abs=0.101
    ), "the paper averages scores that it then prints rounded"
    assert column(table, "zh")["MiniJoint"].best
    assert not column(table, "zh")["BL_BASE"].best
    assert column(table, "de", table.references)["BL_BASE, unadapted"].text == "50.0"
    assert table.title == "Table 2 (paws-x): performance at training completion, accuracy"
    assert table.notes == [
        "Bold: the best. After 125,000 updates of step 2, whose cost is that of one language. One "
        "seed."
    ]


def test_bits_a_byte_have_three_decimals_and_the_lowest_is_best():
    bits = training_curves([row | {"bits": 100 / row["score"]} for row in paws_x_rows()], "bits")
    table = tables.final_scores_table(
        "paws-x", "bits", curves=bits, costs=COSTS, scale=tables.SCALES["bits_per_byte"]
    )
    assert [name for name, cell in column(table, "zh").items() if cell.best] == ["MiniJoint"]
    assert texts(table, "zh")[-1] == f"{100 / PAWS_X['minijoint'][-1]:.3f}"
    assert column(table, "de", table.references)["BL_BASE, unadapted"].text == "2.000"


def test_what_is_paid_once_is_shared_by_the_languages():
    rows = [row for row in COSTS if row["system"] in ("bl_base", "minipost")]
    table = tables.cost_table(rows, languages=4)
    of_minipost = [float(row[2]) for row in table.rows if row[0] == "MiniPost"]
    assert [row[1] for row in table.rows][-1] == "each of 4 languages"
    assert of_minipost[-1] == pytest.approx(
        (of_minipost[0] + of_minipost[1]) / 4 + of_minipost[2], abs=0.1
    )
    assert len(tables.cost_table(rows).rows) == len(rows)
    of_base = [row for row in rows if row["step"] == "adapt"]
    assert len(tables.cost_table(of_base, languages=4).rows) == len(of_base), "nothing is paid once"


def test_near_maximal_table_has_bounds_infinities_and_stars():
    curves = {
        ("bl_base", "de"): [(0, 0.0, 0.0), (10, 2.592, 95.0), (20, 5.184, 100.0)],
        ("bl_base", "tr"): [(0, 0.0, 0.0), (10, 2.592, 95.0), (20, 5.184, 100.0)],
        ("bl_small", "de"): [(0, 0.0, 0.0), (10, 2.592, 47.5), (20, 5.184, 50.0)],
        ("bl_small", "tr"): [(0, 0.0, 0.0), (10, 2.592, 47.5), (20, 5.184, 50.0)],
        ("minijoint", "de"): [(0, 0.0, 0.0), (20, 2.592, 190.0)],
        ("minijoint", "tr"): [(0, 0.0, 0.0), (20, 2.592, 94.0)],
    }
    rows = []
    for (system, language), points in curves.items():
        rows += score_rows(system, "xnli", language, points=points)
    table = tables.near_maximal_table("xnli", near_maximal(training_curves(rows)))
    assert column(table, "de") == {
        "BL_BASE": ("2.59", "(0.00–2.59)", False),
        "BL_SMALL": ("∞", "", False),
        "MiniJoint": ("1.30", "(0.00–2.59)", True),
    }
    assert texts(table, "avg") == ["2.59", "∞", "1.30*"]
    assert "EFLOPs" in table.title


def test_what_systems_keep_is_section_4_1s():
    tasks = {"xnli": (72.0, 71.2, 70.3), "mlqa": (56.9, 56.7, 56.0), "paws-x": (83.4, 83.1, 83.5)}
    rows = []
    for task, scores in tasks.items():
        for system, score in zip(("bl_base", "minipost", "minijoint"), scores, strict=True):
            points = [(0, 0.0, 20.0), (125000, EFLOPS[system], score)]
            rows += score_rows(system, task, "de", points=points)
    assert [*tables.retained(training_curves(rows))] == pytest.approx([1, 0.994, 0.987], abs=5e-4)
    assert EFLOPS["minijoint"] / EFLOPS["bl_base"] == pytest.approx(0.39, abs=5e-4)


@pytest.mark.parametrize(
    "value, text", [(9.994, "9.99"), (9.996, "10.0"), (1234.5, "1234"), (float("inf"), "∞")]
)
def test_compute_has_three_significant_digits(value, text):
    assert ComputeUnit("EFLOPs", 1).text(value) == text


def test_held_out_losses_name_the_best_step():
    row = {
        "system": "minijoint",
        "stage": "adapt",
        "language": "de",
        "held_out": [(0, 2.0), (5, 1.0)],
    }
    table = tables.held_out_table([row, row | {"held_out": [], "language": "tr"}])
    assert table.columns == ["System", "adapt de"]
    assert table.rows[0][1] == Cell("1.000")
    longer = row | {"held_out": [*row["held_out"], (1000, 1.25)]}
    assert tables.held_out_table([longer]).rows[0][1] == Cell("1.250", "best 1.000 at step 5")
