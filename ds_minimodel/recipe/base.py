"""The model that a recipe starts from where it does not pretrain one: a folder with `body` and `pack`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Manifest, Stored, read_artifact, read_model


@dataclass(frozen=True)
class Base:
    """Facts of a recipe's base.

    model: the architecture, by the keys of the recipe's section `model`. further: what its body has that a recipe does
    not choose (norm_eps, token_types), where it is not as in RoBERTa. vocab_size: rows of its pack's embeddings.
    """

    model: dict[str, Any]
    further: dict[str, Any]
    language: str
    vocab_size: int


class _Architecture(Stored):
    """Part of config.json of which the recipe's section `model` is made, which checks the other sizes."""

    num_layers: int
    head_depths: list[int]


_FURTHER = ("norm_eps", "token_types")


class _Config(Stored):
    architecture: _Architecture


class _Pack(Manifest):
    language: str
    rows: Annotated[int, Field(ge=1, le=2**31)]

    noun = "a language pack"
    kinds = ("language-pack",)


def read_base(folder: str | Path) -> Base:
    """The Base in `folder` as import-hf writes it; UserError where it is none or has heads at other depths."""
    body, pack = Path(folder) / "body", Path(folder) / "pack"
    if not body.is_dir() or not pack.is_dir():
        raise UserError(
            f"base: {folder} does not hold the folders body and pack; make them with `ds-minimodel import-hf`"
        )
    model = read_model(body / "config.json", _Config, "import the model again").architecture.model_dump()
    depths = model.pop("head_depths")
    if depths != [model["num_layers"]]:
        raise UserError(
            f"base: {body} has masked-LM heads after {depths} layers; a base has one, after its last "
            f"({model['num_layers']})"
        )
    further = {key: model.pop(key) for key in _FURTHER if key in model}
    manifest = read_artifact(pack, _Pack)
    return Base(model, further, manifest.language, manifest.rows)
