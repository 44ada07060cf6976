"""Environment of the tests and of every process that they start; and the options --fast and
--all.
"""

import fcntl
import gc
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the machine's cores go to ranks, not to threads
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from torch.nn import functional

LINEAR = functional.linear
TESTS = Path(__file__).parent
# What trains, installs or looks at the whole tree: begun first, and left out by --fast.
SLOW = (
    # Makes the world that the others of that folder read; meanwhile what needs none
    "pipeline/test_bad_input.py",
    *(
        "training",
        "benchmarks",
        "test_installation.py",
        "test_style.py",
        "pipeline",
    ),
)
# What is random or long, or needs a tool of its own: run by --all, which a release needs.
LONG = (
    "benchmarks/test_parts.py",
    "pipeline/test_peak.py",
    "data/test_ranks.py",
    "hf/test_transformers_4.py",
    "extend/test_ranks.py",
    "training/test_costs.py",
    "training/test_two_hosts.py",
    "faults",
    "ops/test_device_code.py",
    "torture",
)
# What takes over 10 s of a core, or others show over another body, placement or launcher: run by
# --all, or by name.
LONG_CASES = (
    "pipeline/test_bad_input.py::test_a_full_disk",
    "pipeline/test_development.py::test_two_ranks_score_the_same",
    "pipeline/test_docs.py::test_extending_a_model",
    "pipeline/test_docs.py::test_models_of_today",
    "extend/test_extend.py::test_a_body_that_is_trained_with_masks_is_scored_and_takes_tasks",
    "extend/test_extend.py::test_all_that_was_learned_is_kept_where_no_answers_are_lost",
    "extend/test_again.py::test_what_was_begun_goes_on_from_the_same_files_alone",
    "pipeline/test_extension.py::test_two_ranks_train_the_same_rows[untied]",
    "pipeline/test_held_out.py::test_two_ranks_find_the_same[split]",
    "pipeline/test_tensor_parallel.py::test_bodies_of_today_are_split_as_well",
    "pipeline/test_whole_body.py::test_two_ranks_train_the_same_body[untied]",
    "pipeline/test_launch.py::test_ranks_save_and_end_when_who_started_them_is_killed",
    "pipeline/test_launch.py::test_a_signal_whose_save_fails_is_no_success",
    "pipeline/test_launch.py::test_the_others_end_when_a_rank_is_killed",
    "pipeline/test_launch.py::test_a_mistake_that_the_ranks_find_is_a_users_mistake",
)
assert all((TESTS / name.partition("::")[0]).exists() for name in SLOW + LONG + LONG_CASES)


def pytest_addoption(parser):
    parser.addoption(
        "--fast",
        action="store_true",
        help="leave out what trains, installs or looks at the whole tree",
    )
    parser.addoption("--all", action="store_true", help="run what is random or long, too")


def pytest_ignore_collect(collection_path, config):
    """Leave them out, unless they are named on the command line."""
    left_out = [
        *(SLOW if config.getoption("--fast") else ()),
        *(() if config.getoption("--all") else LONG),
    ]
    return collection_path in [TESTS / name for name in left_out] or None


def pytest_collection_modifyitems(config, items):
    """Leave out LONG_CASES, and begin with what takes long: else one worker would be left alone
    with it at the end.
    """
    if not config.getoption("--all") and not any(".py" in argument for argument in config.args):
        left_out = [
            item for item in items if item.nodeid.removeprefix("tests/").startswith(LONG_CASES)
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    places = [TESTS / name for name in SLOW]
    items.sort(
        key=lambda item: next(
            (at for at, path in enumerate(places) if item.path.is_relative_to(path)), 99
        )
    )


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
