"""Import of Hugging Face's RoBERTa and XLM-R as a body and a pack, and export as a folder for `from_pretrained`."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_folder, write_json
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.interop import names
from ds_minimodel.interop.configuration import config_json, read_config
from ds_minimodel.interop.imported import refuse_existing, save_imported
from ds_minimodel.interop.vocabularies import read_vocabulary, tokenizer_of_pack, write_tokenizer
from ds_minimodel.model.artifacts import BodyArtifact, check_fit, load_body, load_pack
from ds_minimodel.model.transformer import FIRST_POSITION
from ds_minimodel.tasks import task_of

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"


def import_hf(folder: str | Path, out: str | Path, language: str = UNKNOWN_LANGUAGE) -> None:
    """Read a RoBERTa or XLM-R masked LM -> out/body and out/pack, in fp32.

    folder: config.json, model.safetensors or pytorch_model.bin, and sentencepiece.bpe.model, tokenizer.json
    or vocab.json with merges.txt. Rows of the embeddings are put in our order of ids, and a constant
    token-type vector is added to the positions: neither changes what the model computes. Raises UserError
    where a file is missing or damaged, or the architecture or the vocabulary is not supported.
    """
    folder = Path(folder)
    refuse_existing(out)
    config, vocab_size = read_config(folder)
    vocabulary = read_vocabulary(folder)
    if len(vocabulary.order) != vocab_size:
        raise UserError(
            f"{folder}: config.json has vocab_size {vocab_size}, the tokenizer "
            f"{len(vocabulary.order)} ids; resize the embeddings to the tokenizer"
        )
    tensors, where = _read_weights(folder)
    types = _remove_unused(tensors, config.hidden_size, where)
    found = names.parameter_names(config.num_layers, names.masked_lm_head(config.num_layers))
    ours = names.from_foreign(tensors, config, vocab_size, found, where)
    ours["body.positions"][FIRST_POSITION:] += types
    save_imported(out, config, ours, vocabulary, language, folder.name)


def export_hf(artifact: str | Path, out: str | Path, pack: str | Path | None = None, depth: int | None = None) -> None:
    """Write a body, mini-model or task model with a language pack as a Hugging Face folder.

    A body becomes RobertaForMaskedLM with its head of `depth` (default: the deepest) and the layers below it;
    a task model the class of its kind (tasks/), such as RobertaForSequenceClassification. pack: default the folder
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
        model, head, num_layers, extra = _as_masked_lm(artifact, body, depth)
        tensors = {f"body.{name}": tensor for name, tensor in body.tensors.items()}
    else:
        if depth is not None:
            raise UserError(f"{artifact}: a task model has no masked-LM head of depth {depth}; leave --depth out")
        model, head, num_layers, extra = _as_task(artifact, body)
        tensors = dict(body.tensors)
    for name, tensor in language.tensors.items():
        tensors[name if name.startswith("body.") else f"pack.{name}"] = tensor
    theirs = names.to_hugging_face(tensors, names.parameter_names(num_layers, head))
    vocab_size = len(language.tensors["tokens"])
    tokenizer = tokenizer_of_pack(pack)
    if tokenizer.get_vocab_size() != vocab_size:
        raise UserError(
            f"{pack}: its vocabulary has {tokenizer.get_vocab_size()} pieces, its embeddings {vocab_size} rows"
        )
    with atomic_folder(out) as temporary:
        config = config_json(model, body.config, num_layers, vocab_size, **extra)
        write_json(temporary / "config.json", config)
        save_file(theirs, temporary / SAFETENSORS, metadata={"format": "pt"})
        write_tokenizer(temporary, tokenizer, body.config.max_positions)


def _as_masked_lm(artifact: Path, body: BodyArtifact, depth: int | None) -> tuple[str, dict[str, str], int, dict]:
    depths = body.config.head_depths
    depth = max(depths, default=0) if depth is None else depth
    if depth not in depths:
        raise UserError(f"{artifact}: no masked-LM head of depth {depth}; it has heads of {list(depths)}")
    return "RobertaForMaskedLM", names.masked_lm_head(depth), depth, {}


def _as_task(artifact: Path, body: BodyArtifact) -> tuple[str, dict[str, str], int, dict]:
    kind, labels = task_of(artifact, body)
    return kind.hugging_face_class, kind.head_names, body.config.num_layers, kind.hugging_face_config(labels)


def _read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """(tensors, path). A pickle is read with torch's unpickler for weights, which runs no code."""
    path = next((folder / name for name in (SAFETENSORS, PICKLE) if os.path.lexists(folder / name)), None)
    if path is None:
        raise UserError(f"{folder}: neither {SAFETENSORS} nor {PICKLE}; both may not be in parts")
    if not path.is_file():  # a named pipe would be waited for
        raise UserError(f"{path}: not a file, or a link to nothing")
    try:
        is_pickle = path.name == PICKLE
        values = dict(torch.load(path, map_location="cpu", weights_only=True) if is_pickle else load_file(path))
    except Exception as error:  # what torch's unpickler raises depends on the bytes that are wrong
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path}: damaged, or not a file of weights ({reason})") from None
    return names.state_dict(values, path), path


def _remove_unused(tensors: dict[str, Tensor], hidden_size: int, where: Path) -> Tensor:
    """Take copies, buffers and the pooler out of Hugging Face's `tensors`; return the token-type vector (H)."""
    types = tensors.pop(names.TYPES, torch.zeros(1, hidden_size))
    copies = {"lm_head.decoder.weight": names.TOKENS, "lm_head.decoder.bias": "lm_head.bias"}
    for copy, original in copies.items():
        tensor = tensors.pop(copy, None)
        if tensor is not None and not names.same(tensor, tensors.setdefault(original, tensor)):
            raise UserError(
                f"{where}: {copy} differs from {original}; output embeddings of their own are not supported"
            )
    tensors.pop("roberta.embeddings.position_ids", None)
    for name in [name for name in tensors if name.startswith("roberta.pooler.")]:
        del tensors[name]
    return names.as_fp32(types, names.TYPES, (1, hidden_size), where)[0]
