"""Environment of the tests and of every process that they start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")       # the machine's cores go to ranks, not to threads
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from torch.nn import functional

LINEAR = functional.linear


def pytest_collection_modifyitems(config, items):
    """Under pytest-xdist a file's tests stay together, and those of pipeline/, which share one finished run."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            together = item.path.parent if item.path.parent.name == "pipeline" else item.path
            item.add_marker(pytest.mark.xdist_group(str(together)))


@pytest.fixture(scope="module", autouse=True)
def linear_is_torchs_own():
    """DeepSpeed's ZeRO 3 replaces torch's linear for the rest of the process; its own keeps every input."""
    yield
    functional.linear = LINEAR
