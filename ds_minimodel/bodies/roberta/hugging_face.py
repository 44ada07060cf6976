"""RoBERTa, XLM-R, CamemBERT and BERT as Hugging Face's library writes them: configuration and names of parameters.

Names are written as RoBERTa's, and `renamed` turns their beginnings into BERT's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ds_minimodel.bodies.config import BodyConfig
from ds_minimodel.bodies.hugging_face import Architecture, ConfigFile, Shapes, as_fp32, converted, remove_copy
from ds_minimodel.bodies.roberta import BertConfig, RobertaConfig
from ds_minimodel.bodies.roberta.model import FIRST_POSITION
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.sections import Probability

_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
TOKENS = "roberta.embeddings.word_embeddings.weight"
TYPES = "roberta.embeddings.token_type_embeddings.weight"
_COPIES = {"lm_head.decoder.weight": TOKENS, "lm_head.decoder.bias": "lm_head.bias"}  # that a file may hold too
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # of the first BERTs


class RobertaConfigFile(ConfigFile):
    """What is served, with RobertaConfig's defaults for absent keys."""

    hidden_act: Literal["gelu"] = "gelu"
    layer_norm_eps: Annotated[float, Field(gt=0, le=0.01)] = 1e-12
    type_vocab_size: int = 2
    position_embedding_type: Literal["absolute"] | None = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True
    pad_token_id: int | None = 1
    pruned_heads: Annotated[dict[str, Any], Field(max_length=0)] = {}
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1


@dataclass(frozen=True)
class RobertaArchitecture(Architecture):
    """A model type of RoBERTa's and BERT's kinds.

    first_position: row of the table of positions that the first token has; theirs
    count from pad_token_id. renamed: beginnings of RoBERTa's names -> its own. unused: beginnings of names that a
    masked LM may have, without effect on it.
    """

    own: type[RobertaConfig] = RobertaConfig
    config_file: type[ConfigFile] = RobertaConfigFile
    first_position: int = FIRST_POSITION
    renamed: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ("roberta.pooler.", "roberta.embeddings.position_ids")

    @property
    def pad_id(self) -> int | None:
        return self.first_position - 1 if self.first_position else None

    def config(self, file: Any, where: Path) -> tuple[BodyConfig, int]:
        fixed = {"type_vocab_size": self.own.token_types}
        if self.pad_id is not None:
            fixed["pad_token_id"] = self.pad_id
        for key, value in fixed.items():
            if getattr(file, key) != value:
                raise UserError(f"{where}: {key}: only {value} is supported, not {getattr(file, key)}")
        positions = file.max_position_embeddings - self.first_position
        if positions < 1:
            raise UserError(
                f"{where}: max_position_embeddings: no positions: the first {self.first_position} are not used"
            )
        config = self.checked_config(
            file,
            where,
            max_positions=positions,
            dropout=file.hidden_dropout_prob,
            attention_dropout=file.attention_probs_dropout_prob,
            norm_eps=file.layer_norm_eps,
        )
        return config, file.vocab_size

    def own_keys(self, config: Any) -> dict[str, Any]:
        return {
            "max_position_embeddings": config.max_positions + self.first_position,
            "hidden_act": "gelu",
            "layer_norm_eps": config.norm_eps,
            "type_vocab_size": self.own.token_types,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
        }

    def from_theirs(
        self, tensors: dict[str, Tensor], config: BodyConfig, shapes: Shapes, where: Path
    ) -> dict[str, Tensor]:
        theirs = self._without_copies(tensors, where)
        only_type = None
        if self.own.token_types == 1:  # the vector of an only token type is added to the positions
            name = self._name(TYPES)
            only_type = theirs.pop(name, torch.zeros(1, config.hidden_size))
            only_type = as_fp32(only_type, name, (1, config.hidden_size), where)
        missing = FIRST_POSITION - self.first_position
        rows, hidden = shapes["body.positions"]
        names = self._names(config, self.language_model_head(config.num_layers))
        shapes = {**shapes, "body.positions": (rows - missing, hidden)}
        ours = converted(theirs, names, shapes, where, "RoBERTa or BERT")
        ours["body.positions"] = F.pad(ours["body.positions"], (0, 0, missing, 0))
        if only_type is not None:
            ours["body.positions"][FIRST_POSITION:] += only_type
        return ours

    def to_theirs(self, tensors: dict[str, Tensor], config: BodyConfig, head: Mapping[str, str]) -> dict[str, Tensor]:
        theirs = {self._name(TYPES): torch.zeros(1, config.hidden_size)}  # RoBERTa has one, and never uses it
        missing = FIRST_POSITION - self.first_position
        tensors = {**tensors, "body.positions": tensors["body.positions"][missing:]}
        for ours, parts in self._names(config, head).items():
            chunks = tensors[ours].chunk(len(parts))
            theirs |= {part: chunk.contiguous() for part, chunk in zip(parts, chunks, strict=True)}
        return theirs

    def language_model_head(self, depth: int) -> dict[str, str]:
        return {f"body.heads.{depth}.dense": "lm_head.dense", f"body.heads.{depth}.norm": "lm_head.layer_norm"}

    def _names(self, config: BodyConfig, head: Mapping[str, str]) -> dict[str, list[str]]:
        """Each of our parameters -> those of theirs that it is when these are concatenated along the first axis."""
        modules = {"body.embedding_norm": "roberta.embeddings.LayerNorm", **head}
        for layer in range(config.num_layers):
            theirs = f"roberta.encoder.layer.{layer}"
            modules |= {f"body.layers.{layer}.{ours}": f"{theirs}.{name}" for ours, name in _LAYER.items()}
        found = {"pack.tokens": [TOKENS], "body.positions": ["roberta.embeddings.position_embeddings.weight"]}
        if "lm_head.dense" in head.values():
            found["pack.bias"] = ["lm_head.bias"]
        if self.own.token_types > 1:
            found["body.types"] = [TYPES]
        for kind in ("weight", "bias"):
            found |= {f"{ours}.{kind}": [f"{theirs}.{kind}"] for ours, theirs in modules.items()}
            for layer in range(config.num_layers):
                attention = f"roberta.encoder.layer.{layer}.attention.self"
                found[f"body.layers.{layer}.qkv.{kind}"] = [
                    f"{attention}.{part}.{kind}" for part in ("query", "key", "value")
                ]
        return {ours: [self._name(part) for part in parts] for ours, parts in found.items()}

    def _name(self, of_roberta: str) -> str:
        """This architecture's name of what RoBERTa has under another."""
        for beginning, own in self.renamed.items():
            if of_roberta.startswith(beginning):
                return own + of_roberta.removeprefix(beginning)
        return of_roberta

    def _without_copies(self, tensors: Mapping[str, Tensor], where: Path) -> dict[str, Tensor]:
        """The tensors under their present names, without copies and what a masked LM does not use."""
        found = {name: tensor for name, tensor in tensors.items() if not name.startswith(self.unused)}
        for name in list(found):
            for old, new in _OLD_NAMES.items():
                if name.endswith(old):
                    present = name.removesuffix(old) + new
                    if present in found:
                        raise UserError(f"{where}: {name!r:.80} comes twice, under its old name and its new one")
                    found[present] = found.pop(name)
        for copy, original in _COPIES.items():
            remove_copy(found, self._name(copy), self._name(original), where)
        return found


ROBERTA = (
    RobertaArchitecture("roberta", "Roberta", "Roberta"),  # what a body is written as
    RobertaArchitecture("xlm-roberta", "XLMRoberta", "XLMRoberta"),
    RobertaArchitecture("camembert", "Camembert", "Camembert"),
)
BERT = (
    RobertaArchitecture(
        "bert",
        "Bert",
        "Bert",
        own=BertConfig,
        first_position=0,
        renamed={
            "roberta.": "bert.",
            "lm_head.dense.": "cls.predictions.transform.dense.",
            "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
            "lm_head.decoder.": "cls.predictions.decoder.",
            "lm_head.bias": "cls.predictions.bias",
            "classifier.dense.": "bert.pooler.dense.",
            "classifier.out_proj.": "classifier.",
        },
        unused=("bert.pooler.", "bert.embeddings.position_ids", "cls.seq_relationship."),
    ),
)
