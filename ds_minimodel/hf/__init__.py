"""Hugging Face: transformers' folders in and out, model cards.

architecture.py has the type of a table of names; a family's table is a file of its own and an entry below.
"""

from collections.abc import Mapping, Sequence

from ds_minimodel.hf.architecture import Architecture
from ds_minimodel.hf.modern import MODERN
from ds_minimodel.hf.roberta import BERT, ROBERTA

# Kind of body -> transformers' model types that are such bodies; the first is what a body is exported as.
ARCHITECTURES: Mapping[str, Sequence[Architecture]] = {"roberta": ROBERTA, "bert": BERT, **MODERN}
