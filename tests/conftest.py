"""Environment of the tests and of every process that they start; and the options --fast and
--all.
"""

import fcntl
import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the machine's cores go to ranks, not to threads
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from torch.nn import functional

LINEAR = functional.linear


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="leave out tests that are marked slow")
    parser.addoption("--all", action="store_true", help="run tests that are marked long, too")


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(session, config, items):
    """Leave out what is slow with --fast, and what is long without --all.

    It runs all the same where its file is named on the command line, or nothing else is asked for.
    """
    options = {"slow": config.getoption("--fast"), "long": not config.getoption("--all")}
    unwanted = {mark for mark, is_left_out in options.items() if is_left_out}
    left_out = [
        item
        for item in items
        if unwanted & {mark.name for mark in item.iter_markers()}
        and not session.isinitpath(item.path)
    ]
    if len(left_out) < len(items):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # At the end one worker would be left alone with what takes long.
    items.sort(key=_order)


def _order(item):
    slow = item.get_closest_marker("slow")
    if slow is None:
        return 2
    return 0 if slow.kwargs.get("first") else 1


def pytest_collection_finish():
    gc.freeze()  # as in forks.py


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """made_once(name, make): a folder that make(folder) has filled; all workers of pytest-xdist
    read the same.
    """

    def folder_of(name, make):
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
        folder.mkdir(exist_ok=True)
        with open(folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            if not (folder / "made").exists():
                make(folder)
                (folder / "made").touch()
        return folder

    return folder_of


@pytest.fixture(scope="module", autouse=True)
def linear_is_torchs_own():
    """DeepSpeed's ZeRO 3 replaces torch's linear for the rest of the process; its own keeps every
    input.
    """
    yield
    functional.linear = LINEAR
