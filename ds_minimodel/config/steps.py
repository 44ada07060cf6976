"""Configuration of the steps beside pretraining: mini-models, adaptation, finetuning."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat

from ds_minimodel.common.config import (
    DECIDES_NOTHING,
    Few,
    Length,
    NonNegativeInt,
    PositiveInt,
    Probability,
    Section,
    Share,
    Size,
)
from ds_minimodel.common.names import Name
from ds_minimodel.config.systems import System
from ds_minimodel.evaluation import AnyTask
from ds_minimodel.evaluation.kind import FinetunedConfig
from ds_minimodel.training.config import Training


class BuildMini(Training):
    """Training of a mini-model's new layers, step 1b."""

    initialisation: Literal["random", "last"] = "random"
    """How new layers start; `last`: as copies of the body's last."""


# Share of the steps at the end in which schedule wsd decays.
DECAY = 0.2


class Adapt(Training):
    """Learning a target language, step 2."""

    schedule: Literal["linear", "wsd"] = "linear"
    """`wsd`: the rate stays until the last fifth, and `steps` may grow."""
    steps: NonNegativeInt = 125_000
    """Optimizer steps for each language. 0: its embeddings stay as they start."""
    initialisation: Literal["overlap", "random", "pieces", "aligned"] = "overlap"
    """How embeddings start."""
    replay: Probability = 0.0
    """With an extended vocabulary: share of samples in the source language."""
    replay_from: Literal["text", "base"] = "text"
    """The source's text; or what the base writes, and as much text of third languages, if given."""
    replay_kl: NonNegativeFloat = 0.0
    """`lora`, `base`: weight of the divergence from the base. 0: learned as text."""
    chat_share: Share = 0.25
    """With `data.chats`: share of dialogues among the other samples."""
    new_token_penalty: NonNegativeFloat = 0.0
    """If only embeddings train: weight of what new tokens add to the source's loss."""
    rates: dict[str, PositiveFloat] = {}
    """System → its own `lr`."""
    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """`lora`: rank."""
    strength: Annotated[float, Field(gt=0, le=1), DECIDES_NOTHING] = 1.0
    """`full`, `lora`: share of the body's change that is scored and exported."""
    snapshot_every: PositiveInt | None = None
    """Steps between packs that are kept and scored."""
    snapshot_at: list[PositiveInt] = []
    """Further such steps. The first and last always count."""

    @property
    def aligns(self) -> bool:
        """Whether embeddings start by pairs."""
        return self.initialisation == "aligned"

    @property
    def replays_own(self) -> bool:
        """Whether what is replayed is what the base writes by itself."""
        return self.replay_from == "base"

    @property
    def reads_source(self) -> bool:
        """Whether the source's text is read."""
        return (self.replay > 0 and not self.replays_own) or self.new_token_penalty > 0

    @property
    def decay_steps(self) -> int:
        """Steps in which the rate falls that stays until then: 0 but for schedule wsd."""
        if self.schedule == "linear" or not self.steps:
            return 0
        return max(1, round(DECAY * self.steps))

    def of(self, system: System, *, chats: bool = False) -> Self:
        """Return these settings as a system reads them; what it does not read is at its default.

        Args:
            system: the system that step 2 trains.
            chats: whether there are dialogues in the target language.
        """
        unread = {"rates"}
        unread.add("new_token_penalty" if system.trains else "strength")
        if system.trains != "low-rank":
            unread |= {"rank", "replay_kl"}
        if not chats:
            unread.add("chat_share")
        update: dict[str, Any] = {key: type(self).model_fields[key].default for key in unread}
        update["lr"] = self.rates.get(system.name, self.lr)
        return self.model_copy(update=update)

    def snapshots(self) -> list[int]:
        """Return the steps after which a pack is kept; step 0 is the pack as initialised."""
        steps = {0, self.steps, *self.snapshot_at}
        if self.snapshot_every:
            steps.update(range(0, self.steps, self.snapshot_every))
        return sorted(step for step in steps if step <= self.steps)


class Finetune(Section):
    """Tasks and how they are finetuned, step 3."""

    tasks: dict[Name, AnyTask] = {}
    """Name → task. Without tasks `run` ends with packs and losses."""
    seeds: Annotated[Few, DECIDES_NOTHING] = 5
    """Finetuning runs."""
    epochs: PositiveInt = 3
    """Passes over the training file."""
    batch_size: Size = 32
    """Examples of a step, over all ranks."""
    max_length: Length = 512
    """Most tokens of an example; longer texts are cut."""
    lr: PositiveFloat = 1e-5
    """Peak learning rate."""

    @property
    def finetuned_tasks(self) -> dict[str, FinetunedConfig]:
        """The tasks that are finetuned, with the defaults of `finetune` filled in."""
        tasks = {name: self.task(name) for name in self.tasks}
        return {name: task for name, task in tasks.items() if isinstance(task, FinetunedConfig)}

    def task(self, name: str) -> AnyTask:
        """Return a task with the defaults of `finetune` filled in."""
        task = self.tasks[name]
        unset = {key for key, value in task if value is None and key in type(self).model_fields}
        return task.model_copy(update={key: getattr(self, key) for key in unset})
