"""Systems compared unit by unit: what a number is, and its interval."""

import random
import statistics

import pytest

from study.paired import difference, difference_at_equal_compute, pairs_of, share, speedup, unit_curves


def rows_of(system, cells, steps=((0, 0.0), (10, 4.0))):
    """Rows of {(task, language): {(seed of the run, finetuning seed): scores at `steps`}}."""
    return [
        {"system": system, "task": task, "language": language, "seed": unit, "step": step, "eflops": eflops, "score": s}
        for (task, language), units in cells.items()
        for unit, scores in units.items()
        for (step, eflops), s in zip(steps, scores)
    ]


def compared(ones, others, **more):
    return pairs_of(
        unit_curves(rows_of("minijoint", ones, **more) + rows_of("bl_base", others)), "minijoint", "bl_base"
    )


def random_cells(seed, num_units=6):
    draw = random.Random(seed)
    return {
        (task, language): {(run, run + number): (20.0, draw.uniform(40, 60)) for run in (1, 11) for number in range(3)}
        for task in ("topic", "find")
        for language in ("de", "el", "ru")
    }


def test_numbers_by_hand():
    """Two units in topic and one in find, so that a mean over units is none over cells."""
    ones = {("topic", "de"): {(1, 1): (0, 50.0), (1, 2): (0, 54.0)}, ("find", "de"): {(1, 1): (0, 30.0)}}
    others = {("topic", "de"): {(1, 1): (0, 50.0), (1, 2): (0, 50.0)}, ("find", "de"): {(1, 1): (0, 40.0)}}
    pairs = compared(ones, others)
    assert difference(pairs).value == pytest.approx((2 - 10) / 2)
    assert difference(pairs)[3:] == (2, 3)
    assert share(pairs).value == pytest.approx((52 / 50 + 30 / 40) / 2)


def test_only_units_that_both_have_are_compared():
    ones = {("topic", "de"): {(1, 1): (0, 50.0), (1, 2): (0, 90.0)}, ("topic", "el"): {(1, 1): (0, 90.0)}}
    others = {("topic", "de"): {(1, 1): (0, 40.0), (11, 11): (0, 10.0)}, ("topic", "ru"): {(1, 1): (0, 90.0)}}
    number = difference(compared(ones, others))
    assert number == (10.0, 10.0, 10.0, 1, 1)
    assert difference(compared(ones, {("topic", "el"): {(11, 11): (0, 1.0)}})) is None


def test_intervals_are_those_of_a_bootstrap_written_in_plain_python():
    """10,000 times: choose runs' seeds, then cells, in each of them units of each chosen seed. Other random numbers."""
    pairs = compared(random_cells(3), random_cells(4))
    rng, differences, shares = random.Random(1), [], []
    for _ in range(10_000):
        seeds, drawn = rng.choices((1, 11), k=2), []
        for pair in rng.choices(pairs, k=len(pairs)):
            members = [[number for number, (run, _) in enumerate(pair.units) if run == seed] for seed in seeds]
            units = [unit for of_seed in members for unit in rng.choices(of_seed, k=len(of_seed))]
            drawn.append([statistics.fmean(curves[unit][-1].score for unit in units) for curves in pair[3:]])
        differences.append(statistics.fmean(one - other for one, other in drawn))
        shares.append(statistics.fmean(one / other for one, other in drawn))
    for number, means in ((difference(pairs), differences), (share(pairs), shares)):
        cuts = statistics.quantiles(means, n=40, method="inclusive")
        assert number[1:3] == pytest.approx((cuts[0], cuts[-1]), abs=0.05 * (cuts[-1] - cuts[0]))
        assert number.low < number.value < number.high


def test_seeds_of_runs_are_drawn_first():
    """Both runs agree within themselves, so that what is left is which of them is drawn."""
    ones = {("topic", language): {(1, 1): (0, 60.0), (11, 11): (0, 50.0)} for language in ("de", "el", "ru")}
    others = {cell: dict.fromkeys(units, (0, 50.0)) for cell, units in ones.items()}
    assert difference(compared(ones, others))[:3] == (5.0, 0.0, 10.0)


# --- whole curves: BL_BASE rises from 0 to 100 over 4 EFLOPs, so that its 95 are reached after 3.8; others end after 2


CHEAPER = ((0, 0.0), (10, 2.0))


def of_one_cell(one, other, number=speedup):
    cell = ("topic", "de")
    return number(compared({cell: {(1, 1): one}}, {cell: {(1, 1): other}}, steps=CHEAPER)).value


def test_speedup_is_one_ratio_of_curves_that_are_averaged_over_cells_and_seeds_first():
    """A cell in which nobody learns, or one that is reached at once, moves the curve, not a mean of ratios."""
    base = {("topic", "de"): {(1, 1): (0.0, 90.0), (11, 11): (0.0, 110.0)}, ("topic", "el"): {(1, 1): (0.0, 100.0)}}
    ones = {("topic", "de"): {(1, 1): (0.0, 0.0), (11, 11): (0.0, 180.0)}, ("topic", "el"): {(1, 1): (0.0, 110.0)}}
    number = speedup(compared(ones, base, steps=CHEAPER))
    assert number.value == pytest.approx(3.8 / (2 * 95 / 100)) and number[3:] == (2, 3)
    assert number.low == 0 and number.high > number.value


def test_a_speedup_is_never_missing():
    assert of_one_cell((0.0, 94.0), (0.0, 100.0)) == 0, "never"
    assert of_one_cell((0.0, 100.0), (96.0, 100.0)) == 0, "BL_BASE is there unadapted"
    assert of_one_cell((96.0, 97.0), (0.0, 100.0)) == pytest.approx(3.8 / 2), "unadapted: the next checkpoint counts"
    assert speedup([]) is difference_at_equal_compute([]) is None


def test_at_equal_compute_scores_are_those_where_the_cheaper_ends():
    assert of_one_cell((0.0, 60.0), (0.0, 100.0), difference_at_equal_compute) == 60 - 100 / 2
    cell = ("topic", "de")
    other_way = pairs_of(
        unit_curves(
            rows_of("bl_base", {cell: {(1, 1): (0.0, 100.0)}})
            + rows_of("minijoint", {cell: {(1, 1): (0.0, 60.0)}}, steps=CHEAPER)
        ),
        "bl_base",
        "minijoint",
    )
    assert difference_at_equal_compute(other_way).value == 100 / 2 - 60
