"""A model split over ranks computes and trains what a whole one does, at every ZeRO stage, dropout
included.
"""

import pytest
import tensor_ranks
from safetensors.torch import load_file
from synthetic import changed

from ds_minimodel.training.run import replicas_of
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses

from ..forks import start_ranks

pytestmark = pytest.mark.slow

RANKS = 4
LOSS_BOUNDS = {"fp32": 1e-5, "bf16": 1e-2}
WEIGHT_BOUNDS = {"fp32": 2e-4, "bf16": 2e-2}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """(folder, ranks) of tensor_ranks.py; all tests share their one start."""
    folder = tmp_path_factory.mktemp("tensor-parallel")
    return folder, start_ranks(RANKS, "tensor_ranks:main", folder)


@pytest.fixture(scope="module")
def whole(world, launched, tmp_path_factory):
    """whole(what, dropout, run): (weights, losses) of one rank, in fp32 and without ZeRO; each is
    trained once.
    """
    folder = tmp_path_factory.mktemp("whole")
    done = {}

    def result(what, dropout, run):
        plain = changed(
            run, zero_stage=0, precision="fp32", micro_batch_size=run.execution.batch_size
        )
        key = (what, dropout, plain)
        if key not in done:
            done[key] = tensor_ranks.train_case(world, folder / str(len(done)), (1, *key))
        return done[key]

    return result


@pytest.fixture(scope="module")
def seen(launched):
    """(folder, results)"""
    folder, ranks = launched
    for rank in ranks:
        errors = rank.communicate()[1]
        assert rank.returncode == 0, errors
    return folder, read_json(folder / "results.json")


each_case = pytest.mark.parametrize("case", tensor_ranks.cases())


@each_case
def test_losses_and_weights_are_those_of_one_rank(whole, seen, case):
    folder, results = seen
    _, what, dropout, run = tensor_ranks.cases()[case]
    weights, losses = whole(what, dropout, run)
    assert results["cases"][case]["losses"] == pytest.approx(
        losses, abs=LOSS_BOUNDS[run.execution.precision], rel=0
    )
    trained = load_file(folder / f"{case}.safetensors")
    assert trained.keys() == weights.keys()
    for name, weight in weights.items():
        apart = (trained[name] - weight).abs()
        bound = WEIGHT_BOUNDS[run.execution.precision]
        # A weight whose gradient rounds to either side of zero Adam moves by the whole rate: in
        # bf16 one or two do.
        assert apart.max() <= bound or (
            run.execution.precision == "bf16" and apart.max() <= 2 * bound
        ), name
        assert (apart > bound).sum() <= 2, name


def test_clipping_and_dropout_show_in_the_losses(whole):
    """Else the comparisons above would prove nothing about them."""
    pretrain = tensor_ranks.run_config()
    plain = whole("pretrain", dropout=True, run=pretrain)[1][-1]
    silent = whole("pretrain", dropout=False, run=pretrain)[1][-1]
    clipped = whole("pretrain", dropout=True, run=changed(pretrain, **tensor_ranks.CLIPPED))[1][-1]
    unclipped_run = changed(pretrain, **{**tensor_ranks.CLIPPED, "clip": 0.04})
    unclipped = whole("pretrain", dropout=True, run=unclipped_run)[1][-1]
    assert abs(plain - silent) > 1e-3
    assert abs(clipped - unclipped) > 1e-4


@each_case
def test_every_rank_ends_with_the_same_weights(seen, case):
    """Those that are whole on every rank have had the same gradients there; but the end of a flat
    buffer, which is not the same on ranks whose parts differ, torch's AdamW rounds otherwise.
    """
    assert seen[1]["cases"][case]["apart"] < 1e-8


def test_losses_and_gradients_in_double_precision(seen):
    found = seen[1]["differences"]
    assert len(found) == 10
    assert {name: error for name, error in found.items() if error > 1e-12} == {}


@pytest.mark.parametrize("case", tensor_ranks.MEASURED)
def test_memory_of_a_step_is_what_was_planned(seen, case):
    """On the first rank, whose part of the vocabulary is a row smaller than that of the last, for
    which plans are.
    """
    measured = seen[1]["measured"][case]["measured"]
    planned = seen[1]["measured"][case]["planned"]
    assert measured["weights"] == pytest.approx(planned["weights"], rel=0.01)
    assert measured["optimizer"] == pytest.approx(planned["optimizer"], rel=0.03)
    assert all(
        measured["sent"][collective] >= 0.98 * sent for collective, sent in planned["sent"].items()
    )


def test_resume_at_the_same_layout_gives_the_same_bits(seen):
    assert seen[1]["resumed"]["same"]


def test_resume_at_another_stage_gives_the_same_losses(seen):
    expected, losses = seen[1]["resumed"]["losses"]
    assert losses == pytest.approx(expected, abs=1e-5, rel=0)


def test_a_checkpoint_of_another_layout_is_refused(seen):
    assert "another run (tensor_parallel: 2, here 4)" in seen[1]["other_layout"]


def test_ranks_that_are_no_multiple_are_refused():
    assert replicas_of(6, 2) == 3
    with refuses("2 ranks to a replica do not divide 3 in all"):
        replicas_of(3, 2)
