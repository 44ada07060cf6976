"""The parallel map: order, errors, and a worker that is killed."""

import itertools
import operator
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ds_minimodel.text.workers import ordered_map
from tests.helpers.refusals import refuses


def test_few_items_start_no_process():
    assert list(ordered_map(lambda item: -item, [1, 2], workers=2, few=2)) == [-1, -2], (
        "which takes no such function"
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_taken_only_as_they_are_needed(workers):
    taken = itertools.count()
    results = ordered_map(operator.neg, taken, workers)
    assert [next(results) for _ in range(5)] == [0, -1, -2, -3, -4], "in order"
    results.close()
    assert next(taken) <= 5 + 2 * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_in_its_items_turn(workers):
    results = ordered_map(abs, [-1, -2, "three", -4], workers)
    assert next(results) == 1
    assert next(results) == 2
    with pytest.raises(TypeError):
        next(results)


def test_a_killed_worker_is_reported():
    with refuses("a worker process was killed"):
        list(ordered_map(os._exit, [1], 2))


def test_a_script_without_a_guard_is_run_once(tmp_path):
    """Workers import what they call, not the script that started them."""
    script = tmp_path / "script.py"
    script.write_text(
        "from ds_minimodel.text.workers import ordered_map\n"
        "print('once')\n"
        "print(*ordered_map(len, [[1], [2, 3]], 2), *ordered_map(abs, [-1, -2], 2))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "once\n1 2 1 2\n"
    assert done.stderr == ""


def test_an_interrupt_ends_without_a_word_of_the_workers(tmp_path):
    script = (
        "import signal, time\nfrom ds_minimodel.text.workers import ordered_map\n"
        # A shell's job in the background ignores the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('begun', flush=True)\nlist(ordered_map(time.sleep, [2] * 9, 2))"
    )
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, **pipes)
    assert process.stdout.readline() == "begun\n"
    before = -1.0
    used = 0.0
    # Until the workers, which take long to start beside other tests, are at work.
    while not used or used != before:
        time.sleep(1)
        workers = psutil.Process(process.pid).children(recursive=True)
        before = used
        used = sum(sum(worker.cpu_times()[:2]) for worker in workers)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it, to the workers too
    _, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.endswith("KeyboardInterrupt\n")
