"""What ranks do in one start: the steps of a recipe one after another."""

from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.registry import STEPS, RunsOn
from ds_minimodel.pipeline.run import run_step
from ds_minimodel.training.world import join_ranks


def do_steps(path, overrides):
    recipe = load_recipe(path, overrides)
    world = join_ranks(recipe.engine.tensor_parallel)
    for step in STEPS.values():
        if step.runs_on is RunsOn.RANKS:
            run_step(step, recipe, world)
