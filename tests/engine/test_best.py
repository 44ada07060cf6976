"""The weights of the best score: which are kept, and what is refused."""

import pytest
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.checkpoints.best import BestWeights, drop_best


def offer(best, *scores):
    """Scores after steps 1, 2, …, each with weights of its own."""
    for step, score in enumerate(scores, 1):
        best.offer(step, score, lambda step=step: {"weight": torch.full((3,), float(step))}, is_first=step == 1)


def test_the_first_of_the_highest_is_kept_and_outlives_the_process(world, tmp_path):
    offer(BestWeights(tmp_path, "job", world), 1.0, 4.0, 2.0, 4.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-00000002.safetensors", "best.json"]
    again = BestWeights(tmp_path, "job", world)
    again.offer(5, 4.0, dict, is_first=False)
    step, weights = again.load()
    assert step == 2 and weights["weight"].tolist() == [2.0] * 3
    drop_best(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("best-00000001.safetensors", b"", "missing, or its SHA-256 is not the one in best.json"),
        ("best.json", b"{}", "best.json: job: "),
        ("best.json", None, "best.json: missing"),
    ],
)
def test_what_is_damaged_or_missing_is_refused(world, tmp_path, file, content, message):
    offer(BestWeights(tmp_path, "job", world), 1.0)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        BestWeights(tmp_path, "job", world).offer(2, 2.0, dict, is_first=False)


def test_the_weights_of_another_run_are_refused(world, tmp_path):
    offer(BestWeights(tmp_path, "job", world), 1.0)
    with pytest.raises(UserError, match="of another run"):
        BestWeights(tmp_path, "other job", world)
