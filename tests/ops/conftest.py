"""Lets the tests of the operators import their shared inputs, and gives them the CUDA sources built for the CPU."""

import os
import sys
from pathlib import Path

import torch

# Without a GPU Triton's kernels run in its interpreter; it reads this once, when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

sys.path.insert(0, str(Path(__file__).parent))

from shim import shim_library  # noqa: F401  (a fixture)
