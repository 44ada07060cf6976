"""Lets the tests of the model import what they share, model_cases.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
