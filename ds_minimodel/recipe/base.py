"""The model that a recipe starts from where it does not pretrain one: a folder with `body` and `pack`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Manifest, Stored, read_artifact, read_model
from ds_minimodel.common.sections import OneOf
from ds_minimodel.models import BodyConfig, BodyConfigOfKind
from ds_minimodel.models.objectives import OBJECTIVES

REHEARSAL = "rehearsal"  # folder beside them: what the model writes by itself, a token store


@dataclass(frozen=True)
class Base:
    """Facts of a recipe's base: its body's architecture and objective, its pack's language and number of pieces."""

    config: BodyConfig
    objective: str
    language: str
    vocab_size: int


class _Body(Stored):
    """Of config.json what a recipe takes over."""

    architecture: BodyConfigOfKind
    head_depths: list[int]
    objective: Annotated[str, OneOf(OBJECTIVES)]
    task: object | None


class _Pack(Manifest):
    language: str
    rows: Annotated[int, Field(ge=1, le=2**31)]

    noun = "a language pack"
    kinds = ("language-pack",)


def read_base(folder: str | Path) -> Base:
    """The Base in `folder` as import-hf writes it; UserError where it is none or has other heads."""
    body, pack = Path(folder) / "body", Path(folder) / "pack"
    if not body.is_dir() or not pack.is_dir():
        raise UserError(
            f"base: {folder} does not hold the folders body and pack; make them with `ds-minimodel import-hf`"
        )
    held = read_model(body / "config.json", _Body, "import the model again")
    layers = held.architecture.num_layers
    if held.task is not None:
        raise UserError(f"base: {body} is a task model; a base is a body as import-hf or step 1 makes it")
    if held.head_depths != [layers]:
        raise UserError(
            f"base: {body} has heads after {held.head_depths} layers; a base has one, after its last ({layers})"
        )
    manifest = read_artifact(pack, _Pack)
    return Base(held.architecture, held.objective, manifest.language, manifest.rows)
