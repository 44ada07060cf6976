"""Names of parameters: ours, and those that Hugging Face's RoBERTa gives them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.transformer import BodyConfig

_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
TOKENS = "roberta.embeddings.word_embeddings.weight"
TYPES = "roberta.embeddings.token_type_embeddings.weight"


def masked_lm_head(depth: int) -> dict[str, str]:
    """Modules of the masked-LM head that reads after `depth` layers -> Hugging Face's."""
    return {f"body.heads.{depth}.dense": "lm_head.dense", f"body.heads.{depth}.norm": "lm_head.layer_norm"}


def parameter_names(num_layers: int, head: dict[str, str]) -> dict[str, list[str]]:
    """Each parameter of our module -> those of Hugging Face's that are ours when concatenated along the first axis.

    head: the modules of the model's head -> Hugging Face's. A masked-LM head brings the pack's bias.
    """
    modules = {"body.embedding_norm": "roberta.embeddings.LayerNorm", **head}
    for layer in range(num_layers):
        modules |= {
            f"body.layers.{layer}.{ours}": f"roberta.encoder.layer.{layer}.{theirs}" for ours, theirs in _LAYER.items()
        }
    found = {"pack.tokens": [TOKENS], "body.positions": ["roberta.embeddings.position_embeddings.weight"]}
    if "lm_head.dense" in head.values():
        found["pack.bias"] = ["lm_head.bias"]
    for kind in ("weight", "bias"):
        found |= {f"{ours}.{kind}": [f"{theirs}.{kind}"] for ours, theirs in modules.items()}
        for layer in range(num_layers):
            attention = f"roberta.encoder.layer.{layer}.attention.self"
            found[f"body.layers.{layer}.qkv.{kind}"] = [
                f"{attention}.{part}.{kind}" for part in ("query", "key", "value")
            ]
    return found


def to_hugging_face(tensors: dict[str, Tensor], found: dict[str, list[str]]) -> dict[str, Tensor]:
    """Our state dict under Hugging Face's names, with the token types that RoBERTa has and never uses."""
    theirs = {TYPES: torch.zeros(1, tensors["pack.tokens"].shape[1])}
    for ours, parts in found.items():
        theirs |= {part: chunk.contiguous() for part, chunk in zip(parts, tensors[ours].chunk(len(parts)))}
    return theirs


def from_foreign(
    tensors: dict[str, Tensor], config: BodyConfig, vocab_size: int, found: dict[str, list[str]], where: Path
) -> dict[str, Tensor]:
    """Another library's state dict of a masked LM under our names, in fp32; `found` as parameter_names gives it.

    where: the file, for messages. Raises UserError where a tensor is missing, of another shape than the
    architecture gives, or without a counterpart.
    """
    with torch.device("meta"):
        module = MaskedLanguageModel(config, vocab_size)
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    rest, ours = dict(tensors), {}
    for name, parts in found.items():
        missing = [part for part in parts if part not in rest]
        if missing:
            raise UserError(f"{where}: no tensor {missing[0]}; it must hold a RoBERTa masked language model")
        chunks = [rest.pop(part).float() for part in parts]
        expected = (shapes[name][0] // len(parts), *shapes[name][1:])
        wrong = [chunk.shape for chunk in chunks if chunk.shape != expected]
        if wrong:
            raise UserError(f"{where}: {parts[0]} has shape {tuple(wrong[0])}, the configuration gives {expected}")
        ours[name] = torch.cat(chunks)
    if rest:
        raise UserError(
            f"{where}: {sorted(rest)[0]} has no counterpart here; it must hold a RoBERTa masked "
            "language model without additions"
        )
    return ours
