"""Models on disk as transformers reads them; mini-models and models of tasks, in a form of ours.

A model is a body and the language that it was trained on. Its folder has what `from_pretrained`
reads, `tokenizer/`, its vocabulary as we read it, and `heads.safetensors`, heads that transformers
has no place for. Or it is a reference: the folder names one that somebody else made, which stays
where and as it is.

All that descends from one model carries its `space`, a hash of its weights. What was trained over a
model fits one of its own space and no other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ds_minimodel.common import files
from ds_minimodel.common.config import OneOf
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import NameInside
from ds_minimodel.common.names import Name
from ds_minimodel.hf import source as foreign
from ds_minimodel.hf.lazy import (
    Lazy,
    LazyTensors,
    lazy_entries,
    open_tensors,
    save_tensors,
    shapes_of,
)
from ds_minimodel.hf.names import architecture_of
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.opening import open_weights, source_of
from ds_minimodel.hf.source import CONFIG, WEIGHTS
from ds_minimodel.hf.tokenizers import write_tokenizer
from ds_minimodel.models import BodyConfig, BodyConfigOfKind
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import load_into
from ds_minimodel.ops.parallel import full_shape
from ds_minimodel.tokenizers.tokenizer import VOCABULARY

HEADS = "heads.safetensors"
MAKE_AGAIN = "put it back from a copy, or delete its folder and run the step again"


class TaskOfModel(files.Stored):
    """What a task model was finetuned on."""

    kind: str
    labels: list[str] | None


class BodyFile(files.Stored):
    """What a body is.

    Attributes:
        architecture: BodyConfig of its kind.
        head_depths: numbers of layers after which it has heads, rising.
        objective: what its heads were trained with.
        space: identity of the model that it descends from.
        task: what a task model was finetuned on.
    """

    architecture: BodyConfigOfKind
    head_depths: list[files.Count]
    objective: Annotated[str, OneOf(OBJECTIVES)]
    space: str
    task: TaskOfModel | None = None

    @model_validator(mode="after")
    def _depths_are_the_bodys(self) -> Self:
        layers = self.architecture.num_layers
        if self.head_depths != sorted({*self.head_depths} & {*range(1, layers + 1)}):
            raise ValueError(
                f"head_depths {self.head_depths!s:.60} are not rising: there are {layers} layers"
            )
        return self


class BodyManifest(files.Manifest):
    """Manifest of a mini-model or task model; config.json beside it is a BodyFile.

    Attributes:
        space: identity of the model that it descends from.
        model: path from its folder to that of the model that it was made of.
        made_of: hash of that model's manifest.
    """

    space: str
    model: str
    made_of: files.Sha256

    noun = "a mini-model or a model of a task"
    kinds = ("mini-model", "task-model")
    required = ((CONFIG,), (WEIGHTS,))


class _File(files.Stored):
    """A file of a foreign model: what it held, and whether numbers are read from it."""

    stamp: str
    sha256: files.Sha256
    holds_weights: bool


class Reference(files.Stored):
    """A foreign model that stays where it is.

    Attributes:
        path: its folder or GGUF file.
        files: name in the folder -> what that file held.
    """

    path: str
    files: Annotated[dict[NameInside, _File], Field(min_length=1)]

    @classmethod
    def of(cls, source: foreign.Source) -> Self:
        """Refer to a model, all of whose bytes are read."""
        weights = source.weight_files()
        referred: dict[str, _File] = {}
        for path in (*weights, *source.other_files()):
            content = files.Content.of(path)
            referred[source.name_of(path)] = _File(
                stamp=content.stamp, sha256=content.sha256(), holds_weights=path in weights
            )
        return cls(path=str(source.path.absolute()), files=referred)

    @property
    def space(self) -> str:
        """The identity of its weights, and of what they mean."""
        hashes = [file.sha256 for _, file in sorted(self.files.items()) if file.holds_weights]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]

    def check(self) -> None:
        """Raise UserError where a file has other content now; it is read if its stamp differs."""
        root = Path(self.path)
        if not root.is_dir():
            root = root.parent
        for name, file in self.files.items():
            path = root / name
            try:
                content = files.Content.of(path)
            except OSError as error:
                raise UserError(
                    f"{path}: {error.strerror}; put the model back that this is over"
                ) from None
            if content.stamp == file.stamp:
                continue
            if not path.is_file() or content.sha256() != file.sha256:
                raise UserError(
                    f"{path}: another file than when this was begun with the model; put it back, "
                    "or begin anew in another folder"
                )
        source = source_of(Path(self.path))
        weights = {source.name_of(path) for path in source.weight_files()}
        if weights != {name for name, file in self.files.items() if file.holds_weights}:
            raise UserError(
                f"{root}: its weights lie in other files than when this was begun with the model; "
                "put it back"
            )


class ModelManifest(files.Manifest):
    """Manifest of a model.

    Attributes:
        language: the language that it was trained on.
        rows: of its embeddings.
        steps: optimizer steps of its training.
        eflops: cost of its training.
        body: what its body is.
        model_type: its name in transformers, "" where that has no such body.
        source: the foreign model that it refers to, None where its weights lie beside this.
    """

    language: Name
    rows: files.Count
    steps: files.Count
    eflops: files.Amount
    body: BodyFile
    model_type: str
    source: Reference | None = None

    noun = "a model"
    kinds = ("model",)


@dataclass
class BodyArtifact:
    """A body in memory, or to be read.

    Attributes:
        config: its architecture.
        head_depths: numbers of layers after which it has heads.
        tensors: by the names of the module's state dict, read when they are asked for.
        space: identity of the model that it descends from.
        task: what a task model was finetuned on, as of TaskOfModel.
        objective: what its heads were trained with.
        model_type: its name in transformers, where that has several for a kind of body.
    """

    config: BodyConfig
    head_depths: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    space: str
    task: dict[str, Any] | None = None
    objective: str = "masked-lm"
    model_type: str = ""

    @property
    def body_tensors(self) -> Mapping[str, Tensor]:
        """Tensors of the body itself; a task model has others beside them."""
        if self.task is None:
            return self.tensors
        return LazyTensors(lazy_entries(self.tensors)).under("body.")

    @property
    def architecture(self) -> Architecture | None:
        """Its names in transformers, None where that has no such body."""
        return architecture_of(self.config.kind, self.model_type)

    def adaptation(
        self, language: str, embeddings: Mapping[str, Tensor], **facts: Any
    ) -> Adaptation:
        """Return what was learned over this body; `facts` are further fields of Adaptation."""
        return Adaptation(
            language,
            embeddings,
            self.space,
            body_kind=self.config.kind,
            model_type=self.architecture.model_type if self.architecture else "",
            **facts,
        )


@dataclass
class Adaptation:
    """What was learned over a model: a language, and what its body became.

    The language that a model was trained on is one without an update.

    Attributes:
        language: what was learned.
        embeddings: tokens (V, H) and the others of BodyConfig.language_tensors; of a language that
            extends the model's the new rows alone, which follow the first `num_base` ids.
        space: identity of the model.
        steps: optimizer steps of its training.
        eflops: cost of its training.
        num_base: first ids that are the model's.
        body_kind: kind of the model's body.
        model_type: the model's name in transformers, "" where that has no such body.
        update: the body's tensors that are replaced as a whole, and low-rank updates of others
            (models/low_rank.py).
    """

    language: str
    embeddings: Mapping[str, Tensor]
    space: str
    steps: int = 0
    eflops: float = 0.0
    num_base: int = 0
    body_kind: str = ""
    model_type: str = ""
    update: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Ids that it has embeddings of."""
        return shapes_of(self.embeddings)["tokens"][0]

    @property
    def architecture(self) -> Architecture | None:
        """The body's names in transformers, None where that has no such body."""
        return architecture_of(self.body_kind, self.model_type) if self.model_type else None


def identity(folder: str | Path) -> str:
    """Return the hash of an artifact's manifest, and so of all its files.

    Children name their parents by it.
    """
    try:
        return files.sha256_of_file(Path(folder) / files.MANIFEST)
    except OSError as error:
        raise UserError(
            f"{Path(folder) / files.MANIFEST}: cannot be read ({error.strerror}); {MAKE_AGAIN}"
        ) from None


def space_of(*tensor_dicts: Mapping[str, Tensor]) -> str:
    """Return the identity of an embedding space, a hash of tensors: names, shapes, types, bits."""
    digest = hashlib.sha256()
    for tensors in tensor_dicts:
        for name in sorted(tensors):
            tensor = tensors[name].contiguous()
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


# Models.


def save_model(
    folder: str | Path, body: BodyArtifact, pack: Adaptation, tokenizer: str | Path, **facts: Any
) -> None:
    """Write a model that was trained here.

    Args:
        folder: where to; it must not exist.
        body: its body.
        pack: the language that it was trained on.
        tokenizer: folder of the vocabulary.
        facts: further keys of the manifest.
    """
    architecture = body.architecture
    tensors = model_tensors(body.tensors, pack.embeddings)
    with files.atomic_folder(folder) as out:
        files.copy_artifact(tokenizer, out / VOCABULARY)
        if architecture is None:
            save_tensors(out / WEIGHTS, LazyTensors(tensors))
        else:
            ids = write_tokenizer(out / VOCABULARY, out, body.config, is_task=False)
            ending = OBJECTIVES[body.objective].hugging_face_class
            settings = {
                "architectures": [architecture.classes + ending],
                **architecture.config_json(body.config, len(pack.embeddings["tokens"])),
                **ids,
                "dtype": "float32",
            }
            files.write_json(out / CONFIG, settings)
            head = architecture.language_model_head(max(body.head_depths))
            hf_state = architecture.to_hf(tensors, body.config, head)
            save_tensors(out / WEIGHTS, LazyTensors(hf_state))
            known = architecture.names(tensors, head)
            others = {name: lazy for name, lazy in tensors.items() if name not in known}
            if others:
                save_tensors(out / HEADS, LazyTensors(others))
        mark_as_model(out, body, pack, **facts)


def mark_as_model(folder: Path, body: BodyArtifact, pack: Adaptation, **facts: Any) -> None:
    """Write the manifest that makes a folder a model.

    Args:
        folder: that of the model, or of a reference to one.
        body: its body.
        pack: the language that it was trained on.
        facts: further keys of the manifest, such as `source` of a reference.
    """
    files.write_manifest(
        folder,
        kind="model",
        body=_body_file(body),
        language=pack.language,
        rows=pack.rows,
        steps=pack.steps,
        eflops=pack.eflops,
        model_type=pack.model_type,
        **facts,
    )


def _body_file(body: BodyArtifact) -> dict[str, Any]:
    """Return the contents of a BodyFile."""
    return {
        "architecture": body.config.model_dump(),
        "head_depths": body.head_depths,
        "objective": body.objective,
        "space": body.space,
        "task": body.task,
    }


def model_tensors(body: Mapping[str, Tensor], embeddings: Mapping[str, Tensor]) -> dict[str, Lazy]:
    """Return the tensors of a body and a language by the names of a LanguageModel."""
    tensors = {f"body.{name}": lazy for name, lazy in lazy_entries(body).items()}
    return tensors | {f"pack.{name}": lazy for name, lazy in lazy_entries(embeddings).items()}


def load_model(folder: str | Path) -> tuple[BodyArtifact, Adaptation]:
    """Read a model.

    Returns:
        (its body, the language that it was trained on).

    Raises:
        UserError: it is missing, damaged or something else.
    """
    folder = Path(folder)
    manifest = files.read_artifact(folder, ModelManifest, verify=True)
    source = manifest.source
    config = manifest.body.architecture
    depths = tuple(manifest.body.head_depths)
    with torch.device("meta"):
        module = OBJECTIVES[config.trained_with].model(config, manifest.rows, depths)
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    body = BodyArtifact(
        config,
        depths,
        tensors={},
        space=manifest.body.space,
        objective=manifest.body.objective,
        model_type=manifest.model_type,
    )
    architecture = body.architecture
    # What lies here by our own names of tensors: all that transformers has no place for.
    path = folder / (WEIGHTS if architecture is None else HEADS)
    entries = dict(open_tensors(path, MAKE_AGAIN).entries) if path.name in manifest.files else {}
    if source is not None:
        source.check()
    if architecture is not None:
        names = [name for name in expected if name not in entries]
        if source is None:
            stored = open_tensors(folder / WEIGHTS, MAKE_AGAIN)
        else:
            stored = open_weights(Path(source.path), architecture, config, names)
        entries |= foreign.read_parameters(architecture, stored, config, names, folder, MAKE_AGAIN)
    tensors = LazyTensors(entries)
    _check_shapes(folder, expected, shapes_of(tensors))
    body.tensors = tensors.under("body.")
    pack = body.adaptation(
        manifest.language,
        tensors.under("pack."),
        steps=manifest.steps,
        eflops=manifest.eflops,
    )
    return body, pack


# Bodies, as parts of models and by themselves.


def save_body(
    folder: str | Path, artifact: BodyArtifact, kind: str, model: Path, **facts: Any
) -> None:
    """Write a mini-model or a task model.

    Args:
        folder: where to; it must not exist.
        artifact: its body.
        kind: "mini-model" or "task-model".
        model: folder of the model that it was made of.
        facts: further keys of the manifest.
    """
    facts |= {"model": os.path.relpath(model, folder), "made_of": identity(model)}
    with files.atomic_folder(folder) as temporary:
        files.write_json(temporary / CONFIG, _body_file(artifact))
        save_tensors(temporary / WEIGHTS, artifact.tensors)
        files.write_manifest(temporary, kind=kind, space=artifact.space, **facts)


def load_body(folder: str | Path) -> BodyArtifact:
    """Read the body of a model, a mini-model or a task model.

    Raises:
        UserError: it is missing, damaged or something else.
    """
    folder = Path(folder)
    if is_model(folder):
        return load_model(folder)[0]
    manifest = files.read_artifact(folder, BodyManifest, verify=True)
    file = files.read_model(folder / CONFIG, BodyFile, MAKE_AGAIN)
    if file.space != manifest.space or (file.task is None) == (manifest.kind == "task-model"):
        raise UserError(
            f"{folder}: {CONFIG} and {files.MANIFEST} say another space or kind; {MAKE_AGAIN}"
        )
    tensors = open_tensors(folder / WEIGHTS, MAKE_AGAIN)
    artifact = BodyArtifact(
        config=file.architecture,
        head_depths=tuple(file.head_depths),
        tensors=tensors,
        space=file.space,
        task=None if file.task is None else file.task.model_dump(),
        objective=file.objective,
    )
    with torch.device("meta"):
        body = file.architecture.make_body(file.head_depths)
    expected = {name: tuple(tensor.shape) for name, tensor in body.state_dict().items()}
    _check_shapes(folder, expected, shapes_of(artifact.body_tensors))
    return artifact


def is_model(folder: str | Path) -> bool:
    """Return whether a folder holds a model, not an adaptation or another body."""
    path = Path(folder) / files.MANIFEST
    value = files.read_json(path) if path.is_file() else None
    return isinstance(value, dict) and value.get("kind") in ModelManifest.kinds


def model_below(folder: str | Path) -> Path:
    """Return the folder of the model that a mini-model or task model was made of.

    A model's is the folder itself.

    Raises:
        UserError: the model does not lie where it did, or is another one.
    """
    folder = Path(folder)
    if is_model(folder):
        return folder
    manifest = files.read_artifact(folder, BodyManifest)
    model = Path(os.path.normpath(folder / manifest.model))
    if not (model / files.MANIFEST).is_file() or identity(model) != manifest.made_of:
        raise UserError(
            f"{folder}: was made of the model {model}, which is not there; put it back beside it"
        )
    return model


def _check_shapes(
    folder: str | Path,
    expected: Mapping[str, tuple[int, ...]],
    actual: Mapping[str, tuple[int, ...]],
) -> None:
    """Raise UserError for the first tensor that is of another shape, missing or one too many."""
    for name in sorted({*expected, *actual}):
        by_configuration = expected.get(name, "none")
        stored = actual.get(name, "none")
        if by_configuration != stored:
            raise UserError(
                f"{folder}: {name} is of shape {by_configuration} by its configuration, {stored} "
                f"in its weights; {MAKE_AGAIN}"
            )


def load_task_model(module: nn.Module, model: BodyArtifact, folder: str | Path) -> None:
    """Put a task model into the module of its kind, all but the pack.

    Arguments and errors are as of check_task_model.
    """
    check_task_model(module, model, folder)
    load_into(module, model.tensors)


def check_task_model(module: nn.Module, model: BodyArtifact, folder: str | Path) -> None:
    """Raise UserError where a task model's weights are not those of its module, but for the pack.

    Args:
        module: of the task's kind.
        model: the task model.
        folder: where it lies, for messages.
    """
    expected = {
        name: tuple(full_shape(parameter))
        for name, parameter in module.named_parameters()
        if not name.startswith("pack.")
    }
    _check_shapes(folder, expected, shapes_of(model.tensors))
