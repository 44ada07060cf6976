"""The architectures of Hugging Face's that are served: what tells one from another, declared once.

A body is an encoder with post-LN layers; its BodyConfig says the rest (epsilon, token types). Names of parameters and
modules are RoBERTa's in this package, and `Architecture.renamed` turns their beginnings into another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ds_minimodel.common.vocabulary import BOS, EOS, PAD
from ds_minimodel.model.transformer import FIRST_POSITION, BodyConfig

_FAIRSEQ_IDS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}


@dataclass(frozen=True)
class Architecture:
    """One of Hugging Face's families of encoders.

    model_type: in its config.json. classes: how the names of its model classes begin. tokenizer: the same of its own
    tokenizer class. token_types: vectors that tell the texts of a pair apart. first_position: row of the table of
    positions that the first token has. fixed_ids: what keys of config.json must be; positions count from pad_token_id.
    renamed: beginnings of RoBERTa's names -> its own. unused: beginnings of names that a masked LM may have, without
    effect on it.
    """

    model_type: str
    classes: str
    tokenizer: str
    token_types: int = 1
    first_position: int = FIRST_POSITION
    fixed_ids: Mapping[str, int] = field(default_factory=_FAIRSEQ_IDS.copy)
    renamed: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ("roberta.pooler.", "roberta.embeddings.position_ids")

    def name(self, of_roberta: str) -> str:
        """This architecture's name of what RoBERTa has under another."""
        for beginning, own in self.renamed.items():
            if of_roberta.startswith(beginning):
                return own + of_roberta.removeprefix(beginning)
        return of_roberta


_ROBERTA = Architecture("roberta", "Roberta", "Roberta")
_BERT = Architecture(
    "bert",
    "Bert",
    "Bert",
    token_types=2,
    first_position=0,
    fixed_ids={},
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
)
ARCHITECTURES = {
    architecture.model_type: architecture
    for architecture in (
        _ROBERTA,
        Architecture("xlm-roberta", "XLMRoberta", "XLMRoberta"),
        Architecture("camembert", "Camembert", "Camembert", fixed_ids={"pad_token_id": PAD}),
        _BERT,
    )
}


def architecture_of(body: BodyConfig) -> Architecture:
    """The architecture that a body is exported as."""
    return _ROBERTA if body.token_types == _ROBERTA.token_types else _BERT
