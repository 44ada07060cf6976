"""The weights of the best score: which are kept, and what is refused."""

import pytest
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.training.checkpoints.best import BestWeights, drop_best


def offer(best, *scores):
    """Scores after steps 1, 2, …, each with weights of its own."""
    for step, score in enumerate(scores, 1):
        best.offer(step, score, lambda step=step: {"weight": torch.full((3,), float(step))}, is_first=step == 1)


def test_the_first_of_the_highest_is_kept_and_outlives_the_process(world, tmp_path):
    offer(BestWeights(tmp_path, "job", world), 1.0, 4.0, 2.0, 4.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors"]
    again = BestWeights(tmp_path, "job", world)
    again.offer(5, 4.0, dict, is_first=False)
    step, weights = again.load()
    assert step == 2 and weights["weight"].tolist() == [2.0] * 3
    drop_best(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_best_up_to_the_trunk_outlives_what_came_after_it(world, tmp_path):
    """As a run that goes on from there needs it."""
    offer(BestWeights(tmp_path, "job", world, trunk=3), 1.0, 3.0, 2.0, 4.0)
    assert BestWeights(tmp_path, "job", world, trunk=3).load()[0] == 4
    drop_best(tmp_path, trunk=3)
    step, weights = BestWeights(tmp_path, "job", world, trunk=9).load()
    assert step == 2 and weights["weight"].tolist() == [2.0] * 3
    drop_best(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda content: content[:-1] + b"x", "its SHA-256 is not the one that it holds"),
        (lambda content: content.replace(b'"1.0"', b'"9.0"'), "its SHA-256 is not the one that it holds"),
        (lambda content: content[:20], "damaged"),
        (None, "best.safetensors: missing"),
    ],
)
def test_what_is_damaged_or_missing_is_refused(world, tmp_path, damage, message):
    offer(BestWeights(tmp_path, "job", world), 1.0)
    file = tmp_path / "best.safetensors"
    file.unlink() if damage is None else file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=message):
        BestWeights(tmp_path, "job", world).offer(2, 2.0, dict, is_first=False)


def test_the_weights_of_another_run_are_refused(world, tmp_path):
    offer(BestWeights(tmp_path, "job", world), 1.0)
    with pytest.raises(UserError, match="of another run"):
        BestWeights(tmp_path, "other job", world)
