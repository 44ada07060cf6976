"""Running a step: its incomplete jobs, one after another."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


# A function that calls another on the first rank, and gives its value on all.
OnMain = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True)
class Ranks:
    """Ranks to start for a step.

    Without a count and hosts this process is the only rank, or one that a launcher started.

    Attributes:
        count: Ranks to start here, or on each host.
        hostfile: Hosts on which DeepSpeed's launcher starts them.
        deepspeed_args: More arguments of that launcher.
    """

    count: int | None = None
    hostfile: str | None = None
    deepspeed_args: Sequence[str] = ()


def run_recipe(recipe: Recipe, *, rebuild: bool = False) -> Path:
    """Do all that is left of a recipe in this process, on one rank, and return the workdir.

    What the steps say goes to standard error. SIGINT and SIGTERM save a training run and raise
    Stopped; the same call resumes from there.

    Args:
        recipe: What is to be done.
        rebuild: As of `run_step`.

    Raises:
        UserError: Something stops the recipe.
    """
    check_alone()
    # It must come before the imports, which bring DeepSpeed.
    name_the_cpu()
    for step in steps_to_run(recipe, ranks=1, rebuild=rebuild):
        run_step_here(step, recipe, rebuild=rebuild)
    return Path(recipe.workdir)


def check_alone() -> None:
    """Raise UserError where a launcher has started this process: not all steps run on ranks."""
    if launched():
        raise UserError(
            "run: start it without a launcher and give --ranks or --hostfile; launchers take "
            "single steps"
        )


def steps_to_run(recipe: Recipe, ranks: int, *, rebuild: bool) -> list[Step]:
    """Return the steps of a recipe, checked as far as can be before the first is begun.

    Args:
        recipe: What is to be done.
        ranks: Count of ranks that will do it.
        rebuild: As of `run_step`.

    Raises:
        UserError: Something would stop a step.
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
    *,
    ranks: Ranks = Ranks(),
    rebuild: bool = False,
) -> int:
    """Do one step, in this process or on ranks that it starts, and return the exit code.

    Ranks have explained an exit code that is not 0.

    Args:
        step: To be done.
        recipe: What the step is of.
        path: Of the recipe, which ranks read.
        overrides: Of the recipe.
        ranks: To be started.
        rebuild: As of `run_step`.

    Raises:
        UserError: Something stops the step.
    """
    if step.runs_on is not RunsOn.RANKS:
        _do_without_ranks(step, recipe, rebuild=rebuild)
        return 0
    if ranks.count is None and not ranks.hostfile:
        if launched():
            end_with_launcher()
        run_step_here(step, recipe, rebuild=rebuild)
        return 0
    if not is_pending(step, recipe, rebuild=rebuild):
        return 0
    arguments = [step.name, str(path), *overrides]
    if rebuild:
        arguments.append("--rebuild")
    if ranks.hostfile:
        return launch_on_hosts(arguments, ranks.hostfile, ranks.count, ranks.deepspeed_args)
    assert ranks.count is not None
    check_ranks(ranks.count)
    return launch(arguments, ranks.count)


def _do_without_ranks(step: Step, recipe: Recipe, *, rebuild: bool) -> None:
    """Do a step that runs in one process, or on the processes of mpirun."""
    # It must come before the step is imported, which may bring DeepSpeed.
    name_the_cpu()
    if (processes := processes_of_mpirun()) and step.runs_on is RunsOn.MPI_RANKS:
        from ds_minimodel.text.workers import MpiRanks

        run_step(step, recipe, MpiRanks.join(processes), rebuild=rebuild)
        # Not after an error: a process that ends without it makes mpirun end the others.
        MpiRanks.end()
        return
    if launched():
        raise UserError(f"{step.name}: it runs in one process; start it without a launcher")
    run_step(step, recipe, rebuild=rebuild)


def run_step_here(step: Step, recipe: Recipe, *, rebuild: bool = False) -> None:
    """Do one step in this process, as the rank that its launcher says, or alone."""
    if step.runs_on is not RunsOn.RANKS:
        run_step(step, recipe, rebuild=rebuild)
        return
    from ds_minimodel.training.world import join_ranks

    run_step(step, recipe, join_ranks(recipe.engine.tensor_parallel), rebuild=rebuild)


def run_step(
    step: Step, recipe: Recipe, world: World | MpiRanks | None = None, *, rebuild: bool = False
) -> None:
    """Do the incomplete jobs of one step.

    Args:
        step: To be done.
        recipe: What the jobs are of.
        world: A World for a step that runs on ranks; for the others None, or mpirun's, of which the
            first does the work.
        rebuild: Whether what was made from another recipe is moved aside and made again, instead of
            being refused.

    Raises:
        UserError: Something stops the step.
    """
    on_main: OnMain = (lambda compute: compute()) if world is None else world.broadcast_from_rank0
    is_main = world is None or world.is_main
    # Tasks are checked before what was made from better files is moved aside.
    if rebuild and step.needs_tasks:
        from ds_minimodel.pipeline.steps.finetune import check_tasks

        on_main(lambda: check_tasks(recipe))
    layout = WorkdirLayout(recipe.workdir)
    with contextlib.ExitStack() as held:
        on_main(lambda: held.enter_context(lock(layout.lock)))
        on_main(lambda: sweep_up(layout))
        # Listing the jobs of all steps takes time, and is left where no job has work.
        positions = functools.cache(partial(_positions, recipe))
        for job in step.jobs(recipe, world):
            on_main(partial(note_work, layout, job))
            was_complete = _do(
                job,
                layout,
                positions,
                step.runs_on,
                on_main,
                is_main=is_main,
                rebuild=rebuild,
            )
            if was_complete and is_main:
                print(printable(f"{job.folder}: complete"), file=sys.stderr)


def _positions(recipe: Recipe) -> dict[Path, str]:
    """Return {folder: "job 3 of 7"} of a recipe's jobs; empty where not all can be named yet."""
    with contextlib.suppress(UserError):
        folders = [job.folder for step in steps_of(recipe) for job in step.jobs(recipe)]
        return {
            folder: f"job {position} of {len(folders)}"
            for position, folder in enumerate(folders, 1)
        }
    return {}


def _do(
    job: Job,
    layout: WorkdirLayout,
    positions: Callable[[], dict[Path, str]],
    runs_on: RunsOn,
    on_main: OnMain,
    *,
    is_main: bool,
    rebuild: bool,
) -> bool:
    """Do a job, unless it is complete; return whether it was."""
    if rebuild:
        on_main(lambda: move_aside_if_stale(job))
    if job.has_record and not on_main(lambda: begin(job)):
        return True
    return_blocks()
    if is_main and job.folder in positions():
        print(printable(f"{positions()[job.folder]}: {job.folder}"), file=sys.stderr)
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


def is_pending(step: Step, recipe: Recipe, *, rebuild: bool = False) -> bool:
    """Return whether a step has anything to do, which is found out without starting ranks."""
    return rebuild or not all(is_complete(job) for job in step.jobs(recipe))
