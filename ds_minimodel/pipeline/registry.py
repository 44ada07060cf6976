"""The steps of the pipeline in their order: what each is called, does and runs on."""

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.records import Job

if TYPE_CHECKING:
    from ds_minimodel.config.schema import Recipe
    from ds_minimodel.text.workers import MpiRanks
    from ds_minimodel.training.world import World


class RunsOn(Enum):
    """Which processes do a step's jobs."""

    RANKS = "all ranks, under every launcher"
    MPI_RANKS = "one process, or the ranks of mpirun"
    ONE_PROCESS = "one process"


@dataclass(frozen=True)
class Step:
    """A step of the pipeline, which has a command of its name.

    What it does is in pipeline/steps/NAME.py, with _ for -.

    Attributes:
        name: Of the step and its command.
        help: What `--help` says of it.
        runs_on: Processes that do its jobs.
        needs_tasks: Whether only a recipe with tasks has work for it.
        draws: Whether it needs matplotlib, an extra.
    """

    name: str
    help: str
    runs_on: RunsOn
    needs_tasks: bool = False
    draws: bool = False

    def jobs(self, recipe: "Recipe", ranks: "World | MpiRanks | None" = None) -> list[Job]:
        """Return its jobs for a recipe.

        Args:
            recipe: What the jobs are of.
            ranks: What does them; None where they are only looked at, or one process does them.
        """
        # A step brings torch or DeepSpeed with it, so it is imported where it is used.
        module = importlib.import_module(
            f"ds_minimodel.pipeline.steps.{self.name.replace('-', '_')}"
        )
        return module.jobs(recipe, Context(WorkdirLayout(recipe.workdir), ranks))


# In their order; --help shows them so.
STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step("corpus", "read the text of each language", RunsOn.MPI_RANKS),
        Step("tokenizer", "train a vocabulary for each language", RunsOn.MPI_RANKS),
        Step("prepare", "tokenise the text into token stores", RunsOn.MPI_RANKS),
        Step(
            "pretrain",
            "step 1: train the bodies with their heads on the source language",
            RunsOn.RANKS,
        ),
        Step("build-mini", "step 1b: train MiniPost's new layers", RunsOn.RANKS),
        Step(
            "adapt",
            "step 2: train each target language's embeddings over a frozen mini-model",
            RunsOn.RANKS,
        ),
        Step(
            "finetune",
            "step 3: finetune the bodies on tasks in the source language",
            RunsOn.RANKS,
            needs_tasks=True,
        ),
        Step(
            "evaluate",
            "step 4: plug the languages in and score them",
            RunsOn.RANKS,
            needs_tasks=True,
        ),
        Step(
            "report", "write tables, curves and costs as one page", RunsOn.ONE_PROCESS, draws=True
        ),
    )
}


def steps_of(recipe: "Recipe") -> list[Step]:
    """Return the steps that a recipe has work for, in their order."""
    return [step for step in STEPS.values() if recipe.finetune.tasks or not step.needs_tasks]
