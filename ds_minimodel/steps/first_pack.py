"""The pack that step 2 starts from: the recipe's way of initialising it, with the static vectors that it needs.

What each way reads is declared in recipe/initialisations.py; how it works, in models/initialisation.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import sha256_of_file
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.data.store import TokenStore
from ds_minimodel.data.tokenizer import Tokenizer, open_tokenizer
from ds_minimodel.data.vectors import (
    align,
    piece_vectors,
    read_dictionary,
    read_size,
    read_vectors,
    require_gensim,
    train_piece_vectors,
)
from ds_minimodel.models import initialisation
from ds_minimodel.models.artifacts import all_rows
from ds_minimodel.models.initialisation import FirstPack, Pieces
from ds_minimodel.models.trainable import Tensors
from ds_minimodel.recipe.initialisations import INITIALISATIONS
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.context import Context


def check_vectors(recipe: Recipe) -> None:
    """Raise UserError where vectors, a dictionary or gensim are missing, or the vectors' dimensions differ."""
    section, method = recipe.adapt, INITIALISATIONS[recipe.adapt.initialisation]
    sizes = {path: read_size(path) for path in section.word_vectors.values()}
    if not method.trains_vectors and len(set(sizes.values())) > 1:
        raise UserError(
            "adapt.word_vectors: "
            + ", ".join(f"{path} has {size} dimensions" for path, size in sizes.items())
            + "; they must be of one size"
        )
    for path in section.dictionaries.values():
        read_dictionary(path)
    if method.trains_vectors and set(recipe.languages.targets) - section.word_vectors.keys():
        require_gensim(f"adapt.initialisation: {method.name}, without adapt.word_vectors,")


def initial_inputs(recipe: Recipe, language: str) -> dict[str, Any]:
    """Parts of the recipe and its files that decide the first pack of a language, for a job's record."""
    section = recipe.adapt
    used = {name: section.word_vectors.get(name) for name in (language, recipe.languages.source)}
    used["dictionary"] = section.dictionaries.get(language)
    return {
        "initialisation": section.initialisation,
        "initialised_from": {name: sha256_of_file(path)[:16] for name, path in used.items() if path},
    }


def first_pack(context: Context, language: str, source: Tensors) -> FirstPack:
    """The FirstPack of a target language. source: the tensors of the source pack. UserError as check_vectors."""
    recipe = context.recipe
    check_vectors(recipe)
    first = _METHODS[recipe.adapt.initialisation](_Request(context, language, source))
    if recipe.adapt.old_rows == "frozen":
        return first
    return FirstPack(all_rows(source, first.tensors), first.rows_copied + recipe.kept_rows, first.rows_combined)


@dataclass(frozen=True)
class _Request:
    """Inputs of an initialisation, each read at its first use."""

    context: Context
    language: str
    source: Tensors

    @property
    def seed(self) -> int:
        return self.context.recipe.seed

    @cached_property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Tokenizers of the target and of the source."""
        target, source = (
            open_tokenizer(self.context.layout.tokenizer(name))
            for name in (self.language, self.context.recipe.languages.source)
        )
        return target, source

    @property
    def pieces(self) -> tuple[Pieces, Pieces]:
        """Pieces of the target, of one that extends the source's the new ones alone, and of the source."""
        target, source = self.tokenizers
        vocabulary, strings = target.vocabulary, target.pieces()
        if kept := vocabulary.kept:
            vocabulary, strings = Vocabulary(vocabulary.size - kept), strings[kept:]
        return Pieces(vocabulary, strings), Pieces(source.vocabulary, source.pieces())

    def parts(self) -> list[list[int]]:
        """Ids in the source of what its tokenizer cuts each piece of the target into."""
        (pieces, _), (target, source) = self.pieces, self.tokenizers
        return source.cut(pieces.strings, extend_this=target.vocabulary.kept > 0)

    def target_vectors(self) -> torch.Tensor:
        """Vectors of the target's pieces (V, D): of the given word vectors, else trained on its text."""
        path, (tokenizer, _) = self.context.recipe.adapt.word_vectors.get(self.language), self.tokenizers
        if path is not None:
            return torch.from_numpy(piece_vectors(tokenizer, read_vectors(path)))
        store = TokenStore(self.context.layout.tokens(self.language), tokenizer.sha256)
        return torch.from_numpy(train_piece_vectors(store, tokenizer, self.seed))

    def both_vectors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of the pieces of target and source (V, D) in one space: turned there by a dictionary, if given."""
        section = self.context.recipe.adapt
        words = [
            read_vectors(section.word_vectors[name]) for name in (self.language, self.context.recipe.languages.source)
        ]
        of_target, of_source = (
            torch.from_numpy(piece_vectors(tokenizer, of_language))
            for tokenizer, of_language in zip(self.tokenizers, words, strict=True)
        )
        path = section.dictionaries.get(self.language)
        if path is not None:
            of_source = of_source @ torch.from_numpy(align(words[1], words[0], read_dictionary(path), path))
        return of_target, of_source


_METHODS: dict[str, Callable[[_Request], FirstPack]] = {
    "overlap": lambda request: initialisation.overlap(*request.pieces, request.source, request.seed),
    "random": lambda request: initialisation.random(request.pieces[0], request.source, request.seed),
    "mean": lambda request: initialisation.mean(*request.pieces, request.source),
    "pieces": lambda request: initialisation.pieces(*request.pieces, request.source, request.parts(), request.seed),
    "focus": lambda request: initialisation.focus(
        *request.pieces, request.source, request.target_vectors(), request.seed
    ),
    "wechsel": lambda request: initialisation.wechsel(
        *request.pieces, request.source, *request.both_vectors(), request.seed
    ),
    "ofa": lambda request: initialisation.ofa(*request.pieces, request.source, *request.both_vectors(), request.seed),
}
