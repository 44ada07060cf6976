"""The pack that step 2 starts from, by the recipe's way of initialising it."""

from collections.abc import Sequence

from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.models import initialisation
from ds_minimodel.models.initialisation import Pieces
from ds_minimodel.models.trainable import Tensors
from ds_minimodel.tokenizers.alignment import align_tokenizers
from ds_minimodel.tokenizers.tokenizer import Tokenizer


def first_pack(
    method: str,
    seed: int,
    of_target: Tokenizer,
    of_source: Tokenizer,
    source: Tensors,
    pairs: Sequence[tuple[str, str]] = (),
) -> Tensors:
    """Return the first tensors of a target language.

    Args:
        method: The recipe's `adapt.initialisation`.
        seed: Decides the rows that are drawn.
        of_target: The target's tokenizer. Where it extends the source's vocabulary, the new pieces
            alone get rows.
        of_source: The source's tokenizer.
        source: Tensors of the source pack: tokens (V, H), output (V, H), bias (V).
        pairs: Texts of the source with their translations, which `aligned` reads.

    Returns:
        Tensors of the same names with a row for each (new) piece of the target.

    Raises:
        ValueError: No initialisation is called `method`.
    """
    num_base = of_target.vocabulary.num_base
    vocabulary = of_target.vocabulary
    if num_base:
        vocabulary = Vocabulary(vocabulary.size - num_base)
    target = Pieces(vocabulary, of_target.pieces()[num_base:])
    pieces = Pieces(of_source.vocabulary, of_source.pieces())
    match method:
        case "overlap":
            return initialisation.overlap(target, pieces, source, seed)
        case "random":
            return initialisation.random(target, source, seed)
        case "pieces":
            parts = of_source.cut(target.strings, extend_this=num_base > 0)
            return initialisation.pieces(target, pieces, source, parts, seed)
        case "aligned":
            parts = of_source.cut(target.strings, extend_this=num_base > 0)
            mixed = align_tokenizers(of_source, of_target, pairs)
            return initialisation.aligned(target, pieces, source, parts, mixed, seed)
    raise ValueError(f"no initialisation {method!r}")
