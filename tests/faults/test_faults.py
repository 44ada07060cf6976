"""The short form of the harness: a few trials of each kind, always the same draws; nothing may be lost."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import Harness


def test_nothing_is_lost(tmp_path):
    harness = Harness(tmp_path, seed=3)
    for ranks, stage, precision in [(1, 0, "fp32"), (1, 1, "bf16"), (1, 3, "fp32"), (2, 2, "fp32")]:
        harness.trial(ranks, stage, precision)
    assert harness.lost == []
    assert sum(harness.faults.values()) >= 4
