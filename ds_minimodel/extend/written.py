"""The models that `extend` writes: OUT/model for transformers, OUT/adapter for PEFT."""

import shutil
from pathlib import Path

from ds_minimodel.artifacts.models import identity
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import replace_folder
from ds_minimodel.evaluation.comparison import Kept
from ds_minimodel.export.folder import export_adapter, export_hf
from ds_minimodel.extend.call import Call, Finished, TrainingBudget, adaptation_of
from ds_minimodel.hf.source import CARD
from ds_minimodel.pipeline.layout import WorkdirLayout


def write_models(call: Call, kept: Kept | None) -> None:
    """Write the models of the training that has ended, unless they are there."""
    recipe = call.recipe()
    (system,) = recipe.chosen_systems
    finished = Finished(
        hours=call.state.hours,
        tokens=call.state.tokens,
        steps=call.state.steps,
        pack=identity(adaptation_of(recipe) / "pack"),
        strength=recipe.adapt.of(system).strength,
        kept=kept.key if kept else None,
    )
    if finished != call.state.finished or not _are_as_written(call):
        _write(call, finished)


def write_finished_again(call: Call, budget: TrainingBudget) -> bool:
    """Write the models of the last finished training again, if the budget asks for those.

    A longer training has been begun since, and is not finished.

    Returns:
        Whether the models of the finished training are there.
    """
    finished = call.state.finished
    if finished is None or finished.steps == call.state.steps:
        return False
    if budget != (finished.hours, finished.tokens):
        return False
    if not _are_as_written(call):
        if identity(adaptation_of(call.recipe()) / "pack") != finished.pack:
            return False
        _write(call, finished)
    call.say(
        f"{call.out}: these are the models of the training that has ended; repeat the call that "
        "began the longer one to continue it"
    )
    return True


def _write(call: Call, finished: Finished) -> None:
    _refuse_to_remove(call)
    recipe = call.recipe()
    (system,) = recipe.chosen_systems
    base = WorkdirLayout(recipe.workdir).model(system)
    pack = adaptation_of(recipe) / "pack"
    strength = finished.strength
    # Where this process is killed meanwhile, no file there is taken for the user's.
    call.note(written={})
    replace_folder(call.out / "model", lambda new: export_hf(base, new, pack, strength=strength))
    if system.trains == "low-rank" and finished.steps:
        replace_folder(call.out / "adapter", lambda new: export_adapter(base, new, pack, strength))
    else:
        shutil.rmtree(call.out / "adapter", ignore_errors=True)
    call.note(finished=finished, written=_files(call))


def _files(call: Call) -> dict[str, list[int]]:
    """Return {name: [size, time]} of the files in the models' folders."""
    found = {}
    for folder in ("model", "adapter"):
        for file in (call.out / folder).glob("*"):
            stat = file.stat()
            found[str(file.relative_to(call.out))] = [stat.st_size, stat.st_mtime_ns]
    return found


def _is_card(name: str) -> bool:
    """Return whether a file is a model's card, which is the user's to edit."""
    return Path(name).name == CARD


def _are_as_written(call: Call) -> bool:
    """Return whether the models are there as they were written, but for their cards."""
    there = _files(call)
    written = call.state.written
    return bool(written) and all(
        there.get(name) == facts or _is_card(name) for name, facts in written.items()
    )


def _refuse_to_remove(call: Call) -> None:
    """Raise UserError where a user's file, or a card that was edited, would go with the models."""
    written = call.state.written
    if not written:
        return
    for name, facts in _files(call).items():
        if name not in written or (_is_card(name) and facts != written[name]):
            folder = call.out / Path(name).parts[0]
            raise UserError(
                f"{call.out / name}: not of extend, which is to write {folder} anew; move it away"
            )
