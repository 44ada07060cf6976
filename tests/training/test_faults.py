"""The short form of scripts/faults.py: a few trials, always the same draws; nothing may be lost."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from faults import Harness

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """One for all, so that DeepSpeed is loaded once."""
    return Harness(tmp_path_factory.mktemp("faults"), seed=3)


@pytest.mark.parametrize(
    "ranks, stage, precision", [(1, 0, "fp32"), (1, 3, "bf16"), (2, 1, "fp32")]
)
def test_nothing_is_lost(harness, ranks, stage, precision):
    faults = sum(harness.faults.values())
    harness.trial(ranks, stage, precision)
    assert harness.lost == []
    assert sum(harness.faults.values()) > faults
