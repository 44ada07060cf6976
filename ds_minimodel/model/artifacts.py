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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field, FiniteFloat, NonNegativeInt
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, atomic_folder, read_manifest, sha256_of_file, write_json, write_manifest
from ds_minimodel.common.random import FIRST_STREAM
from ds_minimodel.common.typed import Probability, Strict, Typed, read_typed
from ds_minimodel.common.vocabulary import NUM_SPECIAL
from ds_minimodel.model.transformer import Body, BodyConfig
from ds_minimodel.parallel import full_shape, own_part

BODY_WEIGHTS = "model.safetensors"
PACK_WEIGHTS = "embeddings.safetensors"


# Bounds of sizes that a file gives, above all that is trained: nothing is made of such a size before they hold.
Layers = Annotated[int, Field(ge=1, le=1 << 12)]
Width = Annotated[int, Field(ge=1, le=1 << 20)]
Positions = Annotated[int, Field(ge=1, le=1 << 24)]
Ids = Annotated[int, Field(gt=NUM_SPECIAL, le=1 << 24)]  # of a vocabulary


class _Architecture(Strict):
    """BodyConfig as config.json has it."""

    num_layers: Layers
    hidden_size: Width
    num_heads: Width
    ffn_size: Width
    max_positions: Positions
    head_depths: list[Layers]
    dropout: Probability
    attention_dropout: Probability


class _Task(Strict):
    name: str
    kind: str
    labels: list[str] | None


class _BodyFile(Strict):
    """config.json of a body, mini-model or task model."""

    architecture: _Architecture
    space: str
    task: _Task | None


class _BodyManifest(Typed):
    kind: Literal["body", "mini-model", "task-model"]
    space: str
    files: dict[str, Any]


class _PackManifest(Typed):
    kind: Literal["language-pack"]
    space: str
    files: dict[str, Any]
    language: str
    vocab_size: Ids
    steps: NonNegativeInt
    eflops: Annotated[FiniteFloat, Field(ge=0)]


class _Kind(Typed):
    kind: str


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
    return sha256_of_file(Path(folder) / MANIFEST)


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
    """Read a body, mini-model or task model; UserError where it is missing or damaged, or its parts disagree.

    Of a task model's head only the values are checked here; names and shapes are its kind's (tasks/).
    """
    folder = Path(folder)
    manifest = _verified(folder, _BodyManifest, "a body, mini-model or task model", "config.json", BODY_WEIGHTS)
    where, weights = folder / "config.json", folder / BODY_WEIGHTS
    config = read_typed(where, _BodyFile)
    values = config.architecture.model_dump()
    body = BodyConfig(**{**values, "head_depths": tuple(values["head_depths"])})
    fault = architecture_fault(body)
    if not fault and config.space != manifest.space:
        fault = f"space {config.space!r:.40}, but {MANIFEST} has {manifest.space!r:.40}"
    if not fault and (config.task is None) == (manifest.kind == "task-model"):
        fault = f"task {'missing' if config.task is None else 'given'}, but {MANIFEST} says {manifest.kind}"
    if fault:
        raise UserError(f"{where}: {fault}")
    tensors = _load(weights)
    own = {name.removeprefix("body."): tensor for name, tensor in tensors.items() if name.startswith("body.")}
    check_tensors(own if config.task else tensors, _shapes(body, weights, tensors), weights)
    check_values(tensors, weights)
    return BodyArtifact(body, tensors, config.space, config.task.model_dump() if config.task else None)


def architecture_fault(config: BodyConfig) -> str | None:
    """What sizes of a body that are each possible are not together, None where nothing is wrong."""
    if config.hidden_size % config.num_heads:
        return f"a hidden size of {config.hidden_size} is not a multiple of {config.num_heads} heads"
    if config.num_layers * (config.num_heads + 2) + 3 > FIRST_STREAM:
        return f"{config.num_heads} heads in each of {config.num_layers} layers are too many"
    depths = config.head_depths
    if list(depths) != sorted({*depths} & {*range(1, config.num_layers + 1)}):
        return f"head_depths {list(depths)!s:.40} are not rising numbers of at most {config.num_layers} layers"
    return None


def _shapes(config: BodyConfig, where: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a body of `config`, without storage; UserError where `tensors` are too few for its layers."""
    if len(tensors) < config.num_layers:
        raise UserError(f"{where}: {len(tensors)} tensors cannot be a body of {config.num_layers} layers")
    with torch.device("meta"):
        return Body(config).state_dict()


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str | Path) -> None:
    """UserError where the names or shapes of `tensors`, from the file `where`, are not those of `expected`."""
    for name in sorted(expected.keys() ^ tensors.keys()):
        what = f"no tensor {name}" if name in expected else f"a tensor {name!r:.80} that does not belong to it"
        raise UserError(f"{where}: {what}; its configuration is of another model")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            shape, given = tuple(tensor.shape), tuple(expected[name].shape)
            raise UserError(f"{where}: {name} has shape {shape}, its configuration gives {given}")


def check_values(tensors: Mapping[str, Tensor], where: str | Path) -> None:
    """UserError where a tensor is not of finite fp32 numbers."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise UserError(f"{where}: {name!r:.80} is {tensor.dtype}, not torch.float32")
        if not tensor.isfinite().all():
            raise UserError(
                f"{where}: {name!r:.80} holds NaN or infinite numbers; the model that it was made of diverged"
            )


def _verified(folder: Path, schema: type[_BodyManifest | _PackManifest], what: str, *needed: str) -> Any:
    """The manifest of an artifact whose files are all whole, its own, and not links; UserError else."""
    where = folder / MANIFEST
    kind = read_typed(where, _Kind).kind
    if kind not in get_args(schema.model_fields["kind"].annotation):
        raise UserError(f"{folder}: a {kind if kind.isprintable() else repr(kind):.40}, not {what}")
    manifest = read_typed(where, schema)
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise UserError(f"{path}: a symbolic link; an artifact holds its files itself")
    for name in (*needed, *manifest.files):
        if name not in manifest.files or Path(name).name != name:
            raise UserError(f"{where}: files: {name!r:.80} is {'not there' if name in needed else 'no name of a file'}")
    read_manifest(folder, verify=True)
    return manifest


def save_pack(folder: str | Path, artifact: PackArtifact, tokenizer_folder: str | Path, **facts: Any) -> None:
    """Write a language pack with the vocabulary in `tokenizer_folder`; `facts` go into the manifest."""
    with atomic_folder(folder) as temporary:
        _save(artifact.tensors, temporary / PACK_WEIGHTS)
        for name in read_manifest(tokenizer_folder)["files"].keys() - {PACK_WEIGHTS}:
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


def load_pack(folder: str | Path, space: str | None = None) -> PackArtifact:
    """Read a language pack; UserError where it is damaged, its parts disagree or, with `space`, of another body."""
    folder = Path(folder)
    manifest = _verified(folder, _PackManifest, "a language pack", PACK_WEIGHTS)
    if space is not None and manifest.space != space:
        raise UserError(
            f"{folder}: this pack was trained for embedding space {manifest.space}, the body "
            f"has {space}; use a pack adapted to this body, or adapt one"
        )
    where, rows = folder / PACK_WEIGHTS, manifest.vocab_size
    tensors = _load(where)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith("body.")}
    table = own.get("tokens", torch.empty(0, device="meta"))
    width = table.shape[1] if table.dim() == 2 else 0
    with torch.device("meta"):
        check_tensors(own, {"tokens": torch.empty(rows, width), "bias": torch.empty(rows)}, where)
    check_values(tensors, where)
    return PackArtifact(manifest.language, tensors, manifest.space, manifest.steps, manifest.eflops)


def language_of(folder: str | Path) -> str:
    """The language that a pack says it is; its files are not looked at."""
    return read_typed(Path(folder) / MANIFEST, _PackManifest).language


def check_fit(folder: str | Path, pack: PackArtifact, body: BodyArtifact) -> None:
    """UserError where the tensors of the pack in `folder` do not fit a body of its embedding space."""
    width = pack.tensors["tokens"].shape[1]
    if width != body.config.hidden_size:
        raise UserError(f"{folder}: embeddings of size {width}, the body has {body.config.hidden_size}")
    for name in [name for name in pack.tensors if name.startswith("body.")]:
        own = body.tensors.get(name if body.task else name.removeprefix("body."))
        if own is None or own.shape != pack.tensors[name].shape:
            raise UserError(
                f"{folder}: replaces {name} of shape {tuple(pack.tensors[name].shape)}, which the body has not"
            )


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
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path}: damaged or unreadable ({reason}); delete its folder and run the step again") from None
