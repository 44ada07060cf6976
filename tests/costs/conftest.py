"""The tests of planning take their models and batches from those of the engine."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
os.environ.setdefault("DS_ACCELERATOR", "cpu")
