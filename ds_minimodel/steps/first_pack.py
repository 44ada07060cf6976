"""The pack that step 2 starts from: the recipe's way of initialising it, with the static vectors that it needs."""

from typing import Any

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import sha256_of_file
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.data.vectors import piece_vectors, read_vectors
from ds_minimodel.models import initialisation
from ds_minimodel.models.initialisation import FirstPack, Pieces
from ds_minimodel.models.trainable import Tensors
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.context import Context


def check_vectors(recipe: Recipe) -> None:
    """Raise UserError where word vectors are missing, or their dimensions differ."""
    sizes = {path: read_vectors(path, 1).vectors.shape[1] for path in recipe.adapt.word_vectors.values()}
    if len(set(sizes.values())) > 1:
        raise UserError(
            "adapt.word_vectors: "
            + ", ".join(f"{path} has {size} dimensions" for path, size in sizes.items())
            + "; they must be of one size"
        )


def initial_inputs(recipe: Recipe, language: str) -> dict[str, Any]:
    """Parts of the recipe and its files that decide the first pack of a language, for a job's record."""
    section = recipe.adapt
    used = {name: section.word_vectors.get(name) for name in (language, recipe.languages.source)}
    return {
        "initialisation": section.initialisation,
        "initialised_from": {name: sha256_of_file(path)[:16] for name, path in used.items() if path},
    }


def first_pack(context: Context, language: str, source: Tensors) -> FirstPack:
    """The FirstPack of a target language. source: the tensors of the source pack. UserError as check_vectors."""
    recipe, languages = context.recipe, (language, context.recipe.languages.source)
    check_vectors(recipe)
    of_target, of_source = tokenizers = [open_tokenizer(context.layout.tokenizer(name)) for name in languages]
    # Of a target that extends the source's vocabulary the new pieces alone.
    kept = of_target.vocabulary.kept
    vocabulary = Vocabulary(of_target.vocabulary.size - kept) if kept else of_target.vocabulary
    target, pieces = Pieces(vocabulary, of_target.pieces()[kept:]), Pieces(of_source.vocabulary, of_source.pieces())
    match recipe.adapt.initialisation:
        case "overlap":
            first = initialisation.overlap(target, pieces, source, recipe.seed)
        case "random":
            first = initialisation.random(target, source, recipe.seed)
        case "pieces":
            parts = of_source.cut(target.strings, extend_this=kept > 0)
            first = initialisation.pieces(target, pieces, source, parts, recipe.seed)
        case "ofa":
            words = [read_vectors(recipe.adapt.word_vectors[name]) for name in languages]
            new, old = (torch.from_numpy(piece_vectors(*each)) for each in zip(tokenizers, words, strict=True))
            first = initialisation.ofa(target, pieces, source, new[kept:], old, recipe.seed)
    if recipe.adapt.old_rows == "frozen":
        return first
    rows = {name: torch.cat((source[name], rows)) for name, rows in first.tensors.items()}
    return FirstPack(rows, first.rows_copied + recipe.kept_rows, first.rows_combined)
