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
    target_tokenizer: Tokenizer,
    source_tokenizer: Tokenizer,
    source_pack: Tensors,
    pairs: Sequence[tuple[str, str]] = (),
) -> Tensors:
    """Return the first tensors of a target language.

    Args:
        method: The recipe's `adapt.initialisation`.
        seed: Decides the rows that are drawn.
        target_tokenizer: The target's tokenizer. Where it extends the source's vocabulary, only
            the new pieces get rows.
        source_tokenizer: The source's tokenizer.
        source_pack: Tensors of the source pack: tokens (V, H), output (V, H), bias (V).
        pairs: Texts of the source with their translations, which `aligned` reads.

    Returns:
        Tensors of the same names with a row for each (new) piece of the target.

    Raises:
        ValueError: No initialisation is called `method`.
    """
    num_base = target_tokenizer.vocabulary.num_base
    vocabulary = target_tokenizer.vocabulary
    if num_base:
        vocabulary = Vocabulary(vocabulary.size - num_base)
    target = Pieces(vocabulary, target_tokenizer.pieces()[num_base:])
    source = Pieces(source_tokenizer.vocabulary, source_tokenizer.pieces())
    match method:
        case "overlap":
            return initialisation.overlap(target, source, source_pack, seed)
        case "random":
            return initialisation.random(target, source_pack, seed)
        case "pieces":
            parts = source_tokenizer.cut(target.strings, extend_this=num_base > 0)
            return initialisation.pieces(target, source, source_pack, parts, seed)
        case "aligned":
            parts = source_tokenizer.cut(target.strings, extend_this=num_base > 0)
            mixed = align_tokenizers(source_tokenizer, target_tokenizer, pairs)
            return initialisation.aligned(target, source, source_pack, parts, mixed, seed)
    raise ValueError(f"no initialisation {method!r}")
