"""Lets the tests of the operators import their shared inputs, and gives them the CUDA sources built for the CPU."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from shim import shim_library  # noqa: F401  (a fixture)
