"""What the deepspeed launcher starts on two ranks: the steps of a recipe one after another, in one launch.

Usage: tensor_ranks.py RECIPE KEY=VALUE ...
"""

import sys

from ds_minimodel.engine.ranks.world import join_ranks
from ds_minimodel.pipeline.order import STEPS, RunsOn
from ds_minimodel.pipeline.run import run_step
from ds_minimodel.recipe.reading import load_recipe


def do_steps(path, overrides):
    recipe = load_recipe(path, overrides)
    world = join_ranks(recipe.engine.tensor_parallel)
    for step in STEPS.values():
        if step.runs_on is RunsOn.RANKS:
            run_step(step, recipe, world)


if __name__ == "__main__":
    path, *overrides = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")]
    do_steps(path, overrides)
