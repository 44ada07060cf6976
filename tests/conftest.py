"""Environment of the tests and of every process that they start; and the options --fast and --all."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the machine's cores go to ranks, not to threads
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not Path("/dev/nvidiactl").exists():  # Triton's kernels run in its interpreter, if that is so when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from torch.nn import functional

LINEAR = functional.linear
TESTS = Path(__file__).parent
# Files that start ranks, run pipelines or time whole steps: left out by --fast.
SLOW = (
    "benchmarks",
    "engine/test_checkpoint.py",
    "engine/test_ends.py",
    "engine/test_launch.py",
    "engine/test_launchers.py",
    "engine/test_parity.py",
    "engine/test_restore.py",
    "engine/test_stop.py",
    "engine/test_tensor_parallel.py",
    "pipeline",
    "planning/test_calibration.py",
    "test_style.py",
)
# What is random or long, needs a tool of its own or looks at DeepSpeed alone: run by --all, which a release needs.
LONG = (
    "benchmarks/test_parts.py",
    "cli/test_random_inputs.py",
    "data/test_ranks.py",
    "engine/test_costs.py",
    "engine/test_two_hosts.py",
    "engine/test_zero_quirks.py",
    "faults",
    "ops/test_attention_triton.py",
    "ops/test_device_code.py",
    "pipeline/test_launchers.py",
)
assert all((TESTS / name).exists() for name in SLOW + LONG)


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="leave out what starts ranks and pipelines")
    parser.addoption("--all", action="store_true", help="run what is random or long, too")


def pytest_ignore_collect(collection_path, config):
    """Leave them out, unless they are named on the command line."""
    name = collection_path.relative_to(TESTS).as_posix() if collection_path.is_relative_to(TESTS) else ""
    if (name in SLOW and config.getoption("--fast")) or (name in LONG and not config.getoption("--all")):
        return True


@pytest.fixture(scope="module", autouse=True)
def linear_is_torchs_own():
    """DeepSpeed's ZeRO 3 replaces torch's linear for the rest of the process; its own keeps every input."""
    yield
    functional.linear = LINEAR
