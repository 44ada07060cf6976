"""Lets the tests of the operators import their shared inputs, op_cases.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
