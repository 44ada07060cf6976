"""The order of the steps, and the run of one: its jobs that are not complete, one after another."""

import importlib
import sys

from ds_minimodel.steps.jobs import Layout, begin, finish, is_complete, move_aside_if_stale

# In the order of the pipeline: step -> module of this package with its jobs.
STEPS = {"tokenizer": "tokenizer", "prepare": "prepare", "pretrain": "pretrain", "build-mini": "build_mini",
         "adapt": "adapt", "finetune": "finetune", "evaluate": "evaluate", "report": "baselines"}
ON_RANKS = ("pretrain", "build-mini", "adapt", "finetune", "evaluate")      # the others run in one process


def jobs(step, recipe):
    return importlib.import_module(f"ds_minimodel.steps.{STEPS[step]}").jobs(recipe, Layout(recipe.workdir))


def run_step(step, recipe, world=None, rebuild=False):
    """Do what is not complete of one step.

    world: the ranks (engine/world.py) for the steps in ON_RANKS. rebuild: move aside what was made from
    another recipe and make it again, instead of refusing.
    """
    is_main = world is None or world.is_main
    for job in jobs(step, recipe):
        if is_main and rebuild:
            move_aside_if_stale(job)
        if not (begin(job) if world is None else world.from_main(lambda job=job: begin(job))):
            if is_main:
                print(f"{job.folder}: complete", file=sys.stderr)
            continue
        job.make(world)
        if is_main:
            finish(job)
        if world is not None:
            world.barrier()
    if step == "report":
        from ds_minimodel.steps import report
        print(report.write(recipe, Layout(recipe.workdir)) / "report.html", file=sys.stderr)


def is_pending(step, recipe, rebuild=False):
    """Whether a step has anything to do; told without the ranks that would do it."""
    if rebuild:
        return True
    return not all(is_complete(job) for job in jobs(step, recipe))
