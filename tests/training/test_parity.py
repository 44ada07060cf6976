"""The same run gives the same losses at every ZeRO stage, on one and two ranks, however batches are
split.
"""

import shutil
import signal

import pytest
from ranks import OTHER_STAGES, PARITY, RESUMED, observe_all
from synthetic import TRAINS, crash, losses, model, observe, resume, run_config

from ds_minimodel.common.files import read_manifest
from tests.helpers.files import read_json

from ..forks import start_ranks

pytestmark = pytest.mark.slow

BOUNDS = {"fp32": 1e-5, "bf16": 2e-2}
STAGE_0 = {
    "pretrain": "pretrain fp32 zero0 8",
    "adapt": "adapt bf16 zero0 8",
    "build-mini": "build-mini fp32 zero0 8",
}


@pytest.fixture(scope="module")
def launched(world, tmp_path_factory):
    """(folder, ranks) of ranks.parity; all tests on two ranks share their one start."""
    folder = tmp_path_factory.mktemp("two-ranks")
    for name in OTHER_STAGES:
        crash(world, folder / "one-rank" / name, run_config(zero_stage=1, checkpoint_every=3))
    return folder, start_ranks(2, "ranks:parity", folder)


@pytest.fixture(scope="module")
def one_rank(world, launched, tmp_path_factory):
    """{case: what was observed}, while the two ranks are at work."""
    return observe_all(world, tmp_path_factory.mktemp("one-rank"))


@pytest.fixture(scope="module")
def two_ranks(launched, one_rank):
    """(folder, results, exit codes)"""
    folder, ranks = launched
    said = [rank.communicate()[1] for rank in ranks]
    assert (folder / "results.json").exists(), said
    results = read_json(folder / "results.json")
    return folder, results, [rank.returncode for rank in ranks]


@pytest.fixture(scope="module")
def seen(one_rank, two_ranks):
    """{number of ranks: {case: what was observed}}"""
    return {1: one_rank, 2: two_ranks[1]["cases"]}


@pytest.fixture(scope="module")
def stage_0(one_rank):
    """{what trains: losses of stage 0 on one rank}"""
    return {what: one_rank[case]["losses"] for what, case in STAGE_0.items()}


each_case = pytest.mark.parametrize("case", PARITY)
each_size = pytest.mark.parametrize("ranks", [1, 2])


@each_size
@each_case
def test_losses_are_those_of_stage_0_on_one_rank(seen, stage_0, ranks, case):
    what, run = PARITY[case]
    precision = run.execution.precision
    found = seen[ranks][case]["losses"]
    assert found == pytest.approx(stage_0[what], abs=BOUNDS[precision], rel=0)
    if what == "pretrain" and precision == "bf16":
        assert found != stage_0[what], "stage 0 is in fp32"


@each_size
@pytest.mark.parametrize("stage", [1, 2])
def test_gradient_norms_do_not_depend_on_stage_and_ranks(seen, ranks, stage):
    expected = seen[1]["pretrain fp32 zero3 8"]["gradient_norms"]
    norms = seen[ranks][f"pretrain fp32 zero{stage} 8"]["gradient_norms"]
    assert None not in expected
    assert norms == pytest.approx(expected, rel=1e-4)


@each_size
@pytest.mark.parametrize("stage", [1, 2])
def test_bf16_rounds_the_same_at_stages_0_1_and_2(seen, ranks, stage):
    expected = seen[ranks]["adapt bf16 zero0 8"]["losses"]
    found = seen[ranks][f"adapt bf16 zero{stage} 8"]["losses"]
    assert found == pytest.approx(expected, abs=1e-6, rel=0)


@each_size
@each_case
def test_what_trains_moves_and_all_else_keeps_its_bits(seen, ranks, case):
    facts = seen[ranks][case]
    trains = TRAINS[PARITY[case][0]]
    assert facts["trained"] == sorted(
        name for name, _ in model().named_parameters() if trains(name)
    )
    assert facts["unmoved"] == []
    assert facts["frozen_moved"] == []


@each_size
@each_case
def test_only_what_trains_has_optimizer_state(seen, ranks, case):
    """Partitions are padded to equal lengths, at stage 3 for each parameter."""
    facts = seen[ranks][case]
    padding = 64 + ranks * len(facts["trained"]) if "zero0" not in case else 0
    if ranks == 2 and "zero0" in case:
        assert facts["state_size"] == 2 * facts["trained_size"]  # a copy on each rank
    else:
        assert 0 <= facts["state_size"] - facts["trained_size"] <= padding


@each_size
@each_case
def test_the_result_is_the_fp32_masters(seen, ranks, case):
    facts = seen[ranks][case]
    precision = PARITY[case][1].execution.precision
    assert facts["dtypes"] == ["torch.float32"]
    assert facts["masters_round_to_parameters"]
    assert facts["snapshot_is_result"]
    if precision != "fp32":
        assert not facts["rounded"]


@pytest.mark.parametrize("name", RESUMED)
def test_two_ranks_resume_to_the_same_bits(two_ranks, name):
    assert two_ranks[1]["resumed"][name]


def test_a_user_error_of_rank_0_ends_every_rank(two_ranks):
    results = two_ranks[1]
    assert results["shared error"] == ["only rank 0 saw it", "rank 0 failed"]
    first, second = results["another job"]
    assert "a checkpoint of another run (job: test, here another)" in first
    assert second == "rank 0 failed"


@pytest.mark.parametrize("name", OTHER_STAGES)
def test_two_ranks_go_on_with_a_run_of_one(two_ranks, stage_0, name):
    assert two_ranks[1]["other stages"][name] == pytest.approx(
        stage_0["pretrain"], abs=BOUNDS["fp32"], rel=0
    )


@pytest.mark.parametrize("name, stage", [("fp32 zero1", 1), ("bf16 zero3", 0), ("bf16 zero2", 3)])
def test_one_rank_goes_on_with_a_run_of_two(world, two_ranks, stage_0, tmp_path, name, stage):
    precision = name[:4]
    shutil.copytree(two_ranks[0] / name / "stopped", tmp_path / "run")
    resume(world, tmp_path / "run", run_config(zero_stage=stage, precision=precision))
    assert losses(tmp_path / "run") == pytest.approx(
        stage_0["pretrain"], abs=BOUNDS[precision], rel=0
    )


def test_parameters_that_ranks_do_not_divide_keep_their_masters(two_ranks):
    assert two_ranks[1]["odd"] == [True] * 4


def test_a_rank_killed_in_a_save_leaves_the_former_good(world, two_ranks, stage_0):
    folder, _, codes = two_ranks
    checkpoints = folder / "killed/checkpoints"
    assert codes == [1, -signal.SIGKILL]
    assert (checkpoints / "latest").read_text() == "step-00000002"
    assert read_manifest(checkpoints / "step-00000002", verify=True)["step"] == 2
    assert not (checkpoints / "step-00000004").exists()
    resume(world, folder / "killed", run_config(zero_stage=2))
    assert losses(folder / "killed") == pytest.approx(
        stage_0["pretrain"], abs=BOUNDS["fp32"], rel=0
    )


def test_fp16_is_the_same_at_every_stage(world, tmp_path, fp16_on_cpu):
    runs = [run_config(zero_stage=stage, precision="fp16") for stage in range(4)]
    losses = [
        observe(world, tmp_path / str(run.execution.zero_stage), run, "pretrain")["losses"]
        for run in runs
    ]
    for stage in range(1, 4):
        assert losses[stage] == pytest.approx(losses[0], abs=1e-3, rel=0)
