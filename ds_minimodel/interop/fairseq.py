"""Import of fairseq's RoBERTa and XLM-R as published: model.pt, dict.txt and the files of their tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored, as_model, read_model
from ds_minimodel.common.vocabulary import MASK, SPECIAL, UNKNOWN_LANGUAGE
from ds_minimodel.data.tokenizer import UNIGRAM_FILE
from ds_minimodel.data.tokenizer_json import ADVICE, ByteLevel, Ids
from ds_minimodel.interop import inert
from ds_minimodel.interop.imported import refuse_existing, save_imported
from ds_minimodel.interop.names import from_foreign, same, state_dict
from ds_minimodel.interop.vocabularies import (
    SENTENCEPIECE_FILE,
    Vocabulary,
    bpe_from_merges,
    byte_level_in_our_order,
    read_file,
    unigram_from_sentencepiece,
    unigram_pieces,
)
from ds_minimodel.model.artifacts import Rate, Size, architecture_fault
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


class _Settings(Stored):
    """Of the settings of a training run what decides the model."""

    encoder_attention_heads: Size
    activation_fn: Literal["gelu"] = "gelu"
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], _Settings]:
    """(tensors of the model without copies and buffers, settings of the training run)."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=False, pickle_module=inert)
        held = {name: value for name, value in checkpoint["model"].items() if isinstance(value, Tensor)}
        found = [(name.partition(".")[2], name) for name in held if name.startswith(("encoder.", "decoder."))]
        settings = _plain(checkpoint.get("args") or _plain(_plain(checkpoint.get("cfg", {})).get("model", {})))
    except Exception as error:  # what torch's unpickler raises depends on the bytes that are wrong
        raise UserError(f"{path}: damaged, or not a checkpoint of fairseq ({type(error).__name__})") from None
    values = {ours.replace(".layernorm_embedding.", ".emb_layer_norm."): held[name] for ours, name in found}
    if len(values) < len(found):
        raise UserError(f"{path}: a tensor comes twice, as the encoder's and as the decoder's")
    tensors = state_dict(values, path)
    tied = tensors.pop("lm_head.weight", None)
    tokens = tensors.get(f"{_ENCODER}embed_tokens.weight", torch.empty(0))
    if tied is not None and not same(tied, tokens):
        raise UserError(f"{path}: its output embeddings are not its input embeddings; that is not supported")
    for buffer in ("version", "embed_positions._float_tensor"):
        tensors.pop(_ENCODER + buffer, None)
    return tensors, as_model(settings, _Settings, f"{path}: settings", "not a RoBERTa of fairseq that is supported")


def _plain(settings: Any) -> dict[str, Any]:
    """Settings as a dict, from a dict, a Namespace, or what is left of a DictConfig of omegaconf."""
    if isinstance(settings, dict):
        return settings
    content = vars(settings).get("_content", vars(settings))
    return {
        key: vars(value).get("_val", value) if isinstance(value, inert.Inert) else value
        for key, value in content.items()
    }


def _body_config(tensors: dict[str, Tensor], settings: _Settings, where: Path) -> BodyConfig:
    """Sizes from the tensors' shapes; the number of heads and the dropouts from the settings."""
    layers = {name.split(".")[2] for name in tensors if name.startswith(f"{_ENCODER}layers.")}
    needed = [f"{_ENCODER}{name}.weight" for name in ("embed_positions", "embed_tokens", "layers.0.fc1")]
    if not all(name in tensors and tensors[name].dim() == 2 for name in needed):
        raise UserError(f"{where}: not a RoBERTa of fairseq")
    positions, tokens, ffn = (tensors[name] for name in needed)
    config = BodyConfig(
        len(layers),
        tokens.shape[1],
        settings.encoder_attention_heads,
        len(ffn),
        len(positions) - FIRST_POSITION,
        (len(layers),),
        settings.dropout,
        settings.attention_dropout,
    )
    fault = architecture_fault(config) or ("no positions" if config.max_positions < 1 else None)
    if fault:
        raise UserError(f"{where}: {fault}")
    return config


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
        lines = read_file(path).decode().split("\n")
    except (UserError, UnicodeDecodeError) as error:
        raise UserError(f"{str(error).removeprefix(f'{path}: ')}: {path} must lie beside {WEIGHTS}, in UTF-8") from None
    words = [line.rsplit(" ", 1)[0] for line in lines if line]
    model = folder / SENTENCEPIECE_FILE
    if model.is_file():
        data, _ = unigram_from_sentencepiece(read_file(model), model)
        ids = {word: id for id, word in enumerate([*SPECIAL, *words, MASK])}
        pieces = [*unigram_pieces(data), MASK]
        missing = [piece for piece in pieces if piece not in ids]
        if missing:
            raise UserError(f"{path}: no line for {missing[0]!r} of {model.name}; they do not belong together")
        return Vocabulary(UNIGRAM_FILE, data, [ids[piece] for piece in pieces])
    encoder = {str(id): string for string, id in read_model(folder / "encoder.json", Ids, ADVICE).items()}
    strings = [*SPECIAL, *(encoder.get(word, word) for word in words), MASK]
    ids = {string: id for id, string in enumerate(strings)}
    splitter = ByteLevel(type="ByteLevel", add_prefix_space=False)
    return byte_level_in_our_order(bpe_from_merges(ids, folder / "vocab.bpe"), ids, splitter, path)
