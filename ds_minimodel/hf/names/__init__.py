"""Names of bodies' parameters in transformers: a table a family, an entry a kind of body."""

from collections.abc import Mapping, Sequence

from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.names.modern import MODERN
from ds_minimodel.hf.names.roberta import BERT, DISTILBERT, ROBERTA

# Kind of body -> transformers' model types that are such bodies. A body that was made here is
# written as the first.
ARCHITECTURES: Mapping[str, Sequence[Architecture]] = {
    "roberta": ROBERTA,
    "bert": BERT,
    "distilbert": DISTILBERT,
    **MODERN,
}


def architecture_of(kind: str, model_type: str = "") -> Architecture | None:
    """Return the table of a kind of body, None where transformers has no such body.

    Args:
        kind: of body.
        model_type: which of its tables; by default the first.
    """
    for table in ARCHITECTURES.get(kind, ()):
        if not model_type or table.model_type == model_type:
            return table
    return None
