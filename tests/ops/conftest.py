"""Fixtures of the operators' tests: CUDA sources built for the CPU, the same random numbers."""

import sys
from pathlib import Path

import pytest
import torch

# The tests import their shared inputs from this folder.
sys.path.insert(0, str(Path(__file__).parent))

from shim import shim_library  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
