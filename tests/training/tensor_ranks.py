"""What test_tensor_parallel.py starts on four ranks: the same models and runs, split and whole.

Rank 0 writes what all saw to results.json of its folder, and trained weights beside it.
"""

import copy
from dataclasses import replace
from unittest import mock

import torch
from ranks import measure_step
from safetensors.torch import save_file
from synthetic import SEQ_LENGTH, TRAINS, Sampler, losses, same, train
from synthetic import run_config as six_steps

from ds_minimodel.common.errors import OtherRankError, UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.models.modern import Qwen3Config
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.models.trainable import SequenceClassifier, SpanExtractor, to_tensors, train_only
from ds_minimodel.ops import parallel
from ds_minimodel.ops.parallel import cross_entropy
from ds_minimodel.pipeline.training import micro_batches
from ds_minimodel.training.world import join_ranks
from tests.small_models import masked_lm, roberta

VOCAB_SIZE = 67  # four ranks have 16, 17, 17 and 17 rows
BODY = roberta(3, 32, 4, 64, SEQ_LENGTH)
DEPTHS = (1, 3)
GROUPED = Qwen3Config(
    num_layers=2, hidden_size=32, num_heads=8, num_kv_heads=4, head_size=6, ffn_size=32
)
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.3}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
# Large eps: else Adam would hide a wrong norm of the gradients, as it does not see their scale.
CLIPPED = {"clip": 0.02, "eps": 1.0, "lr": 0.5}


def run_config(**changes):
    return six_steps(**{"steps": 3, **changes})


def cases():
    """{name: (ranks to a replica, what trains, dropout, run)}; each must train what one rank
    does.
    """
    chosen = {
        f"pretrain zero{stage} clipped": (
            2,
            "pretrain",
            True,
            run_config(zero_stage=stage, **CLIPPED),
        )
        for stage in (0, 1, 3)
    }
    chosen["build-mini zero2"] = (2, "build-mini", True, run_config(zero_stage=2))
    chosen["one replica"] = (4, "pretrain", True, run_config(zero_stage=1))
    accumulation = run_config(zero_stage=1, precision="bf16", micro_batch_size=2)
    chosen["bf16 zero1 accumulation"] = (2, "pretrain", True, accumulation)
    return chosen


def model(what, dropout, seed=0):
    torch.manual_seed(seed)
    module = masked_lm(
        BODY.model_copy(update=DROPOUT if dropout else NO_DROPOUT), VOCAB_SIZE, *DEPTHS
    )
    train_only(module, TRAINS[what])
    return module


def train_case(world, folder, case, seed=0):
    _, what, dropout, run = case
    module = model(what, dropout, seed)
    split_model(module, world.tensor)
    weights = train(world, folder, run, module)
    return weights, losses(folder) if world.is_main else None


def train_cases(worlds, folder):
    seen = {}
    for name, case in cases().items():
        world = worlds[case[0]]
        weights, values = train_case(world, folder / name, case)
        first, *others = world.all_gather_object(lambda weights=weights: weights)
        apart = [(first[key] - other[key]).abs().max().item() for other in others for key in first]
        seen[name] = {"losses": values, "apart": max(apart)}
        if world.is_main:
            save_file(weights, folder / f"{name}.safetensors")
    return seen


def resumed(world, folder):
    """Go on from step 2, from other initial weights, at the same ZeRO stage and at another."""

    def trained(seed, **changes):
        case = (2, "pretrain", True, run_config(**changes))
        return train_case(world, folder, case, seed)

    first, expected = trained(0, zero_stage=1, checkpoint_every=2)
    second, _ = trained(1, zero_stage=1)
    _, losses_of_other_stage = trained(1, zero_stage=3)
    return {"same": same(first, second), "losses": [expected, losses_of_other_stage]}


MEASURED = {"adapt zero1": ("adapt", 1, "fp32"), "pretrain zero3": ("pretrain", 3, "bf16")}


def measured(world):
    """{case: what a step of a split model takes beside what was planned}"""
    found = {}
    for name, (what, stage, precision) in MEASURED.items():
        module = model(what, dropout=True)
        run = run_config(zero_stage=stage, precision=precision)
        split_model(module, world.tensor)
        found[name] = measure_step(module, micro_batches(Sampler, run, world), run, world)
    return found


def refusal(world, folder, run):
    try:
        train_case(world, folder, (0, "pretrain", True, run))
    except (UserError, OtherRankError) as error:
        return str(error)


LENGTHS = torch.tensor([16, 9, 12, 5], dtype=torch.int32)


def task_batch():
    """Four samples of unequal lengths, read at their first token."""
    batch = to_tensors(Sampler.batch(0, 4))
    start = torch.zeros(4, 1, dtype=torch.int64)
    classes = torch.tensor([[2], [0], [1], [2]])
    return {**batch, "lengths": LENGTHS, "loss_positions": start, "targets": classes}


def modules():
    """{name: (module, batch)} in double precision, with large weights, which hide no mistake."""
    torch.manual_seed(0)
    config = BODY.model_copy(update=DROPOUT)
    batch = to_tensors(Sampler.batch(0, 4))
    # Spans are read at every token, not at positions of a loss.
    questions = task_batch()
    del questions["loss_positions"]
    questions["targets"] = torch.tensor([[2, 3], [0, 0], [1, 4], [-100, 2]])
    chosen = {
        "masked LM": (masked_lm(config, VOCAB_SIZE, *DEPTHS), batch),
        "masked LM, padded": (
            masked_lm(config, VOCAB_SIZE, *DEPTHS),
            {**batch, "lengths": LENGTHS},
        ),
        "norms of heads": (masked_lm(GROUPED, VOCAB_SIZE, 2), batch),
        "classifier": (SequenceClassifier(config, VOCAB_SIZE, 3), task_batch()),
        "questions": (SpanExtractor(config, VOCAB_SIZE), questions),
    }
    for module, _ in chosen.values():
        for parameter in module.double().parameters():
            parameter.data.normal_(0, 0.3)
    return chosen


def difference_from_whole(whole, batch, group):
    """Largest difference of losses and of gradients from those of the whole module, relative to the
    largest.
    """
    whole.zero_grad()
    split = copy.deepcopy(whole)
    split_model(split, group)
    expected = whole(batch)
    got = split(batch)
    expected.sum().backward()
    got.sum().backward()
    errors = [((got - expected).abs() / expected.abs()).max()]
    for (name, parameter), reference in zip(split.named_parameters(), whole.parameters()):
        assert torch.equal(parallel.full_tensor(parameter, parameter.detach()), reference), name
        assert (parameter.grad is None) == (reference.grad is None), name
        if reference.grad is not None:
            error = parallel.full_tensor(parameter, parameter.grad) - reference.grad
            errors.append(error.abs().max() / reference.grad.abs().max().clamp(min=0.1))
    return float(torch.stack(errors).max().detach())


def differences(worlds):
    """{module and number of ranks: largest difference on any rank}"""
    found = {}
    for name, (module, batch) in modules().items():
        for size, world in worlds.items():
            # The logits of the loss in one piece, and on two ranks in several.
            rows = 3 if size == 2 else cross_entropy.CHUNK_ROWS
            with mock.patch.object(cross_entropy, "CHUNK_ROWS", rows):
                error = difference_from_whole(module, batch, world.tensor)
            found[f"{name} on {size}"] = max(world.all_gather_object(lambda error=error: error))
    return found


def main(folder):
    two = join_ranks(2)
    data, tensor = parallel.split_world(two.rank, two.size, 4)
    four = replace(two, data=data, tensor=tensor)
    worlds = {2: two, 4: four}
    results = {"measured": measured(two)}
    results["differences"] = differences(worlds)
    results["cases"] = train_cases(worlds, folder)
    results["resumed"] = resumed(two, folder / "resumed")
    results["other_layout"] = refusal(four, folder / "resumed", run_config(zero_stage=1))
    if two.is_main:
        write_json(folder / "results.json", results)
