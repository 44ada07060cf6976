"""Import of Hugging Face's language models as a body and a pack, and export as a folder for `from_pretrained`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from ds_minimodel.bodies import BODIES, BodyConfig
from ds_minimodel.bodies.hugging_face import Architecture
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    NameInside,
    Stored,
    atomic_folder,
    read_artifact,
    read_model,
    write_json,
    write_manifest,
)
from ds_minimodel.common.hub import hub_api
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE, Vocabulary, VocabularyManifest
from ds_minimodel.data.tokenizer import JSON_FILE
from ds_minimodel.interop.card import CARD, Export, hub_name, license_of, model_card
from ds_minimodel.interop.vocabularies import ADVICE, TOKENIZER_FILES, read_vocabulary, write_tokenizer
from ds_minimodel.model.artifacts import (
    PACK_WEIGHTS,
    BodyArtifact,
    PackArtifact,
    check_fit,
    load_body,
    load_pack,
    save_body,
    space_of,
)
from ds_minimodel.model.models import LanguageModel
from ds_minimodel.model.parameters import tensors_under
from ds_minimodel.objectives import OBJECTIVES
from ds_minimodel.tasks import task_of

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
_PIPELINES = {  # of the Hub, by how the name of a class ends
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
_INDEX = ".index.json"  # after either's name: which part holds which tensor
_WEIGHTS = (SAFETENSORS, f"{SAFETENSORS}{_INDEX}", PICKLE, f"{PICKLE}{_INDEX}")  # the first that is there is read


def import_hf_from_hub(
    name: str, out: str | Path, language: str = UNKNOWN_LANGUAGE, revision: str | None = None
) -> None:
    """Import a model of the Hub, as import_hf does, by the files that it needs; these stay in huggingface_hub's cache.

    name: MODEL or OWNER/MODEL. revision: a branch, tag or commit; default main. The commit is recorded.
    """
    refuse_existing(out)
    with hub_api(name) as (_, api):
        info = api.model_info(name, revision=revision)
        there = [file.rfilename for file in info.siblings or []]
        if "config.json" not in there:
            raise UserError(f"{name} on {api.endpoint}: no config.json, so no model of transformers")
        paths = [Path(api.hf_hub_download(name, file, revision=info.sha)) for file in _needed(there)]
    folder = next(path.parent for path in paths if path.name == "config.json")
    import_hf(folder, out, language, name, info.sha)


def _needed(names: Sequence[str]) -> list[str]:
    """Of a repository's files those that import_hf reads."""
    weights = next((name for name in _WEIGHTS if name in names), "")
    kept = {"config.json", CARD, weights, *TOKENIZER_FILES}
    stem, suffix = os.path.splitext(weights.removesuffix(_INDEX))
    parts = rf"{re.escape(stem)}-\d+-of-\d+{re.escape(suffix)}" if weights.endswith(_INDEX) else "(?!)"
    return [name for name in names if name in kept or re.fullmatch(parts, name)]


def import_hf(
    folder: str | Path,
    out: str | Path,
    language: str = UNKNOWN_LANGUAGE,
    name: str | None = None,
    revision: str | None = None,
) -> None:
    """Read a language model of a family that a kind of body serves -> out/body and out/pack, in fp32.

    folder: config.json, weights (model.safetensors or pytorch_model.bin, whole or in parts with an index), and
    tokenizer.json, which is kept, or what transformers makes one of. The vector of an only token type is added to the
    positions, which does not change what the model computes. name, revision: of a model that came from the Hub. Raises
    UserError where a file is missing or damaged, or the architecture or the tokenizer is not supported.
    """
    folder = Path(folder)
    refuse_existing(out)
    architecture, config, vocab_size, base_model = read_config(folder)
    tokenizer = read_vocabulary(folder, architecture, config)
    if tokenizer.vocabulary.size > vocab_size:
        raise UserError(
            f"{folder}: config.json has vocab_size {vocab_size}, the tokenizer {tokenizer.vocabulary.size} ids; resize "
            "the embeddings to the tokenizer"
        )
    if architecture.pad_id not in (None, tokenizer.vocabulary.pad):
        raise UserError(
            f"{folder}: config.json has pad_token_id {architecture.pad_id}, the tokenizer {tokenizer.vocabulary.pad}; "
            "positions count from it"
        )
    tensors, where = read_weights(folder)
    head_depths, objective = (config.num_layers,), BODIES[config.kind].objective
    with torch.device("meta"):
        module = LanguageModel(config, vocab_size, head_depths, OBJECTIVES[objective])
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    ours = architecture.from_theirs(tensors, config, shapes, where)
    of_body, of_pack = tensors_under(ours, "body."), tensors_under(ours, "pack.")
    body = BodyArtifact(config, head_depths, of_body, space_of(of_body, of_pack), objective=objective)
    origin = {"license": license_of(folder), "base_model": name or base_model, "revision": revision}
    facts: dict[str, Any] = {"imported_from": name or folder.name, "steps": 0, "eflops": 0.0}
    facts |= {key: value for key, value in origin.items() if value is not None}
    with atomic_folder(out) as both:
        save_body(both / "body", body, "body", **facts)
        pack = both / "pack"
        pack.mkdir()
        save_file(of_pack, pack / PACK_WEIGHTS)
        (pack / JSON_FILE).write_bytes(tokenizer.data)
        facts |= {"space": body.space, "rows": len(of_pack["tokens"]), **tokenizer.vocabulary.facts()}
        write_manifest(pack, kind="language-pack", language=language, **facts)


def refuse_existing(out: str | Path) -> None:
    """Raise UserError where there is something at `out`: nothing is overwritten."""
    if Path(out).exists():
        raise UserError(f"{out}: exists; give another folder")


class _ConfigFile(Stored):
    """Of config.json what every model type has."""

    model_type: str
    architectures: Annotated[list[str], Field(min_length=1)] | None = None
    # Of what the library read that wrote the file: a name on the Hub, or a folder.
    name_or_path: Annotated[object, Field(alias="_name_or_path")] = None


def read_config(folder: str | Path) -> tuple[Architecture, BodyConfig, int, str | None]:
    """Of a Hugging Face folder (Architecture, BodyConfig, vocabulary's size, name).

    name: the model's on the Hub, None where config.json does not say it. Raises UserError where the architecture is
    another or has a setting that the body does not have.
    """
    path = Path(folder) / "config.json"
    file = read_model(path, _ConfigFile, ADVICE)
    served = {own.model_type: own for kind in BODIES.values() for own in kind.hugging_face()}
    if file.model_type not in served:
        *first, last = served
        raise UserError(f"{path}: model_type {file.model_type:.40}; import-hf takes {', '.join(first)} and {last}")
    architecture = served[file.model_type]
    config, vocab_size = architecture.config(read_model(path, architecture.config_file, ADVICE), path)
    return architecture, config, vocab_size, hub_name(file.name_or_path)


def export_hf(artifact: str | Path, out: str | Path, pack: str | Path | None = None, depth: int | None = None) -> None:
    """Write a body, mini-model or task model with a language pack as a Hugging Face folder.

    A body becomes RobertaForMaskedLM, or BertForMaskedLM where it is BERT's, with its head of `depth` (default:
    the deepest) and the layers below it; a task model the class of its kind (tasks/), such as
    RobertaForSequenceClassification. pack: default the folder `pack` beside the artifact. Raises UserError where a part
    is missing or does not fit, or that library has no such bodies.
    """
    artifact, out = Path(artifact), Path(out)
    refuse_existing(out)
    pack = Path(pack or artifact.parent / "pack")
    if not pack.is_dir():
        raise UserError(f"{pack}: no such language pack; give one with --pack")
    body = load_body(artifact)
    language = load_pack(pack, body.space)
    check_fit(pack, language, body)
    vocabulary = read_artifact(pack, VocabularyManifest).vocabulary(pack)
    model = exported(artifact, body, language, vocabulary, depth)
    with atomic_folder(out) as temporary:
        write_tokenizer(pack, temporary, body.config.with_layers(model.num_layers), fills_masks=body.task is None)
        write_json(temporary / "config.json", model.config)
        save_file(model.tensors, temporary / SAFETENSORS, metadata={"format": "pt"})
        task_name = (body.task or {}).get("name")
        export = Export(model.class_name, model.num_layers, _PIPELINES.get(model.ending), task_name)
        (temporary / CARD).write_text(model_card(pack, artifact, export), encoding="utf-8")


@dataclass(frozen=True)
class Exported:
    """A model in Hugging Face's terms. ending: how the name of its class ends. config: of config.json."""

    class_name: str
    ending: str
    num_layers: int
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def module(self) -> Any:
        """The module of transformers; UserError where that library is not installed."""
        try:
            import transformers
        except ImportError:
            raise UserError("transformers is not installed; pip install 'ds_minimodel[hf]'") from None
        own = getattr(transformers, self.class_name)
        return own.from_pretrained(None, config=own.config_class.from_dict(self.config), state_dict=self.tensors)


def exported(
    artifact: str | Path, body: BodyArtifact, language: PackArtifact, vocabulary: Vocabulary, depth: int | None = None
) -> Exported:
    """The model of the folder `artifact`, whose content is `body`, with a pack that fits it; depth: as of export_hf."""
    architectures = BODIES[body.config.kind].hugging_face()
    if not architectures:
        raise UserError(f"{artifact}: Hugging Face's library has no bodies of kind {body.config.kind}")
    architecture = architectures[0]
    if body.task is None:
        ending, head, num_layers, extra = _as_language_model(artifact, body, architecture, depth)
        tensors = {f"body.{name}": tensor for name, tensor in body.tensors.items()}
    else:
        if depth is not None:
            raise UserError(f"{artifact}: a task model has no language-model head of depth {depth}; leave --depth out")
        ending, head, num_layers, extra = _as_task(artifact, body)
        tensors = dict(body.tensors)
    for name, tensor in language.tensors.items():
        tensors[name if name.startswith("body.") else f"pack.{name}"] = tensor
    class_name = architecture.classes + ending
    if ending not in architecture.endings:
        raise UserError(f"{artifact}: Hugging Face's library has no {class_name} that computes what this model does")
    config = body.config.with_layers(num_layers)
    facts = {
        "architectures": [class_name],
        **architecture.config_json(config, len(language.tensors["tokens"])),
        **{f"{token}_token_id": vocabulary.special.get(token) for token in ("bos", "eos", "pad")},
        **({} if vocabulary.mask is None else {"mask_token_id": vocabulary.mask}),
        "dtype": "float32",
        **extra,
    }
    return Exported(class_name, ending, num_layers, facts, architecture.to_theirs(tensors, config, head))


def _as_language_model(
    artifact: str | Path, body: BodyArtifact, architecture: Architecture, depth: int | None
) -> tuple[str, dict[str, str], int, dict]:
    depths = body.head_depths
    depth = max(depths, default=0) if depth is None else depth
    if depth not in depths:
        raise UserError(f"{artifact}: no language-model head of depth {depth}; it has heads of {list(depths)}")
    name = OBJECTIVES[body.objective].hugging_face_class
    if not name:
        raise UserError(f"{artifact}: Hugging Face's library has no class for the objective {body.objective}")
    return name, architecture.language_model_head(depth), depth, {}


def _as_task(artifact: str | Path, body: BodyArtifact) -> tuple[str, dict[str, str], int, dict]:
    kind, labels = task_of(artifact, body)
    return kind.hugging_face_class, kind.head_names, body.config.num_layers, kind.hugging_face_config(labels)


def read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """(tensors, path). Pickles are read with torch's unpickler for weights, which runs no code."""
    path = next((folder / name for name in _WEIGHTS if os.path.lexists(folder / name)), None)
    if path is None:
        raise UserError(f"{folder}: neither {SAFETENSORS} nor {PICKLE}, nor the index of one in parts")
    if not path.name.endswith(_INDEX):
        return _read_tensors(path), path
    part_of = read_model(path, _Index, "download the model again").weight_map
    tensors: dict[str, Tensor] = {}
    for part in sorted({*part_of.values()}):
        held = _read_tensors(folder / part)
        listed = {name for name, its in part_of.items() if its == part}
        if held.keys() != listed:
            name = min(held.keys() ^ listed)
            raise UserError(
                f"{folder / part}: {'has no' if name in listed else 'has a'} tensor {name!r:.80}, which "
                f"{path.name} {'says is' if name in listed else 'does not say is'} there"
            )
        tensors |= held
    return tensors, path


class _Index(Stored):
    """The index of weights in parts: tensor -> file."""

    weight_map: Annotated[dict[str, Annotated[NameInside, Field(pattern=r"^[^/]+$")]], Field(min_length=1)]


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():  # a named pipe would be waited for
        raise UserError(f"{path}: {'not a file, or a link to nothing' if os.path.lexists(path) else 'no such file'}")
    try:
        is_safe = path.suffix == Path(SAFETENSORS).suffix
        values = dict(load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # what torch's unpickler raises depends on the bytes that are wrong
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path}: damaged, or not a file of weights ({reason})") from None
    return _state_dict(values, path)


def _state_dict(values: Mapping[Any, Any], where: Path) -> dict[str, Tensor]:
    """What a file of weights held, as tensors by name; UserError where it is something else.

    A view that repeats its numbers, of any size from a small file, is something else too.
    """
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise UserError(f"{where}: {name!r:.80} is not a dense tensor")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(f"{where}: {name!r:.80} of shape {tuple(tensor.shape)} has fewer numbers than that")
    return dict(values)
