"""The order of the steps, and the run of one: its jobs that are not complete, one after another."""

import contextlib
import importlib
import sys

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import lock
from ds_minimodel.jobs import Layout, begin, finish, is_complete, lock_of, move_aside_if_stale

# In the order of the pipeline: step -> module of this package with its jobs.
STEPS = {
    "tokenizer": "tokenizer",
    "prepare": "prepare",
    "pretrain": "pretrain",
    "build-mini": "build_mini",
    "adapt": "adapt",
    "finetune": "finetune",
    "evaluate": "evaluate",
    "report": "baselines",
}
ON_RANKS = ("pretrain", "build-mini", "adapt", "finetune", "evaluate")
UNDER_MPIRUN = ("tokenizer", "prepare")  # take ranks of mpirun too; what is in neither runs in one process


def jobs(step, recipe):
    return importlib.import_module(f"ds_minimodel.steps.{STEPS[step]}").jobs(recipe, Layout(recipe.workdir))


def run_step(step, recipe, world=None, rebuild=False):
    """Do what is not complete of one step.

    world: the ranks (engine/world.py) for the steps in ON_RANKS; for the others None, or mpirun's
    (data/ranks.py), of which the first does them. rebuild: move aside what was made from another recipe and
    make it again, instead of refusing.
    """
    is_main = world is None or world.is_main
    on_main = _call if world is None else world.from_main
    if rebuild:
        from ds_minimodel.pipeline.check import NEEDS_TASKS, check_tasks

        if step in NEEDS_TASKS:  # now, and not when what was made from better files is moved aside
            on_main(lambda: check_tasks(recipe))
    for job in jobs(step, recipe):
        with contextlib.ExitStack() as held:
            on_main(lambda job=job, held=held: held.enter_context(lock(lock_of(job))))
            if rebuild:
                on_main(lambda job=job: move_aside_if_stale(job))
            if on_main(lambda job=job: begin(job)):
                if step in ON_RANKS:
                    job.make(world)
                else:
                    on_main(lambda job=job: job.make(world))
                on_main(lambda job=job: finish(job))
            elif is_main:
                print(f"{job.folder}: complete", file=sys.stderr)
    if step == "report":
        _report(recipe)


def _call(compute):
    return compute()


def _report(recipe):
    from ds_minimodel.pipeline.check import check_plots

    check_plots()
    from ds_minimodel.steps import report

    needed = [job for step in (*ON_RANKS, "report") for job in jobs(step, recipe)]
    for job in needed:
        if not is_complete(job):
            raise UserError(f"{job.folder}: not complete; run that step first, or `ds-minimodel run`")
    print(report.write(recipe, Layout(recipe.workdir), needed) / "report.html", file=sys.stderr)


def report_several(recipe, others):
    """The report over this recipe's run, which has its own, and the runs in the workdirs `others`."""
    from ds_minimodel.steps import report

    print(report.write_joint(Layout(recipe.workdir), others) / "report.html", file=sys.stderr)


def is_pending(step, recipe, rebuild=False):
    """Whether a step has anything to do; told without the ranks that would do it."""
    if rebuild:
        return True
    return not all(is_complete(job) for job in jobs(step, recipe))
