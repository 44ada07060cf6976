"""Systems compared unit by unit: what a number is, its interval, and speedups by cell and seed."""

import random
import statistics

import pytest

from ds_minimodel.results.paired import difference, pairs_of, share, share_of_gain, speedup, speedup_by_run, unit_curves
from ds_minimodel.results.paired_tables import speedups_table


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
    gain = share_of_gain(pairs, {("topic", "de"): 40.0})  # questions have no majority class
    assert gain.value == pytest.approx(12 / 10) and gain.num_cells == 1


def test_only_units_that_both_have_are_compared():
    ones = {("topic", "de"): {(1, 1): (0, 50.0), (1, 2): (0, 90.0)}, ("topic", "el"): {(1, 1): (0, 90.0)}}
    others = {("topic", "de"): {(1, 1): (0, 40.0), (11, 11): (0, 10.0)}, ("topic", "ru"): {(1, 1): (0, 90.0)}}
    number = difference(compared(ones, others))
    assert number == (10.0, 10.0, 10.0, 1, 1)
    assert difference(compared(ones, {("topic", "el"): {(11, 11): (0, 1.0)}})) is None


def test_intervals_are_those_of_a_bootstrap_written_in_plain_python():
    """10,000 times: choose cells, in each of them units; the 2.5th and the 97.5th percentile of the numbers."""
    pairs = compared(random_cells(3), random_cells(4))
    rng, differences, shares = random.Random(1), [], []
    for _ in range(10_000):
        drawn = []
        for pair in rng.choices(pairs, k=len(pairs)):
            units = rng.choices(range(len(pair.units)), k=len(pair.units))
            drawn.append([statistics.fmean(curves[unit][-1].mean for unit in units) for curves in pair[3:]])
        differences.append(statistics.fmean(one - other for one, other in drawn))
        shares.append(statistics.fmean(one / other for one, other in drawn))
    for number, means in ((difference(pairs), differences), (share(pairs), shares)):
        cuts = statistics.quantiles(means, n=40, method="inclusive")
        assert number[1:3] == pytest.approx((cuts[0], cuts[-1]))
        assert number.low < number.value < number.high


def test_a_cell_where_bl_base_gains_nothing_has_no_share_of_the_gain():
    ones = {("topic", "de"): {(1, 1): (0, 50.0)}, ("topic", "el"): {(1, 1): (0, 50.0)}}
    pairs = compared(ones, {("topic", "de"): {(1, 1): (0, 60.0)}, ("topic", "el"): {(1, 1): (0, 40.0)}})
    floors = {("topic", "de"): 40.0, ("topic", "el"): 40.0}
    assert share_of_gain(pairs, floors) == (0.5, 0.5, 0.5, 1, 1)
    assert share_of_gain(pairs[1:], floors) is None


def test_a_resample_leaves_out_the_cells_that_have_no_value_in_it():
    """BL_BASE's two units are above and below the floor: of what is drawn only the first twice has a gain."""
    ones = {("topic", "de"): {(1, 1): (0, 60.0), (1, 2): (0, 60.0)}}
    number = share_of_gain(
        compared(ones, {("topic", "de"): {(1, 1): (0, 70.0), (1, 2): (0, 45.0)}}), {("topic", "de"): 50.0}
    )
    assert number.value == pytest.approx(10 / 7.5)
    assert (number.low, number.high) == pytest.approx((10 / 20, 10 / 7.5))


# --- speedups: BL_BASE rises from 0 to 100 over 4 EFLOPs, so that its 95 are reached after 3.8


def speedups_of(ones, others, steps=((0, 0.0), (10, 2.0))):
    (pair,) = compared({("topic", "de"): ones}, {("topic", "de"): others}, steps=steps)
    return speedup_by_run(pair)


def test_speedup_is_taken_for_each_run_on_means_over_finetuning_seeds():
    """And each run's target is 95 % of BL_BASE's score in that run."""
    base = {(1, 1): (0.0, 90.0), (1, 2): (0.0, 110.0), (11, 11): (0.0, 50.0)}
    ones = {(1, 1): (0.0, 95.0), (1, 2): (0.0, 105.0), (11, 11): (0.0, 95.0)}
    assert speedups_of(ones, base) == pytest.approx({1: 3.8 / 1.9, 11: 3.8 / 1.0})


def test_never_counts_as_0_and_bl_base_unadapted_is_left_out():
    ones = {(1, 1): (0.0, 94.0), (11, 11): (0.0, 100.0)}
    assert speedups_of(ones, {(1, 1): (0.0, 100.0), (11, 11): (96.0, 100.0)}) == {1: 0.0}


def test_a_system_that_is_there_unadapted_counts_with_its_next_checkpoint():
    assert speedups_of({(1, 1): (96.0, 97.0)}, {(1, 1): (0.0, 100.0)}) == pytest.approx({1: 3.8 / 2})


def test_the_mean_speedup_is_one_over_cells_without_those_that_have_none():
    base = {("topic", "de"): {(1, 1): (0.0, 100.0), (11, 11): (0.0, 100.0)}, ("topic", "el"): {(1, 1): (0.0, 100.0)}}
    ones = {("topic", "de"): {(1, 1): (0.0, 100.0), (11, 11): (0.0, 50.0)}, ("topic", "el"): {(1, 1): (0.0, 95.0)}}
    base["topic", "ru"] = ones["topic", "ru"] = {(1, 1): (100.0, 100.0)}
    number = speedup(compared(ones, base, steps=((0, 0.0), (10, 2.0))))
    assert number.value == pytest.approx(((2 + 0) / 2 + 1.9) / 2) and number[3:] == (2, 3)
    assert (number.low, number.high) == pytest.approx((0.5, 1.95)), "0 and 2 are drawn once in 64 times each"


def test_intervals_of_speedups_are_made_of_drawn_units():
    """With one run and one cell, of the finetuning seeds' means: here of curves that end at 100 and at 200."""
    ones = {("topic", "de"): {(1, 1): (0.0, 100.0), (1, 2): (0.0, 200.0)}}
    base = {("topic", "de"): {(1, 1): (0.0, 100.0), (1, 2): (0.0, 100.0)}}
    number = speedup(compared(ones, base, steps=((0, 0.0), (10, 2.0))))
    assert number[:3] == pytest.approx((3.8 / (2 * 95 / 150), 3.8 / 1.9, 3.8 / 0.95))


def test_the_median_speedup_stands_below_the_cells():
    """One cell that is reached at once carries the mean, but not the median."""
    ends = {"de": 95.0, "el": 190.0, "ru": 9500.0}
    base = {("topic", language): {(1, 1): (0.0, 100.0)} for language in ends}
    ones = {("topic", language): {(1, 1): (0.0, end)} for language, end in ends.items()}
    rows = rows_of("minijoint", ones, steps=((0, 0.0), (10, 2.0))) + rows_of("bl_base", base)
    table = speedups_table(unit_curves(rows), {"minijoint": "bl_base", "bl_base": "bl_base"})
    found = [[cell.text for cell in row] for row in table.rows]
    assert found[-2:] == [["topic ru, seed 1", "190.00×"], ["median", "3.80×"]]
