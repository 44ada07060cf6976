"""Import of fairseq's RoBERTa and XLM-R as published: model.pt, dict.txt and the files of their tokenizers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json
from ds_minimodel.common.vocabulary import MASK, SPECIAL, UNKNOWN_LANGUAGE
from ds_minimodel.data.tokenizer import BYTE_LEVEL_FILE, UNIGRAM_FILE
from ds_minimodel.interop import inert
from ds_minimodel.interop.imported import refuse_existing, save_imported
from ds_minimodel.interop.names import from_foreign
from ds_minimodel.interop.vocabularies import (
    SENTENCEPIECE_FILE,
    Vocabulary,
    byte_level_from_merges,
    byte_level_in_our_order,
    unigram_from_sentencepiece,
    unigram_pieces,
)
from ds_minimodel.model.transformer import FIRST_POSITION, BodyConfig

WEIGHTS, DICTIONARY = "model.pt", "dict.txt"
_ENCODER = "sentence_encoder."
_LAYER = {
    "attention_out": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "ffn_in": "fc1",
    "ffn_out": "fc2",
    "ffn_norm": "final_layer_norm",
}


def import_fairseq(folder: str | Path, out: str | Path, language: str = UNKNOWN_LANGUAGE) -> None:
    """Read a published RoBERTa or XLM-R -> out/body and out/pack, in fp32. No code in model.pt is run.

    folder: model.pt, dict.txt, and sentencepiece.bpe.model (XLM-R) or GPT-2's encoder.json and vocab.bpe
    (RoBERTa). Raises UserError where a file is missing or damaged, or the model is another.
    """
    folder = Path(folder)
    refuse_existing(out)
    where = folder / WEIGHTS
    tensors, settings = _read_checkpoint(where)
    config = _body_config(tensors, settings, where)
    vocabulary = _vocabulary(folder)
    rows = len(tensors[f"{_ENCODER}embed_tokens.weight"])
    if max(vocabulary.order) != rows - 1:
        raise UserError(f"{where}: embeddings of {rows} ids, but {DICTIONARY} gives {max(vocabulary.order) + 1}")
    ours = from_foreign(tensors, config, rows, _names(tensors, config.num_layers), where)
    save_imported(out, config, ours, vocabulary, language, folder.name)


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors of the model without copies and buffers, settings of the training run)."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=False, pickle_module=inert)
        tensors = {name: tensor for name, tensor in checkpoint["model"].items() if isinstance(tensor, torch.Tensor)}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (
        OSError,
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
        KeyError,
        AttributeError,
        ValueError,
        TypeError,
    ) as error:
        raise UserError(f"{path}: damaged, or not a checkpoint of fairseq ({type(error).__name__})") from None
    tensors = {
        name.partition(".")[2].replace(".layernorm_embedding.", ".emb_layer_norm."): tensor
        for name, tensor in tensors.items()
        if name.startswith(("encoder.", "decoder."))
    }
    tied = tensors.pop("lm_head.weight", None)
    tokens = tensors.get(f"{_ENCODER}embed_tokens.weight", torch.empty(0))
    if tied is not None and not torch.equal(tied, tokens):
        raise UserError(f"{path}: its output embeddings are not its input embeddings; that is not supported")
    for buffer in ("version", "embed_positions._float_tensor"):
        tensors.pop(_ENCODER + buffer, None)
    settings = checkpoint.get("args") or _plain(_plain(checkpoint.get("cfg", {})).get("model", {}))
    return tensors, _plain(settings)


def _plain(settings: Any) -> dict[str, Any]:
    """Settings as a dict, from a dict, a Namespace, or what is left of a DictConfig of omegaconf."""
    if isinstance(settings, dict):
        return settings
    content = vars(settings).get("_content", vars(settings))
    return {
        key: vars(value).get("_val", value) if isinstance(value, inert.Inert) else value
        for key, value in content.items()
    }


def _body_config(tensors: dict[str, Tensor], settings: dict[str, Any], where: Path) -> BodyConfig:
    """Sizes from the tensors' shapes; the number of heads and the dropouts from the settings."""
    layers = {int(name.split(".")[2]) for name in tensors if name.startswith(f"{_ENCODER}layers.")}
    needed = [f"{_ENCODER}{name}.weight" for name in ("embed_positions", "embed_tokens", "layers.0.fc1")]
    heads = settings.get("encoder_attention_heads")
    if not isinstance(heads, int) or not all(name in tensors for name in needed):
        raise UserError(f"{where}: not a RoBERTa of fairseq")
    if settings.get("activation_fn", "gelu") != "gelu":
        raise UserError(f"{where}: activation_fn {settings['activation_fn']} is not supported, only gelu")
    positions, tokens, ffn = (tensors[name] for name in needed)
    if heads < 1 or tokens.shape[1] % heads:
        raise UserError(f"{where}: hidden size {tokens.shape[1]} is not a multiple of {heads} heads")
    return BodyConfig(
        len(layers),
        tokens.shape[1],
        heads,
        len(ffn),
        len(positions) - FIRST_POSITION,
        (len(layers),),
        settings.get("dropout", 0.1),
        settings.get("attention_dropout", 0.1),
    )


def _names(tensors: dict[str, Tensor], num_layers: int) -> dict[str, list[str]]:
    """Each of our parameters -> those of fairseq's that are ours when concatenated along the first axis."""
    modules = {
        "body.embedding_norm": f"{_ENCODER}emb_layer_norm",
        f"body.heads.{num_layers}.dense": "lm_head.dense",
        f"body.heads.{num_layers}.norm": "lm_head.layer_norm",
    }
    found = {
        "pack.tokens": [f"{_ENCODER}embed_tokens.weight"],
        "pack.bias": ["lm_head.bias"],
        "body.positions": [f"{_ENCODER}embed_positions.weight"],
    }
    for layer in range(num_layers):
        theirs = f"{_ENCODER}layers.{layer}"
        modules |= {f"body.layers.{layer}.{module}": f"{theirs}.{name}" for module, name in _LAYER.items()}
        for kind in ("weight", "bias"):
            joined = f"{theirs}.self_attn.in_proj_{kind}"  # checkpoints of 2019
            apart = [f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            found[f"body.layers.{layer}.qkv.{kind}"] = [joined] if joined in tensors else apart
    return found | {
        f"{ours}.{kind}": [f"{theirs}.{kind}"] for ours, theirs in modules.items() for kind in ("weight", "bias")
    }


def _vocabulary(folder: Path) -> Vocabulary:
    """Ids of dict.txt: the four special tokens, its lines in order, <mask>."""
    path = folder / DICTIONARY
    try:
        words = [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: missing or unreadable ({error}); it must lie beside {WEIGHTS}") from None
    model = folder / SENTENCEPIECE_FILE
    if model.is_file():
        data, _ = unigram_from_sentencepiece(model.read_bytes(), model)
        ids = {word: id for id, word in enumerate([*SPECIAL, *words, MASK])}
        pieces = [*unigram_pieces(data), MASK]
        missing = [piece for piece in pieces if piece not in ids]
        if missing:
            raise UserError(f"{path}: no line for {missing[0]!r} of {model.name}; they do not belong together")
        return Vocabulary(UNIGRAM_FILE, data, [ids[piece] for piece in pieces])
    encoder = {str(id): string for string, id in read_json(folder / "encoder.json").items()}
    strings = [*SPECIAL, *(encoder.get(word, word) for word in words), MASK]
    ids = {string: id for id, string in enumerate(strings)}
    tokenizer = byte_level_from_merges(ids, folder / "vocab.bpe")
    return Vocabulary(BYTE_LEVEL_FILE, *byte_level_in_our_order(json.loads(tokenizer.to_str()), path))
