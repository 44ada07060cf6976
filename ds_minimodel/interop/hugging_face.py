"""Import of Hugging Face's masked LMs as a body and a pack, and export as a folder for `from_pretrained`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import NameInside, Stored, atomic_folder, read_model, write_json
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.interop import names
from ds_minimodel.interop.architectures import Architecture, architecture_of
from ds_minimodel.interop.card import CARD, Export, license_of, model_card
from ds_minimodel.interop.configuration import config_json, read_config
from ds_minimodel.interop.imported import refuse_existing, save_imported
from ds_minimodel.interop.vocabularies import read_vocabulary, tokenizer_of_pack, write_tokenizer
from ds_minimodel.model.artifacts import BodyArtifact, check_fit, load_body, load_pack
from ds_minimodel.model.transformer import FIRST_POSITION
from ds_minimodel.tasks import task_of

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
_PIPELINES = {  # of the Hub, by how the name of a class ends
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
_INDEX = ".index.json"  # after either's name: which part holds which tensor
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # of the first BERTs


def import_hf(folder: str | Path, out: str | Path, language: str = UNKNOWN_LANGUAGE) -> None:
    """Read a masked LM of RoBERTa, XLM-R, CamemBERT or BERT -> out/body and out/pack, in fp32.

    folder: config.json, weights (model.safetensors or pytorch_model.bin, whole or in parts with an index), and
    sentencepiece.bpe.model, tokenizer.json, vocab.txt or vocab.json with merges.txt. Rows of the embeddings are put in
    our order of ids, and the vector of an only token type is added to the positions: neither changes what the model
    computes. Raises UserError where a file is missing or damaged, or the architecture or the vocabulary is not
    supported.
    """
    folder = Path(folder)
    refuse_existing(out)
    config, vocab_size, architecture, base_model = read_config(folder)
    vocabulary = read_vocabulary(folder, architecture)
    if len(vocabulary.order) != vocab_size:
        raise UserError(
            f"{folder}: config.json has vocab_size {vocab_size}, the tokenizer "
            f"{len(vocabulary.order)} ids; resize the embeddings to the tokenizer"
        )
    tensors, where = read_weights(folder)
    _remove_unused(tensors, architecture, where)
    only_type = torch.zeros(1, config.hidden_size)
    if config.token_types == 1:
        name = architecture.name(names.TYPES)
        only_type = names.as_fp32(tensors.pop(name, only_type), name, (1, config.hidden_size), where)
    found = names.parameter_names(architecture, config.num_layers, names.masked_lm_head(config.num_layers))
    ours = names.from_foreign(tensors, config, vocab_size, found, where, architecture.first_position)
    ours["body.positions"][FIRST_POSITION:] += only_type
    origin = {"license": license_of(folder), "base_model": base_model}
    save_imported(out, config, ours, vocabulary, language, folder.name, **origin)


def export_hf(artifact: str | Path, out: str | Path, pack: str | Path | None = None, depth: int | None = None) -> None:
    """Write a body, mini-model or task model with a language pack as a Hugging Face folder.

    A body becomes RobertaForMaskedLM, or BertForMaskedLM where it has token types, with its head of `depth` (default:
    the deepest) and the layers below it; a task model the class of its kind (tasks/), such as
    RobertaForSequenceClassification. pack: default the folder
    `pack` beside the artifact. Raises UserError where a part is missing or does not fit.
    """
    artifact, out = Path(artifact), Path(out)
    refuse_existing(out)
    pack = Path(pack or artifact.parent / "pack")
    if not pack.is_dir():
        raise UserError(f"{pack}: no such language pack; give one with --pack")
    body = load_body(artifact)
    language = load_pack(pack, body.space)
    check_fit(pack, language, body)
    if body.task is None:
        task, head, num_layers, extra = _as_masked_lm(artifact, body, depth)
        tensors = {f"body.{name}": tensor for name, tensor in body.tensors.items()}
    else:
        if depth is not None:
            raise UserError(f"{artifact}: a task model has no masked-LM head of depth {depth}; leave --depth out")
        task, head, num_layers, extra = _as_task(artifact, body)
        tensors = dict(body.tensors)
    for name, tensor in language.tensors.items():
        tensors[name if name.startswith("body.") else f"pack.{name}"] = tensor
    architecture, separators = architecture_of(body.config), body.config.separators
    theirs = names.to_hugging_face(tensors, names.parameter_names(architecture, num_layers, head), architecture)
    vocab_size = len(language.tensors["tokens"])
    tokenizer, special = tokenizer_of_pack(pack, separators)
    if tokenizer.get_vocab_size() != vocab_size:
        raise UserError(
            f"{pack}: its vocabulary has {tokenizer.get_vocab_size()} pieces, its embeddings {vocab_size} rows"
        )
    with atomic_folder(out) as temporary:
        config = config_json(architecture, task, body.config, num_layers, vocab_size, **extra)
        write_json(temporary / "config.json", config)
        save_file(theirs, temporary / SAFETENSORS, metadata={"format": "pt"})
        write_tokenizer(temporary, tokenizer, special, body.config.max_positions, separators)
        task_name = (body.task or {}).get("name")
        export = Export(architecture.classes + task, num_layers, _PIPELINES.get(task), task_name)
        (temporary / CARD).write_text(model_card(pack, artifact, export), encoding="utf-8")


def _as_masked_lm(artifact: Path, body: BodyArtifact, depth: int | None) -> tuple[str, dict[str, str], int, dict]:
    depths = body.config.head_depths
    depth = max(depths, default=0) if depth is None else depth
    if depth not in depths:
        raise UserError(f"{artifact}: no masked-LM head of depth {depth}; it has heads of {list(depths)}")
    return "ForMaskedLM", names.masked_lm_head(depth), depth, {}


def _as_task(artifact: Path, body: BodyArtifact) -> tuple[str, dict[str, str], int, dict]:
    kind, labels = task_of(artifact, body)
    return kind.hugging_face_class, kind.head_names, body.config.num_layers, kind.hugging_face_config(labels)


def read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """(tensors, path). Pickles are read with torch's unpickler for weights, which runs no code."""
    names_looked_for = (SAFETENSORS, f"{SAFETENSORS}{_INDEX}", PICKLE, f"{PICKLE}{_INDEX}")
    path = next((folder / name for name in names_looked_for if os.path.lexists(folder / name)), None)
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
    return names.state_dict(values, path)


def _remove_unused(tensors: dict[str, Tensor], architecture: Architecture, where: Path) -> None:
    """Give old names their present form, and take copies and what a masked LM does not use out of `tensors`."""
    for name in [name for name in tensors if name.startswith(architecture.unused)]:
        del tensors[name]
    for name in list(tensors):
        for old, new in _OLD_NAMES.items():
            if name.endswith(old):
                present = name.removesuffix(old) + new
                if present in tensors:
                    raise UserError(f"{where}: {name!r:.80} comes twice, under its old name and its new one")
                tensors[present] = tensors.pop(name)
    copies = {"lm_head.decoder.weight": names.TOKENS, "lm_head.decoder.bias": "lm_head.bias"}
    for copy, original in copies.items():
        copy, original = architecture.name(copy), architecture.name(original)
        tensor = tensors.pop(copy, None)
        if tensor is not None and not names.same(tensor, tensors.setdefault(original, tensor)):
            raise UserError(
                f"{where}: {copy} differs from {original}; output embeddings of their own are not supported"
            )
