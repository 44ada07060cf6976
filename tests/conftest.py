"""Environment of the tests and of every process that they start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")       # the machine's cores go to ranks, not to threads
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from torch.nn import functional

LINEAR = functional.linear


@pytest.fixture(scope="module", autouse=True)
def linear_is_torchs_own():
    """DeepSpeed's ZeRO 3 replaces torch's linear for the rest of the process; its own keeps every input."""
    yield
    functional.linear = LINEAR
