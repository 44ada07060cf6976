"""Compute to near-maximal performance against the paper's own examples and Table 3."""

import contextlib
import math

import pytest
from pydantic import ValidationError

from ds_minimodel.costs import EFLOPS_PER_V100_DAY
from ds_minimodel.results import curves

from .some_runs import score_row

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
    "paws-x": {"bl_base": [0.7, 0.6, 0.6, 0.7], "minipost": [0.3, 0.3, 0.3, 0.4], "minijoint": [0.2, 0.2, 0.2, 0.2]},
}
TURKISH_XQUAD = {"bl_base": [2.2], "minipost": [1.2], "minijoint": [INF]}  # Table A1


def rows_of_curve(system, points, task="xnli", language="de", seeds=(1,)):
    return [
        score_row(system, task, language, seed, step, eflops, score) for seed in seeds for step, eflops, score in points
    ]


def rows_that_reach_target_after(days_of_system, task):
    """Curves that rise linearly from 0 to near-maximal performance (95 of 100) in the days of a language."""
    rows = []
    for system, days in days_of_system.items():
        for number, value in enumerate(days):
            eflops = value * EFLOPS_PER_V100_DAY
            rise = [(1000, eflops, 95.0), (125000, 54.1, 100.0)] if eflops < INF else [(125000, 54.1, 60.0)]
            rows += rows_of_curve(system, [(0, 0.0, 0.0), *rise], task, f"language {number}")
    return rows


def estimates_of(rows):
    return curves.near_maximal(curves.training_curves(rows))


def test_the_interpolation_example_of_section_3():
    rows = rows_of_curve("minipost", [(5000, 1.17, 48.0), (10000, 2.34, 52.0)])
    (curve,) = curves.training_curves(rows).values()
    estimate = curves.compute_to_reach(curve, 50.0)
    assert estimate == pytest.approx((1.755, 1.17, 2.34))


def test_the_target_is_95_percent_of_bl_base_for_every_system():
    rows = rows_of_curve("bl_base", [(0, 0, 30.0), (1, 1, 75.0), (2, 2, 70.2)])
    rows += rows_of_curve("minijoint", [(0, 0, 30.0), (1, 1, 66.0), (2, 2, 67.38)])
    made = curves.training_curves(rows)
    assert curves.near_maximal_targets(made) == {("xnli", "de"): pytest.approx(66.69)}
    assert curves.near_maximal(made)["minijoint", "xnli", "de"].eflops == pytest.approx(1.5)


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(0, 0.0, 80.0), (1, 1.0, 90.0)], (0, 0, 0)),  # there before any training
        ([(5, 2.0, 80.0), (10, 4.0, 90.0)], (2, 0, 2)),  # there at a first checkpoint that cost something
        ([(0, 0.0, 10.0), (1, 1.0, 50.0)], (INF, INF, INF)),  # never there
        ([(0, 0.0, 10.0), (1, 1.0, 60.0), (2, 2.0, 50.0), (3, 3.0, 70.0)], (1, 0, 1)),  # the first time counts
    ],
)
def test_compute_to_reach_60(points, expected):
    (curve,) = curves.training_curves(rows_of_curve("minijoint", points)).values()
    assert curves.compute_to_reach(curve, 60.0) == expected


def test_mean_compute_is_the_average_of_table_3_without_languages_that_never_get_there():
    estimates = estimates_of(rows_that_reach_target_after(TABLE_3["xnli"], "xnli"))
    mean, never = curves.mean_compute(estimates, "bl_base", "xnli")
    assert mean / EFLOPS_PER_V100_DAY == pytest.approx(2.1, abs=0.05) and not never
    days = {system: [1.0, *turkish] for system, turkish in TURKISH_XQUAD.items()}
    estimates = estimates_of(rows_that_reach_target_after(days, "xquad"))
    mean, never = curves.mean_compute(estimates, "minijoint", "xquad")
    assert (mean, never) == (pytest.approx(EFLOPS_PER_V100_DAY), ["language 1"])
    only_turkish = estimates_of(rows_that_reach_target_after(TURKISH_XQUAD, "xquad"))
    assert curves.mean_compute(only_turkish, "minijoint", "xquad") == (None, ["language 0"])


def test_no_near_maximal_performance_without_bl_base():
    assert estimates_of(rows_of_curve("minijoint", [(0, 0, 10.0)])) == {}


@pytest.mark.parametrize("score, refused", [(104.2, False), (-0.1, True), (math.nan, True), (INF, True)])
def test_bytes_in_100_bits_may_be_more_than_100(score, refused):
    """Of a writing system with two bytes a letter they are."""
    row = score_row("bl_base", "bits", "ru", 1, 4, 0.0, score) | {"bits_per_byte": 0.96}
    with pytest.raises(ValidationError) if refused else contextlib.nullcontext():
        assert curves.ScoreRow.model_validate(row).score == score


def test_points_are_means_over_seeds_in_order_of_steps():
    rows = [
        score_row("bl_base", "xnli", "de", seed, step, step / 10, score)
        for seed, step, score in [(1, 20, 60.0), (1, 0, 30.0), (2, 0, 34.0), (2, 20, 64.0)]
    ]
    (curve,) = curves.training_curves(rows).values()
    deviation = pytest.approx(8**0.5)
    assert curve == [(0, 0.0, 32.0, deviation, {1: 30.0, 2: 34.0}), (20, 2.0, 62.0, deviation, {1: 60.0, 2: 64.0})]
    (single,) = curves.training_curves(rows[:1]).values()
    assert single == [(20, 2.0, 60.0, None, {1: 60.0})]


def test_language_averages_keep_seeds_apart_and_skip_steps_that_a_language_lacks():
    rows = rows_of_curve("bl_base", [(0, 0, 30.0), (10, 1, 50.0)], language="de", seeds=(1, 2))
    rows += rows_of_curve("bl_base", [(0, 0, 20.0), (10, 1, 40.0), (15, 2, 41.0)], language="tr", seeds=(1, 2))
    average = curves.with_language_average(curves.training_curves(rows))["bl_base", "xnli", "avg"]
    assert average == [(0, 0.0, 25.0, 0.0, {1: 25.0, 2: 25.0}), (10, 1.0, 45.0, 0.0, {1: 45.0, 2: 45.0})]
