"""Names of parameters: ours, and those that Hugging Face's RoBERTa and BERT give them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_minimodel.common.errors import UserError
from ds_minimodel.interop.architectures import Architecture
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.transformer import FIRST_POSITION, BodyConfig

_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
_SERVED = "RoBERTa or BERT"
TOKENS = "roberta.embeddings.word_embeddings.weight"
TYPES = "roberta.embeddings.token_type_embeddings.weight"


def masked_lm_head(depth: int) -> dict[str, str]:
    """Modules of the masked-LM head that reads after `depth` layers -> Hugging Face's."""
    return {f"body.heads.{depth}.dense": "lm_head.dense", f"body.heads.{depth}.norm": "lm_head.layer_norm"}


def parameter_names(architecture: Architecture, num_layers: int, head: dict[str, str]) -> dict[str, list[str]]:
    """Each parameter of our module -> those of Hugging Face's that are ours when concatenated along the first axis.

    head: the modules of the model's head -> those of Hugging Face's RoBERTa. A masked-LM head brings the pack's bias.
    """
    modules = {"body.embedding_norm": "roberta.embeddings.LayerNorm", **head}
    for layer in range(num_layers):
        modules |= {
            f"body.layers.{layer}.{ours}": f"roberta.encoder.layer.{layer}.{theirs}" for ours, theirs in _LAYER.items()
        }
    found = {"pack.tokens": [TOKENS], "body.positions": ["roberta.embeddings.position_embeddings.weight"]}
    if "lm_head.dense" in head.values():
        found["pack.bias"] = ["lm_head.bias"]
    if architecture.token_types > 1:
        found["body.types"] = [TYPES]
    for kind in ("weight", "bias"):
        found |= {f"{ours}.{kind}": [f"{theirs}.{kind}"] for ours, theirs in modules.items()}
        for layer in range(num_layers):
            attention = f"roberta.encoder.layer.{layer}.attention.self"
            found[f"body.layers.{layer}.qkv.{kind}"] = [
                f"{attention}.{part}.{kind}" for part in ("query", "key", "value")
            ]
    return {ours: [architecture.name(part) for part in parts] for ours, parts in found.items()}


def to_hugging_face(
    tensors: dict[str, Tensor], found: dict[str, list[str]], architecture: Architecture
) -> dict[str, Tensor]:
    """Our state dict under Hugging Face's names, with the token types that RoBERTa has and never uses."""
    theirs = {architecture.name(TYPES): torch.zeros(1, tensors["pack.tokens"].shape[1])}
    unused_positions = FIRST_POSITION - architecture.first_position
    tensors = {**tensors, "body.positions": tensors["body.positions"][unused_positions:]}
    for ours, parts in found.items():
        theirs |= {part: chunk.contiguous() for part, chunk in zip(parts, tensors[ours].chunk(len(parts)), strict=True)}
    return theirs


def from_foreign(
    tensors: dict[str, Tensor],
    config: BodyConfig,
    vocab_size: int,
    found: dict[str, list[str]],
    where: Path,
    first_position: int = FIRST_POSITION,
) -> dict[str, Tensor]:
    """Another library's state dict of a masked LM under our names, in fp32; `found` as parameter_names gives it.

    where: the file, for messages. first_position: row of its table of positions that the first token has; rows of zeros
    are put before it where ours has more. Raises UserError where a tensor is missing, of another shape than the
    architecture gives, or without a counterpart.
    """
    with torch.device("meta"):
        module = MaskedLanguageModel(config, vocab_size)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    missing = FIRST_POSITION - first_position
    shapes["body.positions"] = (shapes["body.positions"][0] - missing, config.hidden_size)
    rest, ours = dict(tensors), {}
    for name, parts in found.items():
        expected = (shapes[name][0] // len(parts), *shapes[name][1:])
        chunks = []
        for part in parts:
            if part not in rest:
                raise UserError(f"{where}: no tensor {part}; it must hold a masked language model of {_SERVED}")
            chunks.append(as_fp32(rest.pop(part), part, expected, where))
        ours[name] = torch.cat(chunks)
    if rest:
        raise UserError(
            f"{where}: {sorted(rest)[0]!r:.120} has no counterpart here; it must hold a masked language model of "
            f"{_SERVED} without additions"
        )
    if missing:
        ours["body.positions"] = F.pad(ours["body.positions"], (0, 0, missing, 0))
    return ours


def as_fp32(tensor: Tensor, name: str, shape: tuple[int, ...], where: Path) -> Tensor:
    """A foreign weight as fp32; UserError where it is of another shape, not finite, or not a number fp32 has."""
    if tensor.shape != shape:
        raise UserError(f"{where}: {name} has shape {tuple(tensor.shape)}, the configuration gives {shape}")
    if not tensor.is_floating_point():
        raise UserError(f"{where}: {name} is {tensor.dtype}, not of floating point")
    converted = tensor.float()
    if not converted.isfinite().all():
        raise UserError(f"{where}: {name} holds NaN or infinite numbers; the model that it was made of diverged")
    if not torch.equal(converted.to(tensor.dtype), tensor):
        raise UserError(f"{where}: {name} is {tensor.dtype} and holds numbers that fp32 has not; convert it first")
    return converted


def state_dict(values: Mapping[Any, Any], where: Path) -> dict[str, Tensor]:
    """What a file of weights held, as tensors by name; UserError where it is something else.

    A view that repeats its numbers, of any size from a small file, is something else too.
    """
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise UserError(f"{where}: {name!r:.80} is not a dense tensor")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(f"{where}: {name!r:.80} of shape {tuple(tensor.shape)} has fewer numbers than that")
    return dict(values)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one type, one shape and the same numbers."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
