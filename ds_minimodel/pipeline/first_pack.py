"""The pack that step 2 starts from: the recipe's way of initialising it, with the static vectors
that it needs.
"""

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.config.steps import Adapt
from ds_minimodel.models import initialisation
from ds_minimodel.models.initialisation import Pieces
from ds_minimodel.models.trainable import Tensors
from ds_minimodel.tokenizers.tokenizer import Tokenizer
from ds_minimodel.tokenizers.vectors import piece_vectors, read_vectors


def check_vectors(section: Adapt) -> None:
    """Raise UserError where word vectors are missing, or their dimensions differ."""
    sizes = {path: read_vectors(path, 1).vectors.shape[1] for path in section.word_vectors.values()}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{path} has {size} dimensions" for path, size in sizes.items())
        raise UserError(f"adapt.word_vectors: {said}; they must be of one size")


def first_pack(
    section: Adapt,
    seed: int,
    languages: tuple[str, str],
    of_target: Tokenizer,
    of_source: Tokenizer,
    source: Tensors,
) -> Tensors:
    """The first tensors of a target language.

    languages: the target and the source, whose tokenizers follow. source: the tensors of the source
    pack. UserError as check_vectors.
    """
    check_vectors(section)
    # Of a target that extends the source's vocabulary the new pieces alone.
    num_base = of_target.vocabulary.num_base
    vocabulary = (
        Vocabulary(of_target.vocabulary.size - num_base) if num_base else of_target.vocabulary
    )
    target, pieces = (
        Pieces(vocabulary, of_target.pieces()[num_base:]),
        Pieces(of_source.vocabulary, of_source.pieces()),
    )
    match section.initialisation:
        case "overlap":
            return initialisation.overlap(target, pieces, source, seed)
        case "random":
            return initialisation.random(target, source, seed)
        case "pieces":
            parts = of_source.cut(target.strings, extend_this=num_base > 0)
            return initialisation.pieces(target, pieces, source, parts, seed)
        case "ofa":
            words = [read_vectors(section.word_vectors[name]) for name in languages]
            new, old = (
                torch.from_numpy(piece_vectors(*each))
                for each in zip((of_target, of_source), words, strict=True)
            )
            return initialisation.ofa(target, pieces, source, new[num_base:], old, seed)
