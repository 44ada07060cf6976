"""Compute to near-maximal performance against the paper's own examples and Table 3."""

import contextlib
import math

import pytest
from pydantic import ValidationError

from ds_minimodel.models.flops import EFLOPS_PER_V100_DAY
from ds_minimodel.report.curves import (
    AVERAGE,
    ScoreRow,
    compute_to_reach,
    near_maximal,
    speedups,
    training_curves,
)
from ds_minimodel.report.tables import near_maximal_table

from .some_runs import score_rows

INF = math.inf
TABLE_3 = {  # V100 days, in the paper's order of languages
    "xnli": {
        "bl_base": [2.5, 1.2, 1.1, 1.5, 0.8, 0.8, 3.2, 1.8, 1.4, 1.8, 2.3, 8.3, 1.0, 1.7],
        "minipost": [1.7, 0.9, 0.8, 0.9, 0.4, 0.4, 2.5, 1.3, 1.1, 1.3, 3.0, 6.5, 0.8, 1.1],
        "minijoint": [1.0, 0.5, 0.5, 0.6, 0.3, 0.3, 5.9, 0.6, 0.6, 0.7, 5.3, 5.4, 0.6, 0.8],
    },
    "mlqa": {
        "bl_base": [2.6, 1.1, 0.8, 3.4, 1.2, 1.8],
        "minipost": [1.7, 0.8, 0.5, 1.7, 0.9, 1.2],
        "minijoint": [1.0, 0.6, 0.4, 5.3, 0.5, 0.9],
    },
}
TURKISH_XQUAD = {"bl_base": [2.2], "minipost": [1.2], "minijoint": [INF]}  # Table A1


def rows_of_curve(system, points, task="xnli", language="de", seeds=(1,)):
    return score_rows(system, task, language, points=points, seeds=seeds)


def rows_that_reach_target_after(days_of_system, task):
    """Curves that rise linearly from 0 to near-maximal performance (95 of 100) in the days of a
    language.
    """
    rows = []
    for system, days in days_of_system.items():
        for index, value in enumerate(days):
            eflops = value * EFLOPS_PER_V100_DAY
            points = [(0, 0.0, 0.0), (125000, 54.1, 60.0)]
            if eflops < INF:
                points = [(0, 0.0, 0.0), (1000, eflops, 95.0), (125000, 54.1, 100.0)]
            rows += rows_of_curve(system, points, task=task, language=f"language {index}")
    return rows


def curve_of(points):
    return training_curves(rows_of_curve("minijoint", points)).loc["minijoint", "xnli", "de"]


def test_the_interpolation_example_of_section_3():
    estimate = compute_to_reach(curve_of([(5000, 1.17, 48.0), (10000, 2.34, 52.0)]), 50.0)
    assert estimate == pytest.approx((1.755, 1.17, 2.34))


def test_the_target_is_95_percent_of_bl_base_for_every_system():
    rows = rows_of_curve("bl_base", [(0, 0, 30.0), (1, 1, 75.0), (2, 2, 70.2)])
    rows += rows_of_curve("minijoint", [(0, 0, 30.0), (1, 1, 66.0), (2, 2, 67.38)])
    assert near_maximal(training_curves(rows))["minijoint", "xnli", "de"].eflops == pytest.approx(
        1.5
    )


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(0, 0.0, 80.0), (1, 1.0, 90.0)], (0, 0, 0)),  # there before any training
        (
            [(5, 2.0, 80.0), (10, 4.0, 90.0)],
            (2, 0, 2),
        ),  # there at a first checkpoint that cost something
        ([(0, 0.0, 10.0), (1, 1.0, 50.0)], (INF, INF, INF)),  # never there
        (
            [(0, 0.0, 10.0), (1, 1.0, 60.0), (2, 2.0, 50.0), (3, 3.0, 70.0)],
            (1, 0, 1),
        ),  # the first time counts
    ],
)
def test_compute_to_reach_60(points, expected):
    assert compute_to_reach(curve_of(points), 60.0) == expected


@pytest.mark.parametrize("task, average", [("xnli", 2.10), ("mlqa", 1.82)])
def test_the_average_of_table_3(task, average):
    estimates = near_maximal(training_curves(rows_that_reach_target_after(TABLE_3[task], task)))
    table = near_maximal_table(task, estimates)
    assert float(table.rows[0][-1]) / EFLOPS_PER_V100_DAY == pytest.approx(average, abs=0.005)


def test_the_average_leaves_out_languages_that_never_get_there():
    days = {system: [1.0, *turkish] for system, turkish in TURKISH_XQUAD.items()}
    for of_system, last in ((days, "2.59*"), (TURKISH_XQUAD, "∞")):
        estimates = near_maximal(training_curves(rows_that_reach_target_after(of_system, "xquad")))
        assert near_maximal_table("xquad", estimates).rows[-1][-1] == last


@pytest.mark.parametrize(
    "score, refused", [(104.2, False), (-0.1, True), (math.nan, True), (INF, True)]
)
def test_bytes_in_100_bits_may_be_more_than_100(score, refused):
    """Of a writing system with two bytes a letter they are."""
    (row,) = score_rows("bl_base", "bits", "ru", points=[(4, 0.0, score)])
    row["bits_per_byte"] = 0.96
    with pytest.raises(ValidationError) if refused else contextlib.nullcontext():
        assert ScoreRow.model_validate(row).score == score


def test_points_are_means_over_seeds_in_order_of_steps():
    rows = rows_of_curve("bl_base", [(20, 2.0, 60.0), (0, 0.0, 30.0)], seeds=[1])
    rows += rows_of_curve("bl_base", [(0, 0.0, 34.0), (20, 2.0, 64.0)], seeds=[2])
    points = training_curves(rows).loc["bl_base", "xnli", "de"]
    assert points.reset_index().values.tolist() == [
        [0, 0.0, 32.0, 8**0.5, 2],
        [20, 2.0, 62.0, 8**0.5, 2],
    ]
    assert math.isnan(training_curves(rows[:1])["std"].iloc[0])


def test_the_average_over_languages_has_the_deviation_of_the_seeds_means():
    scores = {("de", 1): 50.0, ("de", 2): 40.0, ("tr", 1): 30.0, ("tr", 2): 40.0}
    rows = []
    for (language, seed), score in scores.items():
        rows += rows_of_curve("bl_base", [(9, 1.0, score)], language=language, seeds=[seed])
    (average,) = training_curves(rows).loc["bl_base", "xnli", AVERAGE].itertuples(index=False)
    assert tuple(average) == (1.0, 40.0, 0.0, 2)


# --- BL_BASE rises from 0 to 100 over 4 EFLOPs, so that its 95 are reached after 3.8; others end
# after 2


def speedup_of(one, other):
    """The speedup of a system over BL_BASE, and points at equal compute; scores at both ends by
    (language, seed).
    """
    rows = []
    for system, eflops, cells in (("bl_base", 4.0, other), ("minijoint", 2.0, one)):
        for (language, seed), (first, last) in cells.items():
            rows += rows_of_curve(
                system, [(0, 0.0, first), (10, eflops, last)], language=language, seeds=(seed,)
            )
    return speedups(rows)["minijoint"]["all tasks"]


def test_speedup_is_one_ratio_of_curves_that_are_averaged_over_languages_and_seeds_first():
    """A language in which nobody learns, or one that is reached at once, moves the curve, not a
    mean of ratios.
    """
    base = {
        ("de", 1): (0.0, 90.0),
        ("de", 2): (0.0, 110.0),
        ("el", 1): (0.0, 100.0),
        ("el", 2): (0.0, 100.0),
    }
    ones = {
        ("de", 1): (0.0, 0.0),
        ("de", 2): (0.0, 180.0),
        ("el", 1): (0.0, 110.0),
        ("el", 2): (0.0, 110.0),
    }
    found = speedup_of(ones, base)
    assert found.value == pytest.approx(3.8 / (2 * 95 / 100))
    assert found.low == 0
    assert found.high == pytest.approx(3.8 / (2 * 0.95 * 105 / 145))


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ((0.0, 94.0), (0.0, 100.0), (0, False)),  # never
        ((0.0, 94.0), (96.0, 100.0), (0, False)),
        ((0.0, 100.0), (96.0, 100.0), (0, True)),  # BL_BASE is there unadapted
        ((96.0, 97.0), (0.0, 100.0), (3.8 / 2, True)),  # unadapted: the next checkpoint counts
    ],
)
def test_a_speedup_is_never_missing(one, other, expected):
    # The estimate's value, and whether it is reached.
    assert speedup_of({("de", 1): one}, {("de", 1): other})[::4] == pytest.approx(expected)


def test_at_equal_compute_scores_are_those_where_the_cheaper_ends():
    assert (
        speedup_of({("de", 1): (0.0, 60.0)}, {("de", 1): (0.0, 100.0)}).at_equal_compute
        == 60 - 100 / 2
    )
