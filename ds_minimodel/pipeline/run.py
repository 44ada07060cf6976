"""Running a step: its incomplete jobs, one after another."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.common.errors import OtherRankError, UserError, printable
from ds_minimodel.common.files import lock
from ds_minimodel.common.memory import return_blocks, trim
from ds_minimodel.launch.hosts import check_ranks, launch, launch_on_hosts, name_the_cpu
from ds_minimodel.launch.process import end_with_launcher, launched, processes_of_mpirun
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.records import Job, is_complete
from ds_minimodel.pipeline.registry import STEPS, RunsOn, Step, steps_of
from ds_minimodel.pipeline.work import (
    begin,
    finish,
    move_aside_if_stale,
    note_work,
    sweep_up,
    withdraw,
)

if TYPE_CHECKING:
    from ds_minimodel.config.schema import Recipe
    from ds_minimodel.text.workers import MpiRanks
    from ds_minimodel.training.world import World


OnMain = Callable[
    [Callable[[], Any]], Any
]  # calls a function on the first rank, and gives its value on all


def run_recipe(recipe: Recipe, rebuild: bool = False) -> Path:
    """Do all that is left of a recipe in this process, on one rank, and return the workdir.

    What the steps say goes to standard error. SIGINT and SIGTERM save a training run and raise
    Stopped; the same call goes on from there.

    Args:
        recipe: what is to be done.
        rebuild: as of run_step.

    Raises:
        UserError: something stops the recipe.
    """
    check_alone()
    name_the_cpu()  # before the imports, which bring DeepSpeed
    for step in steps_to_run(recipe, 1, rebuild):
        run_step_here(step, recipe, rebuild)
    return Path(recipe.workdir)


def check_alone() -> None:
    """UserError where a launcher has started this process: not all steps run on ranks."""
    if launched():
        raise UserError(
            "run: start it without a launcher and give --ranks or --hostfile; launchers take "
            "single steps"
        )


def steps_to_run(recipe: Recipe, ranks: int, rebuild: bool) -> list[Step]:
    """The steps of a recipe, checked as far as can be before the first is begun; UserError for what
    is wrong.
    """
    from ds_minimodel.pipeline.check import check_ahead, check_made

    steps = check_ahead(recipe, STEPS.values(), ranks)
    if not rebuild:
        check_made(recipe, steps)
    return steps


def do_step(
    step: Step,
    recipe: Recipe,
    path: str | Path,
    overrides: Sequence[str] = (),
    ranks: int | None = None,
    hostfile: str | None = None,
    deepspeed_args: Sequence[str] | None = None,
    rebuild: bool = False,
) -> int:
    """Do one step, in this process or on ranks that it starts; the exit code, which these have
    explained.

    path, overrides: of the recipe, for ranks. ranks: to start here, or on each host of `hostfile`,
    which DeepSpeed's launcher starts with `deepspeed_args`; without both this process is the only
    rank, or one that a launcher started.
    """
    if step.runs_on is not RunsOn.RANKS:
        name_the_cpu()  # before the step is imported, which may bring DeepSpeed
        if (processes := processes_of_mpirun()) and step.runs_on is RunsOn.MPI_RANKS:
            from ds_minimodel.text.workers import MpiRanks

            run_step(step, recipe, MpiRanks.join(processes), rebuild)
            # Not after an error: a process that ends without it makes mpirun end the others
            MpiRanks.end()
            return 0
        if launched():
            raise UserError(f"{step.name}: it runs in one process; start it without a launcher")
        run_step(step, recipe, rebuild=rebuild)
        return 0
    if ranks is None and not hostfile:
        if launched():
            end_with_launcher()
        run_step_here(step, recipe, rebuild)
        return 0
    if not is_pending(step, recipe, rebuild):
        return 0
    arguments = [step.name, str(path), *overrides, *(["--rebuild"] if rebuild else [])]
    if hostfile:
        return launch_on_hosts(arguments, hostfile, ranks, deepspeed_args or [])
    assert ranks is not None
    check_ranks(ranks)
    return launch(arguments, ranks)


def run_step_here(step: Step, recipe: Recipe, rebuild: bool = False) -> None:
    """Do one step in this process, as the rank that its launcher says, or alone."""
    if step.runs_on is not RunsOn.RANKS:
        run_step(step, recipe, rebuild=rebuild)
        return
    from ds_minimodel.training.world import join_ranks

    run_step(step, recipe, join_ranks(recipe.engine.tensor_parallel), rebuild)


def run_step(
    step: Step, recipe: Recipe, world: World | MpiRanks | None = None, rebuild: bool = False
) -> None:
    """Do the incomplete jobs of one step.

    Args:
        step: to be done.
        recipe: that the jobs are of.
        world: a World for a step that runs on ranks; for the others None, or mpirun's, of which the
            first does the work.
        rebuild: move aside what was made from another recipe and make it again, instead of
            refusing.
    """
    on_main: OnMain = (lambda compute: compute()) if world is None else world.broadcast_from_rank0
    is_main = world is None or world.is_main
    if (
        rebuild and step.needs_tasks
    ):  # now, and not when what was made from better files is moved aside
        from ds_minimodel.pipeline.steps.finetune import check_tasks

        on_main(lambda: check_tasks(recipe))
    layout = WorkdirLayout(recipe.workdir)
    with contextlib.ExitStack() as held:
        on_main(lambda: held.enter_context(lock(layout.lock)))
        on_main(lambda: sweep_up(layout))
        places = functools.cache(partial(_places, recipe))  # of all steps, for those that have work
        for job in step.jobs(recipe, world):
            on_main(partial(note_work, layout, job))
            if _do(places, layout, job, on_main, is_main, step.runs_on, rebuild) and is_main:
                print(printable(f"{job.folder}: complete"), file=sys.stderr)


def _places(recipe: Recipe) -> dict[Path, str]:
    """{folder: which of all of the recipe's jobs lies there, in words}; empty where not all can be
    named yet.
    """
    with contextlib.suppress(UserError):
        folders = [job.folder for step in steps_of(recipe) for job in step.jobs(recipe)]
        return {
            folder: f"job {number} of {len(folders)}" for number, folder in enumerate(folders, 1)
        }
    return {}


def _do(
    places: Callable[[], dict[Path, str]],
    layout: WorkdirLayout,
    job: Job,
    on_main: OnMain,
    is_main: bool,
    runs_on: RunsOn,
    rebuild: bool,
) -> bool:
    """Do a job, unless it is complete; return whether it was."""
    if rebuild:
        on_main(lambda: move_aside_if_stale(job))
    if job.has_record and not on_main(lambda: begin(job)):
        return True
    return_blocks()
    if is_main and job.folder in places():
        print(printable(f"{places()[job.folder]}: {job.folder}"), file=sys.stderr)
    try:
        if runs_on is RunsOn.RANKS:
            job.make()
        else:
            on_main(job.make)
    except (UserError, OtherRankError):
        if is_main and job.has_record:
            withdraw(layout, job)
        raise
    if job.has_record:
        on_main(lambda: finish(job))
    if runs_on is RunsOn.RANKS:
        trim()
    return False


def is_pending(step: Step, recipe: Recipe, rebuild: bool = False) -> bool:
    """Whether a step has anything to do; found out without starting ranks."""
    return rebuild or not all(is_complete(job) for job in step.jobs(recipe))
