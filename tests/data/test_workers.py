"""The parallel map: order, errors, and a worker that is killed."""

import itertools
import os

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.workers import ordered_map


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers):
    assert list(ordered_map(abs, range(-50, 50), workers)) == [abs(n) for n in range(-50, 50)]


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_taken_only_as_they_are_needed(workers):
    taken = itertools.count()
    results = ordered_map(abs, taken, workers)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    results.close()
    assert next(taken) <= 5 + 2 * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_in_its_items_turn(workers):
    results = ordered_map(abs, [-1, -2, "three", -4], workers)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(TypeError):
        next(results)


def test_a_killed_worker_is_reported():
    with pytest.raises(UserError, match="a worker process was killed"):
        list(ordered_map(os._exit, [1], 2))
