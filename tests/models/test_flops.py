"""Costs against the figures that the paper prints; executed FLOPs against torch's own count of the
products.
"""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.evaluation import KINDS
from ds_minimodel.models import flops
from ds_minimodel.models.kind import keys_seen
from ds_minimodel.models.modern import Gemma3Config, LlamaConfig, ModernBertConfig
from ds_minimodel.models.roberta import RobertaConfig
from ds_minimodel.models.trainable import LanguageModel, train_only
from tests.small_models import masked_lm, roberta

from ..recipes import recipe_of

PAPER = flops.Workload(
    RobertaConfig(),
    vocab_size=50000,
    seq_length=512,
    share_read=0.15,
    batch_size=2048,
    steps=125000,
)


@pytest.mark.parametrize(
    "eflops, value",
    [
        (78.816, flops.pretrain_flops(PAPER, 12)),
        (29.338, flops.pretrain_flops(PAPER, 4)),
        (83.416, flops.pretrain_flops(PAPER, 12, num_heads=2)),
        (21.621, flops.build_mini_flops(PAPER, 4, 2)),
        (54.054, flops.adapt_flops(PAPER, 12)),
        (29.315, flops.adapt_flops(PAPER, 6)),
        (21.069, flops.adapt_flops(PAPER, 4)),
    ],
)
def test_formulas_give_the_papers_figures(eflops, value):
    assert value / flops.EFLOP == pytest.approx(eflops, abs=5e-4)


def test_recipe_costs_of_the_paper():
    rows = recipe_costs(recipe_of(["bl_base", "bl_small", "minijoint", "minipost"]))
    costs = {(row["system"], row["step"]): row for row in rows}
    assert flops.EFLOPS_PER_V100_DAY == pytest.approx(2.592)
    printed = {
        ("bl_base", "pretrain"): 30.4,
        ("minijoint", "pretrain"): 32.2,
        ("bl_base", "adapt"): 20.9,
        ("bl_small", "adapt"): 8.1,
        ("minijoint", "adapt"): 8.1,
        ("minipost", "adapt"): 11.3,
    }
    for key, days in printed.items():
        assert costs[key]["v100_days"] == pytest.approx(days, abs=0.05), key
    assert costs["minipost", "build-mini"]["formula_eflops"] == pytest.approx(21.6, abs=0.05)
    assert costs["minipost", "pretrain"] == {**costs["bl_base", "pretrain"], "system": "minipost"}
    assert ("bl_base", "build-mini") not in costs


WORK = flops.Workload(
    roberta(3, 16, 2, 40, 20), vocab_size=50, seq_length=20, share_read=0.15, batch_size=2
)
TOKENS = torch.arange(40).reshape(2, 20) + 4
KEYS = torch.tensor([1, 2], dtype=torch.int32)
MASKED = {
    "tokens": TOKENS,
    "sample_keys": KEYS,
    "loss_positions": torch.tensor([[1, 5, 9], [0, 7, 19]]),
    "targets": torch.tensor([[4, 5, 6], [7, 8, 9]]),
}


def linear_cross_entropy_flops(x_shape, weight_shape, *_, **__):
    """The forward product, inside of an operator into which torch's counter does not look."""
    return 2 * x_shape[0] * x_shape[1] * weight_shape[0]


def attention_flops(projected_shape, queries_shape, *_, **__):
    """Two products, scores and context, likewise hidden from torch's counter."""
    batch, num_keys, columns = projected_shape
    num_queries, width = (num_keys, columns // 3) if queries_shape is None else queries_shape[1:]
    return 2 * 2 * batch * num_queries * num_keys * width


def window_attention_flops(
    keys_values_shape, queries_shape, _num_heads, _positions, before, after, *_, **__
):
    """The same two products with the keys that each position sees."""
    batch, num_queries, width = queries_shape
    return 2 * 2 * batch * num_queries * keys_seen((before, after), keys_values_shape[1]) * width


def backward(forward):
    """The four products of the gradients. The scores are made again on CPUs, to save memory: not
    the method's work.
    """
    return lambda grad_shape, *shapes, **_: 2 * forward(*shapes)


def counted(module, batch, trains):
    train_only(module, trains)
    mapping = {
        torch.ops.dsmm.linear_cross_entropy: linear_cross_entropy_flops,
        torch.ops.dsmm.attention: attention_flops,
        torch.ops.dsmm.attention_backward: backward(attention_flops),
        torch.ops.dsmm.window_attention: window_attention_flops,
        torch.ops.dsmm.window_attention_backward: backward(window_attention_flops),
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        module(batch).mean().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "step, depths, frozen_layers, trains",
    [
        ("pretrain", [2, 4], 0, lambda name: True),
        ("build-mini", [4], 2, lambda name: name.startswith(("body.layers.2.", "body.layers.3."))),
        ("adapt", [4], 0, lambda name: name.startswith("pack.")),
        ("adapt", [1], 0, lambda name: name.startswith("pack.")),
    ],
)
def test_masked_language_model_steps(step, depths, frozen_layers, trains):
    module = masked_lm(WORK.body.with_layers(max(depths)), WORK.vocab_size, *depths)
    expected = flops.step_flops(step, WORK, depths, frozen_layers).executed
    assert counted(module, MASKED, trains) == pytest.approx(expected, rel=1e-12)


SMALL: dict[str, Any] = dict(num_layers=3, hidden_size=32, num_heads=4, ffn_size=40)


@pytest.mark.parametrize("step", ["pretrain", "adapt"])
@pytest.mark.parametrize(
    "body",
    [
        ModernBertConfig(window=4, **SMALL),
        LlamaConfig(num_kv_heads=2, **SMALL),
        Gemma3Config(num_kv_heads=2, head_size=16, window=9, global_every=2, **SMALL),
    ],
    ids=lambda body: body.kind,
)
def test_windows_and_shared_heads(body, step):
    module = LanguageModel(body, 50, (3,))
    batch = {"tokens": TOKENS, "sample_keys": KEYS, "targets": TOKENS} if body.causal else MASKED
    work = flops.Workload(body, 50, 20, 1 if body.causal else 0.15, 2)
    found = counted(module, batch, lambda name: step == "pretrain" or name.startswith("pack."))
    assert found == pytest.approx(flops.step_flops(step, work, [3]).executed)


FIRST_READ = {
    "loss_positions": torch.zeros(2, 1, dtype=torch.long),
    "targets": torch.tensor([[0], [2]]),
}
SPANS = {"targets": torch.tensor([[1, 3], [2, 5]])}


@pytest.mark.parametrize(
    "kind, labels, targets", [("sentence-pair", list("abc"), FIRST_READ), ("qa", None, SPANS)]
)
def test_finetuning(kind, labels, targets):
    module = KINDS[kind].module(WORK.body, WORK.vocab_size, labels)
    num_outputs = KINDS[kind].num_outputs(labels)
    batch = {"tokens": TOKENS, "sample_keys": KEYS, **targets}
    expected = flops.finetune_flops(WORK, num_outputs, reads_start=KINDS[kind].reads_start).executed
    assert counted(module, batch, lambda name: not name.startswith("pack.")) == expected
