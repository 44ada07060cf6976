"""The same run gives the same losses at every ZeRO stage, on one and two ranks, however batches are split."""

import json
import shutil
import signal

import pytest
from parity_ranks import OTHER_STAGES, RESUMED, WHOLE, cases, observe_cases
from synthetic import TRAINS, CrashingSampler, losses, model, observe, resume, run_config, train

from ds_minimodel.common.files import read_manifest

from ..forks import start_ranks

BOUNDS = {"fp32": 1e-5, "bf16": 2e-2}


@pytest.fixture(scope="module")
def launched(world, tmp_path_factory):
    """(folder, ranks) of parity_ranks.py; all tests on two ranks share their one start."""
    folder = tmp_path_factory.mktemp("two-ranks")
    for name in OTHER_STAGES:
        with pytest.raises(RuntimeError, match="crash of the test"):
            train(
                world, folder / "one-rank" / name, run_config(zero_stage=1, checkpoint_every=3), sampler=CrashingSampler
            )
    return folder, start_ranks(2, "parity_ranks:main", folder)


@pytest.fixture(scope="module")
def one_rank(world, launched, tmp_path_factory):
    """{case: what was observed}, while the two ranks are at work."""
    return observe_cases(world, tmp_path_factory.mktemp("one-rank"))


@pytest.fixture(scope="module")
def two_ranks(launched, one_rank):
    """(folder, results, exit codes)"""
    folder, ranks = launched
    said = [rank.communicate()[1] for rank in ranks]
    assert (folder / "results.json").exists(), said
    return folder, json.loads((folder / "results.json").read_text()), [rank.returncode for rank in ranks]


@pytest.fixture(scope="module")
def seen(one_rank, two_ranks):
    """{number of ranks: {case: what was observed}}"""
    return {1: one_rank, 2: two_ranks[1]["cases"]}


each_case = pytest.mark.parametrize("case", cases())
each_size = pytest.mark.parametrize("ranks", [1, 2])


@each_size
@each_case
def test_losses_are_those_of_stage_0_on_one_rank(seen, ranks, case):
    what, run = cases()[case]
    expected = seen[1][f"{what} {run.execution.precision} zero0 {run.execution.micro_batch_size}"]["losses"]
    assert seen[ranks][case]["losses"] == pytest.approx(expected, abs=BOUNDS[run.execution.precision], rel=0)


@each_size
@pytest.mark.parametrize("case", [case for case in cases() if "fp32 zero1" in case or "fp32 zero2" in case])
def test_gradient_norms_do_not_depend_on_stage_and_ranks(seen, ranks, case):
    expected = seen[1][case.replace("zero1", "zero3").replace("zero2", "zero3")]["gradient_norms"]
    assert None not in expected and seen[ranks][case]["gradient_norms"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("stage", range(4))
def test_losses_do_not_depend_on_the_micro_batch(seen, stage):
    expected = seen[1][f"pretrain fp32 zero0 {WHOLE}"]["losses"]
    for ranks in (1, 2):
        split = seen[ranks][f"pretrain fp32 zero{stage} 2"]["losses"]
        assert split == pytest.approx(expected, abs=BOUNDS["fp32"], rel=0)


@each_size
@pytest.mark.parametrize("stage", [1, 2])
def test_bf16_rounds_the_same_at_stages_0_1_and_2(seen, ranks, stage):
    expected = seen[ranks][f"pretrain bf16 zero0 {WHOLE}"]["losses"]
    losses = seen[ranks][f"pretrain bf16 zero{stage} {WHOLE}"]["losses"]
    assert losses == pytest.approx(expected, abs=1e-6, rel=0)


def test_bf16_follows_fp32(seen):
    bf16, fp32 = (seen[1][f"pretrain {precision} zero0 {WHOLE}"]["losses"] for precision in ("bf16", "fp32"))
    assert bf16 != fp32
    assert bf16 == pytest.approx(fp32, abs=BOUNDS["bf16"], rel=0)


@each_size
@each_case
def test_what_trains_moves_and_all_else_keeps_its_bits(seen, ranks, case):
    facts, trains = seen[ranks][case], TRAINS[cases()[case][0]]
    assert facts["trained"] == sorted(name for name, _ in model().named_parameters() if trains(name))
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
    facts, precision = seen[ranks][case], cases()[case][1].execution.precision
    assert facts["dtypes"] == ["torch.float32"]
    assert facts["masters_round_to_parameters"] and facts["snapshot_is_result"]
    assert precision == "fp32" or not facts["rounded"]


@pytest.mark.parametrize("name", RESUMED)
def test_two_ranks_resume_to_the_same_bits(two_ranks, name):
    assert two_ranks[1]["resumed"][name]


def test_a_user_error_of_rank_0_ends_every_rank(two_ranks):
    results = two_ranks[1]
    assert results["shared_error"] == ["only rank 0 saw it", "rank 0 failed"]
    first, second = results["refusals"]
    assert "a checkpoint of another run (job: test, here another)" in first and second == "rank 0 failed"


def test_ranks_exchange_numbers(two_ranks):
    assert two_ranks[1]["sums"] == [3, 20]
    assert two_ranks[1]["from_main"] == [0, 0]


@pytest.mark.parametrize("name", OTHER_STAGES)
def test_two_ranks_go_on_with_a_run_of_one(two_ranks, seen, name):
    assert two_ranks[1]["other stages"][name] == pytest.approx(
        seen[1][f"pretrain fp32 zero0 {WHOLE}"]["losses"], abs=BOUNDS["fp32"], rel=0
    )


@pytest.mark.parametrize("name, stage", [("fp32 zero1", 1), ("bf16 zero1", 2), ("bf16 zero3", 0), ("bf16 zero2", 3)])
def test_one_rank_goes_on_with_a_run_of_two(world, two_ranks, seen, tmp_path, name, stage):
    precision = name[:4]
    shutil.copytree(two_ranks[0] / name / "stopped", tmp_path / "run")
    resume(world, tmp_path / "run", run_config(zero_stage=stage, precision=precision))
    assert losses(tmp_path / "run") == pytest.approx(
        seen[1][f"pretrain {precision} zero0 {WHOLE}"]["losses"], abs=BOUNDS[precision], rel=0
    )


def test_parameters_that_ranks_do_not_divide_keep_their_masters(two_ranks):
    assert two_ranks[1]["odd"] == [True] * 4


def test_a_rank_killed_in_a_save_leaves_the_former_good(world, two_ranks, seen):
    folder, _, codes = two_ranks
    checkpoints = folder / "killed" / "checkpoints"
    assert codes == [1, -signal.SIGKILL]
    assert (checkpoints / "latest").read_text() == "step-00000002"
    assert read_manifest(checkpoints / "step-00000002", verify=True)["step"] == 2
    assert not (checkpoints / "step-00000004").exists()
    resume(world, folder / "killed", run_config(zero_stage=2))
    expected = seen[1][f"pretrain fp32 zero0 {WHOLE}"]["losses"]
    assert losses(folder / "killed") == pytest.approx(expected, abs=BOUNDS["fp32"], rel=0)


def test_fp16_is_the_same_at_every_stage(world, tmp_path, fp16_on_cpu):
    runs = [run_config(zero_stage=stage, precision="fp16") for stage in range(4)]
    losses = [observe(world, tmp_path / str(run.execution.zero_stage), run, "pretrain")["losses"] for run in runs]
    for stage in range(1, 4):
        assert losses[stage] == pytest.approx(losses[0], abs=1e-3, rel=0)
