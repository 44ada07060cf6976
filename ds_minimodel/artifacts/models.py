"""Models on disk, in the form that transformers reads; mini-models and models of tasks, in ours.

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
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ds_minimodel.common import files
from ds_minimodel.common.config import OneOf
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import NameInside
from ds_minimodel.common.names import Name
from ds_minimodel.hf import source as foreign
from ds_minimodel.hf.lazy import Lazy, LazyTensors, lazily, open_tensors, save_tensors, shapes_of
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
    """What a body is. objective: what its heads were trained with. architecture: BodyConfig of its
    kind.
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
    """Manifest of a mini-model or task model; config.json beside it is a BodyFile. model: path from
    it to the model that it was made of; made_of: the identity of that.
    """

    space: str
    model: str
    made_of: files.Sha256

    noun = "a mini-model or a model of a task"
    kinds = ("mini-model", "task-model")
    required = ((CONFIG,), (WEIGHTS,))


class _File(files.Stored):
    """A file of a foreign model. stamp: of the Content that it had; holds_weights: whether numbers
    are read from it.
    """

    stamp: str
    sha256: files.Sha256
    holds_weights: bool


class Reference(files.Stored):
    """A foreign model that stays where it is: its folder or GGUF file, and the files that it is
    of.
    """

    path: str
    files: Annotated[dict[NameInside, _File], Field(min_length=1)]

    @classmethod
    def of(cls, source: foreign.Source) -> Self:
        """Of a model all of whose bytes are read."""
        weights, named = source.weight_files(), dict[str, _File]()
        for path in (*weights, *source.other_files()):
            content = files.Content.of(path)
            named[source.name_of(path)] = _File(
                stamp=content.stamp, sha256=content.sha256(), holds_weights=path in weights
            )
        return cls(path=str(source.path.absolute()), files=named)

    @property
    def space(self) -> str:
        """The identity of its weights, and of what they mean."""
        hashes = [file.sha256 for _, file in sorted(self.files.items()) if file.holds_weights]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]

    def check(self) -> None:
        """UserError where a file is another one now; one that was touched is read."""
        root = Path(self.path) if Path(self.path).is_dir() else Path(self.path).parent
        for name, facts in self.files.items():
            try:
                content = files.Content.of(root / name)
            except OSError as error:
                raise UserError(
                    f"{root / name}: {error.strerror}; put the model back that this is over"
                ) from None
            if content.stamp != facts.stamp and (
                not (root / name).is_file() or content.sha256() != facts.sha256
            ):
                raise UserError(
                    f"{root / name}: another file than when this was begun with the model; put it "
                    "back, or begin anew "
                    "in another folder"
                )
        source = source_of(Path(self.path))
        weights = {source.name_of(path) for path in source.weight_files()}
        if weights != {name for name, facts in self.files.items() if facts.holds_weights}:
            raise UserError(
                f"{root}: its weights lie in other files than when this was begun with the model; "
                "put it back"
            )


class ModelManifest(files.Manifest):
    """Manifest of a model. rows: of its embeddings. model_type: in transformers, "" where that has
    no such body. source: of a reference.
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
    """A body with heads after `head_depths` layers, trained with `objective`; `task` is set on task
    models.

    tensors: by the names of the module's state dict, read when they are asked for. model_type: in
    transformers.
    """

    config: BodyConfig
    head_depths: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    space: str
    task: dict | None = None
    objective: str = "masked-lm"
    model_type: str = ""

    @property
    def own_tensors(self) -> Mapping[str, Tensor]:
        """Those of the body itself; a task model has others beside it."""
        if self.task is None:
            return self.tensors
        return LazyTensors(lazily(self.tensors)).under("body.")

    @property
    def architecture(self) -> Architecture | None:
        """Its names in transformers, None where that has no such body."""
        return architecture_of(self.config.kind, self.model_type)

    def adaptation(
        self, language: str, embeddings: Mapping[str, Tensor], **facts: Any
    ) -> Adaptation:
        """One over this body."""
        kind, model_type = (
            self.config.kind,
            self.architecture.model_type if self.architecture else "",
        )
        return Adaptation(
            language, embeddings, self.space, body_kind=kind, model_type=model_type, **facts
        )


@dataclass
class Adaptation:
    """What was learned over a model: a language, and what its body became.

    embeddings: tokens (V, H) and the others of BodyConfig.language_tensors; of a language that
    extends the model's, the new rows, which follow the first `num_base` ids. update: the body's
    tensors that are replaced as a whole, and low-rank updates of others (models/low_rank.py).
    body_kind, model_type: of the model that it is over. steps, eflops: what its training took. The
    language that a model was trained on is one without an update.
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

    facts: ClassVar[tuple[str, ...]] = (
        "language",
        "space",
        "steps",
        "eflops",
        "body_kind",
        "model_type",
    )

    @property
    def rows(self) -> int:
        """Ids that it has embeddings of."""
        return shapes_of(self.embeddings)["tokens"][0]

    @property
    def architecture(self) -> Architecture | None:
        """The names in transformers of the body that it is over, None where that has no such
        body.
        """
        return architecture_of(self.body_kind, self.model_type) if self.model_type else None


def identity(folder: str | Path) -> str:
    """Hash of an artifact's manifest, and so of all its files; children name their parents by
    it.
    """
    try:
        return files.sha256_of_file(Path(folder) / files.MANIFEST)
    except OSError as error:
        raise UserError(
            f"{Path(folder) / files.MANIFEST}: cannot be read ({error.strerror}); {MAKE_AGAIN}"
        ) from None


def space_of(*tensor_dicts: Mapping[str, Tensor]) -> str:
    """Hash of named tensors (names, shapes and bits): the identity of an embedding space."""
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
    """Write a model that was trained here, with the vocabulary in `tokenizer`; `facts` go into the
    manifest.
    """
    with files.atomic_folder(folder) as out:
        depth, architecture = max(body.head_depths), body.architecture
        ours = named(body.tensors, pack.embeddings)
        files.copy_artifact(tokenizer, out / VOCABULARY)
        others = ours
        if architecture is not None:
            theirs = architecture.to_theirs(
                ours, body.config, architecture.language_model_head(depth)
            )
            ending = OBJECTIVES[body.objective].hugging_face_class
            own = architecture.config_json(body.config, len(pack.embeddings["tokens"]))
            ids = write_tokenizer(out / VOCABULARY, out, body.config, is_task=False)
            values = {
                "architectures": [architecture.classes + ending],
                **own,
                **ids,
                "dtype": "float32",
            }
            files.write_json(out / CONFIG, values)
            known = architecture.names(ours, architecture.language_model_head(depth))
            others = {name: lazy for name, lazy in ours.items() if name not in known}
            save_tensors(out / WEIGHTS, LazyTensors(theirs))
        if others:
            save_tensors(out / (WEIGHTS if architecture is None else HEADS), LazyTensors(others))
        mark_as_model(out, body, pack, **facts)


def mark_as_model(folder: Path, body: BodyArtifact, pack: Adaptation, **facts: Any) -> None:
    """Write the manifest that makes a folder a model, or a reference to `source`; `facts` as of
    save_model.
    """
    of_pack = {
        name: getattr(pack, name) for name in ("language", "rows", "steps", "eflops", "model_type")
    }
    files.write_manifest(folder, kind="model", body=_described(body), **of_pack, **facts)


def _described(body: BodyArtifact) -> dict[str, Any]:
    own = {name: getattr(body, name) for name in ("head_depths", "objective", "space", "task")}
    return {"architecture": body.config.model_dump(), **own}


def named(body: Mapping[str, Tensor], embeddings: Mapping[str, Tensor]) -> dict[str, Lazy]:
    """The tensors of a body and a language by the names of a LanguageModel."""
    parts = {"body": body, "pack": embeddings}
    return {
        f"{part}.{name}": lazy
        for part, tensors in parts.items()
        for name, lazy in lazily(tensors).items()
    }


def load_model(folder: str | Path) -> tuple[BodyArtifact, Adaptation]:
    """A model and the language that it was trained on; UserError where it is missing, damaged or
    something else.
    """
    folder = Path(folder)
    manifest = files.read_artifact(folder, ModelManifest, verify=True)
    file, source = manifest.body, manifest.source
    config, depths = file.architecture, tuple(file.head_depths)
    with torch.device("meta"):
        module = OBJECTIVES[config.trained_with].model(config, manifest.rows, depths)
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    body = BodyArtifact(
        config, depths, {}, file.space, objective=file.objective, model_type=manifest.model_type
    )
    own = folder / (WEIGHTS if body.architecture is None else HEADS)
    tensors = dict(open_tensors(own, MAKE_AGAIN).entries) if own.name in manifest.files else {}
    if source is not None:
        source.check()
    if (architecture := body.architecture) is not None:
        names = [name for name in expected if name not in tensors]
        if source is None:
            theirs = open_tensors(folder / WEIGHTS, MAKE_AGAIN)
        else:
            theirs = open_weights(Path(source.path), architecture, config, names)
        tensors |= foreign.named_as_ours(architecture, theirs, config, names, folder, MAKE_AGAIN)
    _check_shapes(folder, expected, {name: lazy.shape for name, lazy in tensors.items()})
    ours = LazyTensors(tensors)
    body.tensors = ours.under("body.")
    facts = {"steps": manifest.steps, "eflops": manifest.eflops}
    return body, body.adaptation(manifest.language, ours.under("pack."), **facts)


# Bodies, as parts of models and by themselves.


def save_body(
    folder: str | Path, artifact: BodyArtifact, kind: str, model: Path, **facts: Any
) -> None:
    """Write a mini-model or task model, as `kind` says, that was made of `model`; `facts` go into
    the manifest.
    """
    facts |= {"model": os.path.relpath(model, folder), "made_of": identity(model)}
    with files.atomic_folder(folder) as temporary:
        files.write_json(temporary / CONFIG, _described(artifact))
        save_tensors(temporary / WEIGHTS, artifact.tensors)
        files.write_manifest(temporary, kind=kind, space=artifact.space, **facts)


def load_body(folder: str | Path) -> BodyArtifact:
    """The body of a model, a mini-model or a task model; UserError where it is missing, damaged or
    something else.
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
    prefix = "" if file.task is None else "body."
    with torch.device("meta"):
        body = file.architecture.make_body(file.head_depths)
    expected = {prefix + name: tuple(tensor.shape) for name, tensor in body.state_dict().items()}
    _check_shapes(
        folder,
        expected,
        {name: shape for name, shape in shapes_of(tensors).items() if prefix in name[:5]},
    )
    task = None if file.task is None else file.task.model_dump()
    return BodyArtifact(
        file.architecture, tuple(file.head_depths), tensors, file.space, task, file.objective
    )


def is_model(folder: str | Path) -> bool:
    """Whether a folder holds a model, not an adaptation or another body."""
    path = Path(folder) / files.MANIFEST
    value = files.read_json(path) if path.is_file() else None
    return isinstance(value, dict) and value.get("kind") in ModelManifest.kinds


def model_below(folder: str | Path) -> Path:
    """The model that a mini-model or task model was made of, where that lies as it did; a model is
    one itself.
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
    """UserError that names the first tensor which is of another shape than expected, missing or one
    too many.
    """
    for name in sorted({*expected, *actual}):
        shapes = expected.get(name), actual.get(name)
        if shapes[0] != shapes[1]:
            by_file, here = ("none" if shape is None else shape for shape in shapes)
            raise UserError(
                f"{folder}: {name} is of shape {by_file} by its configuration, {here} in its "
                f"weights; {MAKE_AGAIN}"
            )


def load_task_model(module: nn.Module, model: BodyArtifact, folder: str | Path) -> None:
    """Put a task model into the module of its kind, all but the pack; UserError where the two
    differ.
    """
    check_task_model(module, model, folder)
    load_into(module, model.tensors)


def check_task_model(module: nn.Module, model: BodyArtifact, folder: str | Path) -> None:
    """UserError where the weights of a task model are not those of the module of its kind, which
    holds no pack.
    """
    expected = {name: tuple(full_shape(parameter)) for name, parameter in module.named_parameters()}
    own = {name: shape for name, shape in expected.items() if not name.startswith("pack.")}
    _check_shapes(folder, own, shapes_of(model.tensors))
