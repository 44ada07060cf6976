"""Initialisations of a language's embeddings in step 2: what each reads.

How each works: models/initialisation.py; what calls it: steps/first_pack.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Initialisation:
    """One initialisation.

    reads: keys of the recipe's section `adapt` that name files it can use. needs_vectors: word vectors of the source
    and of every target must be given. trains_vectors: trains them on the target's text where none are given.
    """

    name: str
    reads: tuple[str, ...] = ()
    needs_vectors: bool = False
    trains_vectors: bool = False


INITIALISATIONS: dict[str, Initialisation] = {
    method.name: method
    for method in (
        Initialisation("overlap"),
        Initialisation("random"),
        Initialisation("mean"),
        Initialisation("pieces"),
        Initialisation("focus", reads=("word_vectors",), trains_vectors=True),
        Initialisation("wechsel", reads=("word_vectors", "dictionaries"), needs_vectors=True),
        Initialisation("ofa", reads=("word_vectors", "dictionaries"), needs_vectors=True),
    )
}
