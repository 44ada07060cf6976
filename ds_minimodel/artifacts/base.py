"""Foreign models taken as bases: found, checked (hf/proof.py), and named, not copied."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ds_minimodel.artifacts.models import (
    BodyArtifact,
    ModelManifest,
    Reference,
    is_model,
    mark_as_model,
)
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    Content,
    atomic_folder,
    copy_artifact,
    read_artifact,
    write_json,
    write_manifest,
)
from ds_minimodel.common.hub import hub_api, is_answer
from ds_minimodel.common.memory import trim
from ds_minimodel.common.names import check_name
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.hf import proof
from ds_minimodel.hf import source as foreign
from ds_minimodel.hf.configuration import Foreign, read_configuration
from ds_minimodel.hf.opening import source_of
from ds_minimodel.hf.sentence import SENTENCE_SETTINGS, SENTENCE_WEIGHTS
from ds_minimodel.hf.tokenizers import GENERATION_FILE
from ds_minimodel.hf.vocabularies import keep_tokenizer
from ds_minimodel.tokenizers.tokenizer import VOCABULARY

# Where a base is.

# What was a path once in this process stays one, though it is taken away meanwhile.
_PATHS = set[str]()


class Place(NamedTuple):
    """Where the files of a foreign model lie.

    Attributes:
        path: its folder or GGUF file.
        hub_name: its name on the Hub, None of a path.
        commit: of the files from the Hub.
    """

    path: Path
    hub_name: str | None = None
    commit: str | None = None


def place_of(model: str | Path, only: Sequence[str] = ()) -> Place:
    """Find a model, on the Hub where there is no such path.

    Args:
        model: a path, or MODEL or OWNER/MODEL, each with @REVISION.
        only: the files that are fetched from the Hub, where not all that a base needs; they stay
            in huggingface_hub's cache.
    """
    # One that was made here, or a reference.
    if is_model(model):
        source = read_artifact(model, ModelManifest).source
        if source is None:
            return Place(Path(model))
        source.check()
        return Place(Path(source.path))
    if Path(model).exists():
        _PATHS.add(str(model))
        return Place(Path(model))
    if str(model) in _PATHS:
        raise UserError(f"{model}: was here when this began, and is not any more; put it back")
    name, _, revision = str(model).partition("@")
    if foreign.hub_name(name) is None:
        raise UserError(
            f"{model}: no such folder or GGUF file, and no name on the Hub; check the path"
        )
    with _looked_for(model), hub_api(name) as api:
        try:
            folder = _fetched(api, name, revision or None, only)
        except Exception as error:
            # Where the Hub is not reached at all, what was fetched earlier serves.
            if is_answer(error):
                raise
            cached = _cached(name, revision or None, tuple(only), api.endpoint)
            if cached is None:
                raise
            folder = cached
    return Place(folder, name, commit=folder.name)


def _fetched(api: Any, name: str, revision: str | None, only: Sequence[str]) -> Path:
    """Fetch what a base needs of a model of the Hub, and return the cache's snapshot of it."""
    info = api.model_info(name, revision=revision)
    on_hub = {file.rfilename for file in info.siblings or []}
    if on_hub.isdisjoint({foreign.CONFIG, foreign.ADAPTER_CONFIG}):
        raise UserError(
            f"{name} on {api.endpoint}: no {foreign.CONFIG}, so no model of transformers"
        )
    weights = next((file for file in foreign.WEIGHT_FILES if file in on_hub), "")
    files = [*only] or _files_with(weights)
    # It is fetched by the name of the revision, which the cache then knows without a network.
    return Path(api.snapshot_download(name, revision=revision, allow_patterns=files))


def _files_with(weights: str) -> list[str]:
    """Return patterns of the names of all that a base needs, `weights` or their index included."""
    stem, suffix = os.path.splitext(weights.removesuffix(foreign.INDEX))
    parts = [f"{stem}-*-of-*{suffix}"] if weights.endswith(foreign.INDEX) else []
    others = (foreign.CONFIG, foreign.ADAPTER_CONFIG, GENERATION_FILE, foreign.CARD, weights)
    return [*others, *foreign.TOKENIZER_FILES, *SENTENCE_SETTINGS, *SENTENCE_WEIGHTS, *parts]


@functools.cache
def _cached(name: str, revision: str | None, only: Sequence[str], endpoint: str) -> Path | None:
    """Return the snapshot that the cache has whole, if any, and say so once."""
    from huggingface_hub import snapshot_download

    for weights in foreign.WEIGHT_FILES:
        files = [*only] or _files_with(weights)
        # Errors of many kinds say that this is not in the cache; why there is no Hub is what the
        # user is told.
        with contextlib.suppress(Exception):
            path = snapshot_download(
                name, revision=revision, allow_patterns=files, local_files_only=True
            )
            folder = Path(path)
            if only or (folder / weights).is_file():
                _say_once(f"{name}: {endpoint} is not reached; {folder} is read")
                return folder
    return None


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)


@contextlib.contextmanager
def _looked_for(model: str | Path) -> Iterator[None]:
    """Add to a UserError that `model` was looked for on the Hub, and why."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error} ({model} is no folder here, so it was looked for on the Hub)"
        ) from None


def identity_of_base(model: str | Path) -> dict[str, Content]:
    """Return what tells a foreign model from others: the content of its files."""
    source = source_of(place_of(model).path)
    files = (*source.weight_files(), *source.other_files())
    return {source.name_of(path): Content.of(path) for path in files}


# What a base is.


_CONFIGURATION = (foreign.CONFIG, "tokenizer_config.json", *SENTENCE_SETTINGS)


def config_of(model: str | Path, pooling: str | None = None) -> Foreign:
    """Read the configuration of a model; of one of the Hub nothing else is fetched.

    Args:
        model: a folder, a GGUF file or a name on the Hub.
        pooling: "mean" or "cls", of an encoder that names none and is to give vectors.
    """
    if Path(model).exists():
        return _read_config(place_of(model), pooling)
    return _config_on_hub(str(model), pooling)


@functools.cache
def _config_on_hub(model: str, pooling: str | None) -> Foreign:
    return _read_config(place_of(model, _CONFIGURATION), pooling)


def _read_config(place: Place, pooling: str | None = None) -> Foreign:
    """Read the configuration of a model; pooling: as of config_of."""
    base = read_configuration(source_of(place.path), place.hub_name, place.commit, pooling)
    if is_model(place.path):
        # One that was made here: transformers has no key for the dropout of some families.
        config = read_artifact(place.path, ModelManifest).body.architecture
        return dataclasses.replace(base, config=config)
    return base


# The modules of `shared_modules`; None outside of it.
_Modules = dict[tuple[Place, torch.dtype | None], Any]
_shared: contextvars.ContextVar[_Modules | None] = contextvars.ContextVar("shared", default=None)


@contextlib.contextmanager
def shared_modules() -> Iterator[None]:
    """Keep what module_of loads in memory while this is open, for those who ask again."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)
        trim()


def module_of(model: str | Path, dtype: torch.dtype | None = None) -> Any:
    """Return the module of a base as transformers computes it, in evaluation mode.

    Args:
        model: as of place_of.
        dtype: of its weights; by default that of its token embeddings.
    """
    place = place_of(model)
    shared = _shared.get()
    key = (place, dtype)
    if shared is not None and key in shared:
        return shared[key]
    module = proof.module_of(_read_config(place), dtype)
    if shared is not None:
        shared[key] = module
    return module


def check_base(model: str | Path, pooling: str | None = None) -> None:
    """Raise UserError for a model that cannot be a base.

    That is told without reading all of its weights. A model that was made here, or was checked
    before, is not looked at.

    Args:
        model: as of place_of.
        pooling: as of config_of.
    """
    if is_model(model):
        return
    base = _read_config(place_of(model), pooling)
    _prove(proof.compare_tensors(base), pooling)


# What is proven: a base's files as they were, and its pooling.
_PROVEN: set[tuple[frozenset[Content], str | None]] = set()


def _prove(tensors: proof.Tensors, pooling: str | None) -> None:
    """Prove that a base is computed here, once in a process as long as its files stay the same."""
    source = tensors.base.source
    files = frozenset(map(Content.of, (*source.weight_files(), *source.other_files())))
    if (files, pooling) not in _PROVEN:
        proof.prove(tensors)
        _PROVEN.add((files, pooling))


# How a base is taken over.


def refer(
    model: str | Path,
    out: str | Path,
    language: str = UNKNOWN_LANGUAGE,
    tokenizer: Path | None = None,
    pooling: str | None = None,
) -> None:
    """Check a foreign model, and write a reference to it as a model's folder.

    It takes the memory of a few layers in fp32, twice, and of the largest tensor; of a model with a
    finished head that of two.

    Args:
        model: a folder as `from_pretrained` takes it, with model.safetensors or pytorch_model.bin,
            whole or in parts with an index, a GGUF file or a name on the Hub.
        out: where to; it must not exist.
        language: the language that it was trained on.
        tokenizer: folder of its vocabulary, where that was kept before.
        pooling: as of config_of.

    Raises:
        UserError: a file is missing or damaged, or holds a model that no kind of body computes.
    """
    try:
        check_name(language)
    except ValueError as error:
        raise UserError(f"--language {error}") from None
    base = _read_config(place_of(model), pooling)
    source = base.source
    tensors = proof.compare_tensors(base)
    tensors.read_all()
    _prove(tensors, pooling)
    reference = Reference.of(source)
    space = read_artifact(model, ModelManifest).body.space if is_model(model) else reference.space
    body = BodyArtifact(
        config=base.config,
        head_depths=(base.config.num_layers,),
        tensors=tensors.state.under("body."),
        space=space,
        objective=base.objective,
        model_type=base.architecture.model_type,
    )
    origin = {
        "imported_from": base.name or source.name,
        "license": source.license(),
        "base_model": base.name or source.hub_name(),
        "revision": base.revision,
    }
    known = {key: value for key, value in origin.items() if value}
    with atomic_folder(out) as folder:
        if tokenizer is None:
            keep_vocabulary(model, folder / VOCABULARY)
        else:
            copy_artifact(tokenizer, folder / VOCABULARY)
        mark_as_model(
            folder,
            body,
            body.adaptation(language, tensors.state.under("pack.")),
            source=reference.model_dump(),
            **known,
        )


def keep_vocabulary(model: str | Path, out: Path) -> None:
    """Write the tokenizer of a base, as transformers reads it, with its settings of generation.

    Args:
        model: as of place_of.
        out: folder to write; it must not exist.

    Raises:
        UserError: there is none, or it would give other ids.
    """
    with atomic_folder(out) as folder:
        if is_model(model):
            copy_artifact(Path(model) / VOCABULARY, folder)
            return
        base = _read_config(place_of(model))
        generation = base.source.generation()
        vocabulary = keep_tokenizer(
            folder=base.source.path,
            tokenizer=base.source.tokenizer(base.hf_config),
            pack=folder,
            hf_config=base.hf_config,
            config=base.config,
        )
        if generation is not None:
            write_json(folder / GENERATION_FILE, generation)
        write_manifest(folder, kind="tokenizer", **vocabulary.facts())
