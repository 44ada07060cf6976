"""The weights of a run's best score so far, kept beside its checkpoints until the run is done: best.safetensors.

They are on disk before a later checkpoint is: whichever one a run goes on from, the best score before it is there.
Those up to the trunk of its schedule, which a longer run has, too, are in a file of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write
from ds_minimodel.training.ranks.world import World

_FILE, _OF_TRUNK = "best.safetensors", "best-of-trunk.safetensors"


class Best(NamedTuple):
    """A run's best score, and the step after which the model had it."""

    step: int
    score: float


class BestWeights:
    """The best weights of one run. Every method is called on all ranks. UserError where they are damaged or missing.

    The file's metadata hold the run, step, score and the SHA-256 of the tensors, so it is whole or not there.
    """

    def __init__(self, folder: Path, job: str, world: World, trunk: int = 0) -> None:
        """folder: of the run's checkpoints. job: hash of all that decides its outcome. trunk: of its schedule."""
        self.folder, self.job, self.world, self.trunk = folder, job, world, trunk
        self.best = world.from_main(lambda: self._read()[0] if self.path.exists() else None)

    @property
    def path(self) -> Path:
        """File of the best score: where there are two, what came after the trunk is better."""
        last, of_trunk = self.folder / _FILE, self.folder / _OF_TRUNK
        return of_trunk if of_trunk.exists() and not last.exists() else last

    def offer(self, step: int, score: float, weights: Callable[[], Mapping[str, Tensor]], is_first: bool) -> None:
        """Keep the weights after `step` steps where no score before was as high. is_first: nothing was offered before.

        weights: gives them on rank 0; collective.
        """
        if self.best is None and not is_first:
            self.world.replicated(lambda: self._refuse("missing"))
        if self.best is None or score > self.best.score:
            tensors, best = weights(), Best(step, score)
            self.world.from_main(lambda: self._write(best, tensors))
            self.best = best

    def load(self) -> tuple[int, dict[str, Tensor]]:
        """(steps, weights) of the best score; the weights on rank 0 alone, the others need none."""
        if self.best is None:
            self.world.replicated(lambda: self._refuse("missing"))
        assert self.best is not None
        return self.best.step, self._read()[1] if self.world.is_main else {}

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(
            f"{self.path}: {what}; put it back from a copy, or delete {self.path.parent} and run the step again"
        )

    def _read(self) -> tuple[Best, dict[str, Tensor]]:
        try:
            with safe_open(self.path, "pt") as file:
                facts, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            self._refuse(f"damaged ({error})")
        sha256 = facts.pop("sha256", None)
        if sha256 != _sha256(facts, tensors):
            self._refuse("its SHA-256 is not the one that it holds")
        if facts["job"] != self.job:
            self._refuse("of another run")
        return Best(int(facts["step"]), float(facts["score"])), tensors

    def _write(self, best: Best, weights: Mapping[str, Tensor]) -> None:
        tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
        facts = {"job": self.job, "step": str(best.step), "score": repr(best.score)}
        with atomic_write(self.folder / (_FILE if best.step > self.trunk else _OF_TRUNK)) as file:
            file.write(save(tensors, {**facts, "sha256": _sha256(facts, tensors)}))


def _sha256(facts: Mapping[str, str], tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + save(tensors)).hexdigest()


def drop_best(folder: Path, trunk: int = 0) -> None:
    """Remove the best weights of a finished run, whose artifact they are, but those that a longer one has, too."""
    for name in (_FILE, *([] if trunk else [_OF_TRUNK])):
        (folder / name).unlink(missing_ok=True)
