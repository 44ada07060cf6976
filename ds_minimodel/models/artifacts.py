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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import model_validator
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
from ds_minimodel.common.names import Name
from ds_minimodel.common.sections import OneOf
from ds_minimodel.common.vocabulary import VocabularyManifest
from ds_minimodel.models import BodyConfig, BodyConfigOfKind, make_body
from ds_minimodel.models.body import KEPT
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import load_into
from ds_minimodel.ops.parallel import full_shape, own_part

BODY_WEIGHTS = "model.safetensors"
PACK_WEIGHTS = "embeddings.safetensors"


_MAKE_AGAIN = "put it back from a copy, or delete its folder and run the step again"


class TaskOfModel(Stored):
    """What a task model was finetuned on, in config.json."""

    kind: str
    labels: list[str] | None


class BodyFile(Stored):
    """config.json of a body. objective: what its heads were trained with. architecture: BodyConfig of its kind."""

    architecture: BodyConfigOfKind
    head_depths: list[Count]
    objective: Annotated[str, OneOf(OBJECTIVES)]
    space: str
    task: TaskOfModel | None

    @model_validator(mode="after")
    def _depths_are_the_bodys(self) -> Self:
        layers = self.architecture.num_layers
        if self.head_depths != sorted({*self.head_depths} & {*range(1, layers + 1)}):
            raise ValueError(f"head_depths {self.head_depths!s:.60} are not rising: there are {layers} layers")
        return self


class BodyManifest(Manifest):
    """Manifest of a body, mini-model or task model."""

    space: str

    noun = "a body"
    kinds = ("body", "mini-model", "task-model")
    required = (("config.json",), (BODY_WEIGHTS,))


class PackManifest(VocabularyManifest):
    """Manifest of a language pack. rows: of its embeddings, as many as its vocabulary has ids, or more, but for those
    that it keeps of its base. kept_of: identity of the base's pack, which has these."""

    language: Name
    space: str
    rows: Count
    steps: Count
    eflops: Amount
    kept_of: str = ""

    noun = "a language pack"
    kinds = ("language-pack",)
    required = ((PACK_WEIGHTS,), ("tokenizer.model", "tokenizer.json"))


@dataclass
class BodyArtifact:
    """A body with heads after `head_depths` layers, trained with `objective`; `task` is set on task models.

    tensors: by the names of the module's state dict.
    """

    config: BodyConfig
    head_depths: tuple[int, ...]
    tensors: dict[str, Tensor]
    space: str
    task: dict | None = None
    objective: str = "masked-lm"


@dataclass
class PackArtifact:
    """A language: `tensors` tokens (V, H) and the others of BodyConfig.language_tensors, and what else was trained.

    A name that starts with `body.` replaces that tensor of the body while the pack is plugged in. steps,
    eflops: what its training took. kept, kept_of: of a language that extends a base's, how many rows before its own it
    has of the base, and the identity of the base's pack.
    """

    language: str
    tensors: dict[str, Tensor]
    space: str
    steps: int = 0
    eflops: float = 0.0
    kept: int = 0
    kept_of: str = ""


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
        config = {
            "architecture": artifact.config.model_dump(),
            "head_depths": artifact.head_depths,
            "objective": artifact.objective,
            "space": artifact.space,
            "task": artifact.task,
        }
        write_json(temporary / "config.json", config)
        _save(artifact.tensors, temporary / BODY_WEIGHTS)
        write_manifest(temporary, kind=kind, space=artifact.space, **facts)


def load_body(folder: str | Path) -> BodyArtifact:
    """Read a body, mini-model or task model; UserError where it is missing, damaged or something else."""
    folder = Path(folder)
    manifest = read_artifact(folder, BodyManifest, verify=True)
    file = read_model(folder / "config.json", BodyFile, _MAKE_AGAIN)
    if file.space != manifest.space or (file.task is None) == (manifest.kind == "task-model"):
        raise UserError(f"{folder}: config.json and {MANIFEST} say another space or kind; {_MAKE_AGAIN}")
    tensors = _load(folder / BODY_WEIGHTS)
    _check_body(folder, file, tensors, "" if file.task is None else "body.")
    task = None if file.task is None else file.task.model_dump()
    return BodyArtifact(file.architecture, tuple(file.head_depths), tensors, file.space, task, file.objective)


def _check_body(folder: Path, file: BodyFile, tensors: dict[str, Tensor], prefix: str) -> None:
    """UserError where the weights are not those that `file` describes, so that nothing is made of its sizes."""
    with torch.device("meta"):
        body = make_body(file.architecture, file.head_depths)
        expected = {prefix + name: tensor.shape for name, tensor in body.state_dict().items()}
    _check_shapes(folder, expected, {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)})


def _check_shapes(folder: str | Path, expected: Mapping[str, torch.Size], tensors: Mapping[str, Tensor]) -> None:
    """UserError that names the first tensor which is of another shape than expected, missing or one too many."""
    for name in sorted({*expected, *tensors}):
        shapes = expected.get(name), tensors[name].shape if name in tensors else None
        if shapes[0] != shapes[1]:
            by_file, found = ("none" if shape is None else tuple(shape) for shape in shapes)
            raise UserError(
                f"{folder}: {name} is of shape {by_file} by config.json, {found} in {BODY_WEIGHTS}; {_MAKE_AGAIN}"
            )


def load_task_model(module: nn.Module, model: BodyArtifact, folder: str | Path) -> None:
    """Put a task model into the module of its kind, all but the pack; UserError where the two differ."""
    check_task_model(module, model, folder)
    load_into(module, model.tensors)


def check_task_model(module: nn.Module, model: BodyArtifact, folder: str | Path) -> None:
    """UserError where the weights of a task model are not those of the module of its kind, which holds no pack."""
    expected = {name: full_shape(parameter) for name, parameter in module.named_parameters()}
    _check_shapes(folder, {name: expected[name] for name in expected if not name.startswith("pack.")}, model.tensors)


def save_pack(folder: str | Path, artifact: PackArtifact, tokenizer_folder: str | Path, **facts: Any) -> None:
    """Write a language pack with the vocabulary in `tokenizer_folder`; `facts` go into the manifest."""
    with atomic_folder(folder) as temporary:
        _save(artifact.tensors, temporary / PACK_WEIGHTS)
        tokenizer = read_artifact(tokenizer_folder, VocabularyManifest, verify=True)
        for name in tokenizer.files.keys() - {PACK_WEIGHTS}:
            shutil.copyfile(Path(tokenizer_folder) / name, temporary / name)
        write_manifest(
            temporary,
            kind="language-pack",
            language=artifact.language,
            space=artifact.space,
            rows=len(artifact.tensors["tokens"]),
            **replace(tokenizer.vocabulary(tokenizer_folder), kept=artifact.kept).facts(),
            steps=artifact.steps,
            eflops=artifact.eflops,
            **({"kept_of": artifact.kept_of} if artifact.kept_of else {}),
            **facts,
        )


def whole_pack(pack: PackArtifact, folder: str | Path, body: str | Path) -> PackArtifact:
    """The pack in `folder` with all of its rows: those that it keeps of its base come from the base's pack.

    That lies beside the folder `body` of a model, or where the steps of a recipe leave it. UserError where it does not.
    """
    if not pack.kept:
        return pack
    workdirs = Path(folder).resolve().parents
    places = [Path(body).parent / "pack", *(place for each in workdirs for place in each.glob("pretrain/*/pack"))]
    base = next((place for place in places if place.is_dir() and identity(place) == pack.kept_of), None)
    if base is None:
        raise UserError(f"{folder}: has new rows alone, and the pack that they extend is not {places[0]}; put it there")
    return replace(pack, tensors=all_rows(load_pack(base, pack.space).tensors, pack.tensors), kept=0, kept_of="")


def all_rows(base: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors `own` of a language that extends its base's vocabulary, the base's rows before its own."""
    return {name: torch.cat((base[name], rows)) if name in base else rows for name, rows in own.items()}


def load_pack(
    folder: str | Path, space: str | None = None, language: str | None = None, steps: int | None = None
) -> PackArtifact:
    """Read a language pack; UserError where it is damaged or, with `space`, of another body.

    language, steps: what the pack in this place must be of, where that is known.
    """
    manifest = read_artifact(folder, PackManifest, verify=True)
    if space is not None:
        check_space(folder, manifest.space, space)
    for what, here, there in (("language", language, manifest.language), ("step", steps, manifest.steps)):
        if here is not None and here != there:
            raise UserError(f"{folder}: the pack of {what} {there} in the place of that of {here}; {_MAKE_AGAIN}")
    tensors = _load(Path(folder) / PACK_WEIGHTS)
    own = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not name.startswith("body.")}
    rows, tokens = manifest.rows, own.get("tokens", ())
    expected = {"tokens": (rows, *tokens[1:]), "output": (rows, *tokens[1:]), "bias": (rows,)}
    agree = all(expected.get(name) == shape for name, shape in own.items())
    if len(tokens) != 2 or manifest.kept + rows < manifest.vocab_size or not agree:
        raise UserError(
            f"{Path(folder) / PACK_WEIGHTS}: tensors of shapes {own!s:.120} are not those of {rows} rows for "
            f"{manifest.vocab_size} ids; {_MAKE_AGAIN}"
        )
    facts = manifest.steps, manifest.eflops, manifest.kept, manifest.kept_of
    return PackArtifact(manifest.language, tensors, manifest.space, *facts)


def check_space(what: str | Path, of_pack: str, of_body: str) -> None:
    """UserError, beginning with `what`, where a pack is of another embedding space than a body."""
    if of_pack != of_body:
        raise UserError(
            f"{what}: this pack was trained for embedding space {of_pack}, the body "
            f"has {of_body}; use a pack adapted to this body, or adapt one"
        )


def check_fit(folder: str | Path, pack: PackArtifact, body: BodyArtifact) -> None:
    """UserError where the tensors of the pack in `folder` do not fit a body of its embedding space."""
    width = pack.tensors["tokens"].shape[1]
    if width != body.config.hidden_size:
        raise UserError(f"{folder}: embeddings of size {width}, the body has {body.config.hidden_size}")
    needed = set(body.config.language_tensors)
    has = {name for name in pack.tensors if not name.startswith("body.")}
    if has != needed:
        named = [", ".join(sorted(names)) for names in (has, needed)]
        raise UserError(f"{folder}: the pack holds {named[0]}, where languages of this body have {named[1]}")
    if body.task is not None and any(name.startswith("body.layers.") for name in pack.tensors):
        raise UserError(f"{folder}: has a body of its own, which is not the one that the task was finetuned on")
    for name, tensor in pack.tensors.items():
        own = body.tensors.get(name if body.task else name.removeprefix("body."))
        if name.startswith("body.") and (own is None or own.shape != tensor.shape):
            raise UserError(f"{folder}: replaces {name} of shape {tuple(tensor.shape)}, which the body has not")


def plug(model: nn.Module, pack: PackArtifact) -> None:
    """Put a pack's tensors into `model` (its `pack` and, where the pack carries them, tensors of its body).

    The model's pack must already have the vocabulary's size.
    """
    parameters = dict(model.named_parameters())
    for name, tensor in pack.tensors.items():
        parameter = parameters.get(name if name.startswith("body.") else f"pack.{name}")
        assert parameter is not None and full_shape(parameter) == tensor.shape, (pack.language, name)
        parameter.data.copy_(own_part(parameter, tensor))


def keep_rows(model: nn.Module, base: PackArtifact, kept: int) -> None:
    """Put the base's rows that an extended language keeps into `model`; where it keeps none, nothing is done."""
    if kept:
        load_into(model, {KEPT + name: rows for name, rows in base.tensors.items()}, "pack.")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _load(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; UserError where it is damaged, or one holds what is no number that fp32 has."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or unreadable ({error}); {_MAKE_AGAIN}") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UserError(f"{path}: {name!r:.80} is of type {tensor.dtype}, where weights are fp32; {_MAKE_AGAIN}")
        if not tensor.isfinite().all():
            raise UserError(f"{path}: {name!r:.80} holds NaN or infinite numbers; {_MAKE_AGAIN}")
    return tensors
