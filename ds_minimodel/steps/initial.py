"""The pack that step 2 starts from: the recipe's way of initialising it, with the static vectors that it needs."""

import importlib.util

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import sha256_of_file
from ds_minimodel.data.store import TokenStore
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.data.vectors import (
    align,
    piece_vectors,
    read_dictionary,
    read_header,
    read_vectors,
    train_piece_vectors,
)
from ds_minimodel.model import initialisation


def check_vectors(recipe):
    """UserError where a file of vectors or a dictionary is missing, or the dimensions differ, or gensim is missing."""
    section = recipe.adapt
    sizes = {path: read_header(path)[1] for path in section.word_vectors.values()}
    if section.initialisation != "focus" and len(set(sizes.values())) > 1:
        raise UserError(
            "adapt.word_vectors: "
            + ", ".join(f"{path} has {size} dimensions" for path, size in sizes.items())
            + "; they must be of one size"
        )
    for path in section.dictionaries.values():
        read_dictionary(path)
    trains = section.initialisation == "focus" and set(recipe.languages.targets) - section.word_vectors.keys()
    if trains and importlib.util.find_spec("gensim") is None:
        raise UserError(
            "adapt.initialisation: focus trains its vectors with gensim; "
            "pip install 'ds_minimodel[focus]', or give adapt.word_vectors"
        )


def initial_inputs(recipe, language):
    """What of the recipe and its files decides the first pack of a language, for a job's record."""
    section = recipe.adapt
    if section.initialisation == "overlap":
        return {}
    used = {name: section.word_vectors.get(name) for name in (language, recipe.languages.source)}
    used["dictionary"] = section.dictionaries.get(language)
    return {
        "initialisation": section.initialisation,
        "initialised_from": {name: sha256_of_file(path)[:16] for name, path in used.items() if path},
    }


def first_pack(recipe, layout, language, source):
    """The FirstPack of a target language. source: the tensors of the source pack. UserError as check_vectors."""
    check_vectors(recipe)
    target, other = (open_tokenizer(layout.tokenizer(name)) for name in (language, recipe.languages.source))
    method, seed = recipe.adapt.initialisation, recipe.seed
    if method == "random":
        return initialisation.random(target.vocab_size, source, seed)
    if method == "mean":
        return initialisation.mean(target.vocab_size, source)
    if method == "wechsel":
        return initialisation.wechsel(source, *_vectors_of_both(recipe, language, target, other), seed)
    pieces = target.pieces(), other.pieces()
    if method == "focus":
        return initialisation.focus(*pieces, source, _vectors_of_target(recipe, layout, language, target), seed)
    if method == "ofa":
        return initialisation.ofa(*pieces, source, *_vectors_of_both(recipe, language, target, other), seed)
    return initialisation.overlap(*pieces, source, seed)


def _vectors_of_target(recipe, layout, language, tokenizer):
    path = recipe.adapt.word_vectors.get(language)
    if path is not None:
        return torch.from_numpy(piece_vectors(tokenizer, read_vectors(path)))
    store = TokenStore(layout.tokens(language), tokenizer.sha256)
    return torch.from_numpy(train_piece_vectors(store, tokenizer, recipe.seed))


def _vectors_of_both(recipe, language, target, other):
    """Vectors of the pieces of target and source (V, D) in one space: turned there by a dictionary, if one is given."""
    section = recipe.adapt
    words = [read_vectors(section.word_vectors[name]) for name in (language, recipe.languages.source)]
    of_target, of_source = (
        torch.from_numpy(piece_vectors(tokenizer, of_language))
        for tokenizer, of_language in zip((target, other), words)
    )
    path = section.dictionaries.get(language)
    if path is not None:
        of_source = of_source @ torch.from_numpy(align(words[1], words[0], read_dictionary(path), path))
    return of_target, of_source
