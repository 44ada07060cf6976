"""Names of bodies' parameters in transformers: a table a family, an entry a kind of body."""

from collections.abc import Mapping, Sequence

from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.names.modern import MODERN
from ds_minimodel.hf.names.roberta import BERT, DISTILBERT, ROBERTA

# Kind of body -> transformers' model types that are such bodies; the first is what a body is
# written as.
ARCHITECTURES: Mapping[str, Sequence[Architecture]] = {
    "roberta": ROBERTA,
    "bert": BERT,
    "distilbert": DISTILBERT,
    **MODERN,
}


def architecture_of(kind: str, model_type: str = "") -> Architecture | None:
    """The table of a kind of body, of the model type where one is given; None where transformers
    has no such body.
    """
    tables = ARCHITECTURES.get(kind, ())
    return next(
        (table for table in tables if not model_type or table.model_type == model_type), None
    )
