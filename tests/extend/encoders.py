"""An embedding model that is extended, and what it finds."""

import numpy as np
from sentence_transformers import SentenceTransformer

from ds_minimodel.extend.config import read_config
from ds_minimodel.extend.run import extend
from tests.pipeline.sentence_world import (
    pairs_of,
)


def call(folder, out, **options):
    """Extend the base of `folder`; what was said."""
    values = {"model": folder / "base", "pairs": [folder / "help.tsv"], "language": "xx"}
    said = []
    extend(read_config({**values, "out": folder / out, **options}), said.append)
    return said


def vectors_of(model, lines):
    """What sentence-transformers makes of lines, of length 1."""
    encoder = SentenceTransformer(str(model), device="cpu")
    return encoder.encode(lines, normalize_embeddings=True)


def found(model, seed=2):
    """Share of lines of the other language whose nearest line is their own source."""
    pairs = pairs_of(60, seed=seed)
    sources = vectors_of(model, [pair[0] for pair in pairs])
    targets = vectors_of(model, [pair[1] for pair in pairs])
    return float((np.argmax(targets @ sources.T, 1) == np.arange(len(pairs))).mean())
