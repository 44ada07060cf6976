"""The losses of every training run of the world are those that they were, whatever was rebuilt since."""

import json
from pathlib import Path

import pytest

GOLDEN = json.loads((Path(__file__).parent / "golden_losses.json").read_text())


def test_every_training_run_has_its_golden_losses(world):
    """Within what another CPU's order of sums changes; on one machine the bits are the same."""
    workdir = world.parent / "run"
    found = {
        str(path.relative_to(workdir).parents[1]): [json.loads(line)["loss"] for line in path.read_text().splitlines()]
        for path in workdir.rglob("metrics.jsonl")
    }
    assert found.keys() == GOLDEN.keys()
    for name, losses in GOLDEN.items():
        assert found[name] == pytest.approx(losses, rel=1e-4), name
