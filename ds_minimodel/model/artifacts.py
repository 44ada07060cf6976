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
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    MANIFEST,
    atomic_folder,
    read_json,
    read_manifest,
    sha256_of_file,
    write_json,
    write_manifest,
)
from ds_minimodel.model.transformer import BodyConfig
from ds_minimodel.parallel import full_shape, own_part

BODY_WEIGHTS = "model.safetensors"
PACK_WEIGHTS = "embeddings.safetensors"


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
    """Read a body, mini-model or task model; UserError where it is missing or damaged."""
    read_manifest(folder, verify=True)
    config = read_json(Path(folder) / "config.json")
    architecture = config["architecture"]
    architecture["head_depths"] = tuple(architecture["head_depths"])
    return BodyArtifact(BodyConfig(**architecture), _load(Path(folder) / BODY_WEIGHTS), config["space"], config["task"])


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
    """Read a language pack; UserError where it is damaged or, with `space`, of another body."""
    manifest = read_manifest(folder, verify=True)
    if manifest.get("kind") != "language-pack":
        raise UserError(f"{folder}: a {manifest.get('kind')}, not a language pack")
    if space is not None and manifest["space"] != space:
        raise UserError(
            f"{folder}: this pack was trained for embedding space {manifest['space']}, the body "
            f"has {space}; use a pack adapted to this body, or adapt one"
        )
    return PackArtifact(
        manifest["language"],
        _load(Path(folder) / PACK_WEIGHTS),
        manifest["space"],
        manifest["steps"],
        manifest["eflops"],
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
        raise UserError(f"{path}: damaged or unreadable ({error}); delete its folder and run the step again") from None
