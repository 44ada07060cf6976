"""RoBERTa, XLM-R, CamemBERT and BERT as transformers has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_minimodel.hf.lazy import Lazy
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.models.roberta import BertConfig, DistilBertConfig, RobertaConfig
from ds_minimodel.models.roberta.model import FIRST_POSITION

_LAYER = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "ffn_in": ("intermediate.dense",),
    "ffn_out": ("output.dense",),
    "ffn_norm": ("output.LayerNorm",),
}
_KEYS = {
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}


@dataclass(frozen=True, kw_only=True)
class RobertaArchitecture(Architecture):
    """A model type of RoBERTa's and BERT's kinds.

    A body here has vectors of token types only where it has several types.

    Attributes:
        first_position: row of the table of positions that the first token has.
    """

    first_position: int = FIRST_POSITION

    def parts_of(self, names: Iterable[str], config: Any) -> dict[str, list[str]]:
        """Return the parts, where positions are the sum of those and the vectors of types."""
        by_name = super().parts_of(names, config)
        if "body.positions" in by_name and "body.types" in self.others:
            by_name["body.positions"].append(self.others["body.types"])
        return by_name

    def from_hf(
        self, hf_state: Mapping[str, Lazy], config: Any, names: Iterable[str]
    ) -> dict[str, Lazy]:
        """Return parameters.

        Where all tokens have one type, its vector is added to the positions, which does not change
        the sums.
        """
        others = [name for name in names if name != "body.positions"]
        parameters = super().from_hf(hf_state, config, others)
        table = hf_state[self.others["body.positions"]]
        types = hf_state[self.others["body.types"]] if "body.types" in self.others else None

        def positions() -> Tensor:
            padded = F.pad(table.read().float(), (0, 0, FIRST_POSITION - self.first_position, 0))
            if config.token_types == 1 and types is not None:
                padded[FIRST_POSITION:] += types.read()[0]
            return padded

        shape = (config.max_positions + FIRST_POSITION, config.hidden_size)
        return {**parameters, "body.positions": Lazy(shape, torch.float32, positions)}

    def to_hf(
        self, tensors: Mapping[str, Lazy], config: Any, head: Mapping[str, str]
    ) -> dict[str, Lazy]:
        """Return a state dict, with a vector of zeros where a body here has no types."""
        positions = tensors["body.positions"]
        read = positions.rows(FIRST_POSITION - self.first_position, positions.shape[0])
        no_types = {}
        if "body.types" in self.others:
            no_types = {self.others["body.types"]: Lazy.of(torch.zeros(1, config.hidden_size))}
        return no_types | super().to_hf({**tensors, "body.positions": read}, config, head)


def _architecture(
    model_type: str,
    classes: str,
    name: str = "roberta",
    first_position: int = FIRST_POSITION,
    **differs: Any,
) -> RobertaArchitecture:
    """Return a family like RoBERTa's.

    Args:
        model_type: in config.json.
        classes: prefix of the names of its model classes.
        name: how the names of its parameters begin.
        first_position: row of the table of positions that the first token has.
        differs: fields in which it is another.
    """
    values: dict[str, Any] = dict(
        first_position=first_position,
        fields=lambda hf_config: {
            "max_positions": hf_config.max_position_embeddings - first_position
        },
        field_keys=("max_position_embeddings", "type_vocab_size"),
        values=lambda config: {
            "max_position_embeddings": config.max_positions + first_position,
            "type_vocab_size": config.token_types,
        },
        endings=("ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"),
        config_class=RobertaConfig,
        keys=_KEYS,
        fixed={"hidden_act": "gelu"},
        tokens=f"{name}.embeddings.word_embeddings",
        output="lm_head",
        others={
            "body.positions": f"{name}.embeddings.position_embeddings.weight",
            "body.types": f"{name}.embeddings.token_type_embeddings.weight",
            "body.embedding_norm": f"{name}.embeddings.LayerNorm",
        },
        layers=f"{name}.encoder.layer",
        layer=_LAYER,
        head={"dense": "lm_head.dense", "norm": "lm_head.layer_norm"},
    )
    return RobertaArchitecture(model_type=model_type, classes=classes, **{**values, **differs})


# A body that was made here is written as the first.
ROBERTA = (
    _architecture("roberta", "Roberta"),
    _architecture("xlm-roberta", "XLMRoberta"),
    _architecture("camembert", "Camembert"),
)
BERT = (
    _architecture(
        "bert",
        "Bert",
        "bert",
        config_class=BertConfig,
        output="cls.predictions",
        head={
            "dense": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
        },
        tasks={"classifier.dense": "bert.pooler.dense", "classifier.out_proj": "classifier"},
        first_position=0,
    ),
)
DISTILBERT = (
    _architecture(
        "distilbert",
        "DistilBert",
        "distilbert",
        config_class=DistilBertConfig,
        first_position=0,
        sizes={
            "num_layers": "n_layers",
            "hidden_size": "dim",
            "num_heads": "n_heads",
            "ffn_size": "hidden_dim",
        },
        keys={
            "max_positions": "max_position_embeddings",
            "dropout": "dropout",
            "attention_dropout": "attention_dropout",
        },
        fields=lambda _: {},
        field_keys=(),
        values=lambda _: {},
        fixed={"activation": "gelu", "sinusoidal_pos_embds": False},
        output="vocab_projector",
        others={
            "body.positions": "distilbert.embeddings.position_embeddings.weight",
            "body.embedding_norm": "distilbert.embeddings.LayerNorm",
        },
        layers="distilbert.transformer.layer",
        layer={
            "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            "attention_out": ("attention.out_lin",),
            "attention_norm": ("sa_layer_norm",),
            "ffn_in": ("ffn.lin1",),
            "ffn_out": ("ffn.lin2",),
            "ffn_norm": ("output_layer_norm",),
        },
        head={"dense": "vocab_transform", "norm": "vocab_layer_norm"},
        tasks={"classifier.dense": "pre_classifier", "classifier.out_proj": "classifier"},
    ),
)
