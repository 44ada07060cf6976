"""Lets the tests of the operators import their shared inputs, and gives them the CUDA sources built
for the CPU; all begin with the same random numbers.
"""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from shim import shim_library  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
