"""Artifacts on disk: bodies, task models and language packs, as safetensors with a manifest, without pickles.

Body, mini-model, task model: `config.json`, `model.safetensors`, `manifest.json`.
Language pack: `tokenizer.model` (SentencePiece) or `tokenizer.json` (byte-level BPE),
`embeddings.safetensors`, `manifest.json`.
All of one family carry the same `space`, the hash of the pretrained body and embeddings that they descend
from. A pack fits a body of its own space and no other.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    MANIFEST,
    Amount,
    Count,
    Manifest,
    Stored,
    atomic_folder,
    read_artifact,
    read_model,
    sha256_of_file,
    write_json,
    write_manifest,
)
from ds_minimodel.model.parameters import load_into
from ds_minimodel.model.transformer import Body, BodyConfig
from ds_minimodel.parallel import full_shape, own_part

BODY_WEIGHTS = "model.safetensors"
PACK_WEIGHTS = "embeddings.safetensors"


_MAKE_AGAIN = "put it back from a copy, or delete its folder and run the step again"

Size = Annotated[int, Field(ge=1, le=2**24)]
Rate = Annotated[float, Field(ge=0, lt=1)]


class Architecture(Stored):
    """A BodyConfig in config.json."""

    num_layers: Annotated[int, Field(ge=1, le=1000)]
    hidden_size: Size
    num_heads: Size
    ffn_size: Size
    max_positions: Size
    head_depths: list[Size]
    dropout: Rate
    attention_dropout: Rate

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide hidden_size {self.hidden_size}")
        if max(self.head_depths, default=0) > self.num_layers:
            raise ValueError(f"head_depths {self.head_depths}: there are {self.num_layers} layers")
        return self

    def config(self) -> BodyConfig:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return BodyConfig(**{**values, "head_depths": tuple(self.head_depths)})


class TaskOfModel(Stored):
    """What a task model was finetuned on, in config.json."""

    kind: str
    labels: list[str] | None


class BodyFile(Stored):
    """config.json of a body."""

    architecture: Architecture
    space: str
    task: TaskOfModel | None


class BodyManifest(Manifest):
    """Manifest of a body, mini-model or task model."""

    noun = "a body"
    kinds = ("body", "mini-model", "task-model")
    required = (("config.json",), (BODY_WEIGHTS,))


class PackManifest(Manifest):
    """Manifest of a language pack."""

    language: str
    space: str
    vocab_size: Count
    steps: Count
    eflops: Amount

    noun = "a language pack"
    kinds = ("language-pack",)
    required = ((PACK_WEIGHTS,), ("tokenizer.model", "tokenizer.json"))


@dataclass
class BodyArtifact:
    """A body. `tensors` has the names of the module's state dict; `task` is set on task models."""

    config: BodyConfig
    tensors: dict[str, Tensor]
    space: str
    task: dict | None = None


@dataclass
class PackArtifact:
    """A language: `tensors` tokens (V, H), bias (V), and what else was trained with them.

    A name that starts with `body.` replaces that tensor of the body while the pack is plugged in. steps,
    eflops: what its training took.
    """

    language: str
    tensors: dict[str, Tensor]
    space: str
    steps: int = 0
    eflops: float = 0.0


def identity(folder: str | Path) -> str:
    """Hash of an artifact's manifest, and so of all its files; children name their parents by it."""
    try:
        return sha256_of_file(Path(folder) / MANIFEST)
    except OSError as error:
        raise UserError(f"{Path(folder) / MANIFEST}: cannot be read ({error.strerror}); {_MAKE_AGAIN}") from None


def space_of(*tensor_dicts: dict[str, Tensor]) -> str:
    """Hash of named tensors (names, shapes and bits): the identity of an embedding space."""
    digest = hashlib.sha256()
    for tensors in tensor_dicts:
        for name in sorted(tensors):
            tensor = tensors[name].contiguous()
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def save_body(folder: str | Path, artifact: BodyArtifact, kind: str, **facts: Any) -> None:
    """Write a body (`kind`: body, mini-model or task-model); `facts` go into the manifest."""
    with atomic_folder(folder) as temporary:
        config = {"architecture": asdict(artifact.config), "space": artifact.space, "task": artifact.task}
        write_json(temporary / "config.json", config)
        _save(artifact.tensors, temporary / BODY_WEIGHTS)
        write_manifest(temporary, kind=kind, space=artifact.space, **facts)


def load_body(folder: str | Path) -> BodyArtifact:
    """Read a body, mini-model or task model; UserError where it is missing, damaged or something else."""
    folder = Path(folder)
    read_artifact(folder, BodyManifest, verify=True)
    file = read_model(folder / "config.json", BodyFile, _MAKE_AGAIN)
    tensors, config = _load(folder / BODY_WEIGHTS), file.architecture.config()
    _check_body(folder, config, tensors, "" if file.task is None else "body.")
    task = None if file.task is None else file.task.model_dump()
    return BodyArtifact(config, tensors, file.space, task)


def _check_body(folder: Path, config: BodyConfig, tensors: dict[str, Tensor], prefix: str) -> None:
    """UserError where the weights are not those of a body of this `config`, so that nothing is made of its sizes."""
    with torch.device("meta"):
        expected = {prefix + name: tensor.shape for name, tensor in Body(config).state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items() if name.startswith(prefix)}
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            shapes = [tuple(shape) if shape is not None else "none" for shape in (expected.get(name), found.get(name))]
            raise UserError(
                f"{folder}: {name} is of shape {shapes[0]} by config.json, {shapes[1]} in {BODY_WEIGHTS}; {_MAKE_AGAIN}"
            )


def load_task_model(module: nn.Module, model: BodyArtifact, folder: str | Path) -> None:
    """Put a task model into the module of its kind, all but the pack; UserError where the two differ."""
    expected = {name: full_shape(parameter) for name, parameter in module.named_parameters()}
    for name in sorted({*expected, *model.tensors}):
        shape = model.tensors[name].shape if name in model.tensors else None
        if not name.startswith("pack.") and expected.get(name) != shape:
            raise UserError(f"{folder}: {name} is not the one of a {(model.task or {})['kind']} model; {_MAKE_AGAIN}")
    load_into(module, model.tensors)


def save_pack(folder: str | Path, artifact: PackArtifact, tokenizer_folder: str | Path, **facts: Any) -> None:
    """Write a language pack with the vocabulary in `tokenizer_folder`; `facts` go into the manifest."""
    with atomic_folder(folder) as temporary:
        _save(artifact.tensors, temporary / PACK_WEIGHTS)
        for name in read_artifact(tokenizer_folder, Manifest, verify=True).files.keys() - {PACK_WEIGHTS}:
            shutil.copyfile(Path(tokenizer_folder) / name, temporary / name)
        write_manifest(
            temporary,
            kind="language-pack",
            language=artifact.language,
            space=artifact.space,
            vocab_size=len(artifact.tensors["tokens"]),
            steps=artifact.steps,
            eflops=artifact.eflops,
            **facts,
        )


def load_pack(
    folder: str | Path, space: str | None = None, language: str | None = None, steps: int | None = None
) -> PackArtifact:
    """Read a language pack; UserError where it is damaged or, with `space`, of another body.

    language, steps: what the pack in this place must be of, where that is known.
    """
    manifest = read_artifact(folder, PackManifest, verify=True)
    if space is not None and manifest.space != space:
        raise UserError(
            f"{folder}: this pack was trained for embedding space {manifest.space}, the body "
            f"has {space}; use a pack adapted to this body, or adapt one"
        )
    for what, here, there in (("language", language, manifest.language), ("step", steps, manifest.steps)):
        if here is not None and here != there:
            raise UserError(f"{folder}: the pack of {what} {there} in the place of that of {here}; {_MAKE_AGAIN}")
    tensors = _load(Path(folder) / PACK_WEIGHTS)
    shapes = [tuple(tensors[name].shape) if name in tensors else () for name in ("tokens", "bias")]
    if len(shapes[0]) != 2 or shapes != [(manifest.vocab_size, shapes[0][1]), (manifest.vocab_size,)]:
        raise UserError(
            f"{Path(folder) / PACK_WEIGHTS}: tokens and bias of shapes {shapes[0]} and {shapes[1]} are not those of "
            f"{manifest.vocab_size} pieces; {_MAKE_AGAIN}"
        )
    return PackArtifact(manifest.language, tensors, manifest.space, manifest.steps, manifest.eflops)


def plug(model: nn.Module, pack: PackArtifact) -> None:
    """Put a pack's tensors into `model` (its `pack` and, where the pack carries them, tensors of its body).

    The model's pack must already have the vocabulary's size.
    """
    parameters = dict(model.named_parameters())
    for name, tensor in pack.tensors.items():
        parameter = parameters.get(name if name.startswith("body.") else f"pack.{name}")
        if parameter is None or full_shape(parameter) != tensor.shape:
            raise UserError(
                f"language pack {pack.language}: {name} of shape {tuple(tensor.shape)} does not fit this model"
            )
        parameter.data.copy_(own_part(parameter, tensor))


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or unreadable ({error}); {_MAKE_AGAIN}") from None
