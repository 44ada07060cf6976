"""Costs against the figures that the paper prints; executed FLOPs are counted in test_flops_executed.py."""

import pytest

from ds_minimodel.models import flops
from ds_minimodel.models.roberta import RobertaConfig
from ds_minimodel.recipe.flops import recipe_costs

from ..recipes import recipe_of

BODY = RobertaConfig()  # the paper's
PAPER = flops.Work(BODY, vocab_size=50000, seq_length=512, share_read=0.15, batch_size=2048, steps=125000)


def paper_costs(systems, **sections):
    rows = recipe_costs(recipe_of(systems, **sections))
    return {(row["system"], row["step"]): row for row in rows}


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
    costs = paper_costs(["bl_base", "bl_small", "minijoint", "minipost"])
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


def test_depth_schedule_weighs_depths_by_their_share():
    schedule = [[4, 0.5], [8, 0.25], [12, 0.25]]
    row = paper_costs(["multijoint"], adapt={"depth_schedule": schedule})["multijoint", "adapt"]
    for name, function in (("formula_eflops", flops.adapt_flops), ("executed_eflops", flops.executed_adapt)):
        expected = sum(share * function(PAPER, depth) for depth, share in schedule)
        assert row[name] == pytest.approx(expected / flops.EFLOP)
    heads = paper_costs(["multijoint"])["multijoint", "pretrain"]["formula_eflops"]
    assert heads == pytest.approx(flops.pretrain_flops(PAPER, 12, num_heads=3) / flops.EFLOP)
