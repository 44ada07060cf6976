"""The weights of a run's best score so far, kept beside its checkpoints until the run is done.

best-00001000.safetensors  the weights after so many steps
best.json                  names the best of them and its score; written last, so that what it names is whole

They are on disk before a later checkpoint is: whichever one a run goes on from, the best score before it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    Amount,
    Count,
    Sha256,
    Stored,
    atomic_write,
    read_model,
    sha256_of_file,
    write_json,
)
from ds_minimodel.engine.ranks.world import World

_RECORD, _WEIGHTS = "best.json", "best-*.safetensors"


class Best(Stored):
    """A run's best score. job: hash of all that decides the run. sha256: of the file of weights."""

    job: str
    step: Count
    score: Amount
    sha256: Sha256


class BestWeights:
    """The best weights of one run. Every method is called on all ranks. UserError where they are damaged or missing."""

    def __init__(self, folder: Path, job: str, world: World) -> None:
        """folder: of the run's checkpoints. job: hash of all that decides its outcome."""
        self.folder, self.job, self.world = folder, job, world
        self.best = world.from_main(self._read)

    def offer(self, step: int, score: float, weights: Callable[[], Mapping[str, Tensor]], is_first: bool) -> None:
        """Keep the weights after `step` steps where no score before was as high. is_first: nothing was offered before.

        weights: gives them on rank 0; collective.
        """
        if self.best is None and not is_first:
            self.world.replicated(self._refuse)
        if self.best is None or score > self.best.score:
            tensors = weights()
            self.best = self.world.from_main(lambda: self._write(step, score, tensors))

    def load(self) -> tuple[int, dict[str, Tensor]]:
        """(steps, weights) of the best score; the weights on rank 0 alone, the others need none."""
        if self.best is None:
            self.world.replicated(self._refuse)
        assert self.best is not None
        return self.best.step, load_file(self._file(self.best.step)) if self.world.is_main else {}

    def _refuse(self) -> None:
        raise UserError(f"{self.folder / _RECORD}: missing; {self._advice}")

    def _read(self) -> Best | None:
        path = self.folder / _RECORD
        if not path.exists():
            return None
        best = read_model(path, Best, self._advice)
        weights = self._file(best.step)
        if best.job != self.job:
            raise UserError(f"{path}: of another run; {self._advice}")
        if not weights.is_file() or sha256_of_file(weights) != best.sha256:
            raise UserError(f"{weights}: missing, or its SHA-256 is not the one in {_RECORD}; {self._advice}")
        return best

    def _write(self, step: int, score: float, weights: Mapping[str, Tensor]) -> Best:
        path = self._file(step)
        with atomic_write(path) as file:
            file.write(save({name: tensor.contiguous() for name, tensor in weights.items()}))
        best = Best(job=self.job, step=step, score=score, sha256=sha256_of_file(path))
        write_json(self.folder / _RECORD, best.model_dump())
        for other in self.folder.glob(_WEIGHTS):
            if other != path:
                other.unlink()
        return best

    def _file(self, step: int) -> Path:
        return self.folder / _WEIGHTS.replace("*", f"{step:08}")

    @property
    def _advice(self) -> str:
        return f"put it back from a copy, or delete {self.folder} and run the step again"


def drop_best(folder: Path) -> None:
    """Remove the best weights of a finished run, whose artifact they are."""
    for path in (folder / _RECORD, *folder.glob(_WEIGHTS)):
        path.unlink(missing_ok=True)
