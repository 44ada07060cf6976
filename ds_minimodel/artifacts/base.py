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
from typing import Any

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

# Where it is.

# What was a path once in this process stays one, though it is taken away meanwhile.
_PATHS = set[str]()


def place_of(model: str | Path, only: Sequence[str] = ()) -> tuple[Path, str | None, str | None]:
    """(folder or GGUF file, name on the Hub, commit) of a model; one that is neither here is looked
    for on the Hub.

    model: a path, or MODEL, OWNER/MODEL, each with @REVISION. only: the files that are fetched
    from the Hub, where not all that is needed; they stay in huggingface_hub's cache.
    """
    if is_model(model):  # as step 1 makes it, or a reference
        source = read_artifact(model, ModelManifest).source
        if source is not None:
            source.check()
        return Path(source.path if source else model), None, None
    if Path(model).exists():
        _PATHS.add(str(model))
        return Path(model), None, None
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
            if is_answer(error):
                raise
            found = _cached(name, revision or None, tuple(only), api.endpoint)
            if found is None:
                raise
            folder = found
    return folder, name, folder.name


def _fetched(api: Any, name: str, revision: str | None, only: Sequence[str]) -> Path:
    """The snapshot in the cache of what a base needs of a model of the Hub; only: as of
    place_of.
    """
    info = api.model_info(name, revision=revision)
    there = [file.rfilename for file in info.siblings or []]
    if not {foreign.CONFIG, foreign.ADAPTER_CONFIG} & {*there}:
        raise UserError(
            f"{name} on {api.endpoint}: no {foreign.CONFIG}, so no model of transformers"
        )
    weights = next((name for name in foreign.WEIGHT_FILES if name in there), "")
    files = [*only] or _files_with(weights)
    # By the name of the revision, which the cache then knows without a network.
    return Path(api.snapshot_download(name, revision=revision, allow_patterns=files))


def _files_with(weights: str) -> list[str]:
    """Patterns of the names of all that a base needs, whose weights are a file, or named by one."""
    stem, suffix = os.path.splitext(weights.removesuffix(foreign.INDEX))
    parts = [f"{stem}-*-of-*{suffix}"] if weights.endswith(foreign.INDEX) else []
    others = (foreign.CONFIG, foreign.ADAPTER_CONFIG, GENERATION_FILE, foreign.CARD, weights)
    return [*others, *foreign.TOKENIZER_FILES, *SENTENCE_SETTINGS, *SENTENCE_WEIGHTS, *parts]


@functools.cache
def _cached(name: str, revision: str | None, only: Sequence[str], endpoint: str) -> Path | None:
    """The snapshot that the cache has whole where the Hub is not reached, which is said once."""
    from huggingface_hub import snapshot_download

    for weights in foreign.WEIGHT_FILES:
        files = [*only] or _files_with(weights)
        with contextlib.suppress(Exception):  # of many kinds; why there is no Hub is what is said
            folder = Path(
                snapshot_download(
                    name, revision=revision, allow_patterns=files, local_files_only=True
                )
            )
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
    """What tells a foreign model from others: the content of its files."""
    source = source_of(place_of(model)[0])
    files = (*source.weight_files(), *source.other_files())
    return {source.name_of(path): Content.of(path) for path in files}


# What it is.


_CONFIGURATION = (foreign.CONFIG, "tokenizer_config.json", *SENTENCE_SETTINGS)


def config_of(model: str | Path, pooling: str | None = None) -> Foreign:
    """The configuration of a folder, a GGUF file or a model of the Hub, of which nothing else is
    fetched. pooling: "mean" or "cls", of an encoder that names none and is to give vectors.
    """
    if Path(model).exists():
        return _read_config(*place_of(model), pooling)
    return _config_on_hub(str(model), pooling)


@functools.cache
def _config_on_hub(model: str, pooling: str | None) -> Foreign:
    return _read_config(*place_of(model, _CONFIGURATION), pooling)


def _read_config(
    model: Path,
    name: str | None = None,
    revision: str | None = None,
    pooling: str | None = None,
) -> Foreign:
    base = read_configuration(source_of(model), name, revision, pooling)
    if is_model(model):  # of ours, whose dropout has no key in some of theirs
        config = read_artifact(model, ModelManifest).body.architecture
        return dataclasses.replace(base, config=config)
    return base


_shared: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "shared", default=None
)


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
    """transformers' own module of a base, in evaluation mode; dtype: of its weights, by default as
    its token embeddings are.
    """
    place = place_of(model)
    shared = _shared.get()
    key = (place, dtype)
    if shared is not None and key in shared:
        return shared[key]
    module = proof.module_of(_read_config(*place), dtype)
    if shared is not None:
        shared[key] = module
    return module


def check_base(model: str | Path, pooling: str | None = None) -> None:
    """UserError where a base is none, as far as is told without reading all of its weights; one
    that was made here, or checked before, is not looked at. pooling: as of config_of.
    """
    if is_model(model):
        return
    proof.prove(proof.compare_tensors(_read_config(*place_of(model), pooling)))


# Taken over.


def refer(
    model: str | Path,
    out: str | Path,
    language: str = UNKNOWN_LANGUAGE,
    tokenizer: Path | None = None,
    pooling: str | None = None,
) -> None:
    """Check a foreign model and write a reference to it, a model's folder, into the folder `out`.

    model: a folder as `from_pretrained` takes it, with model.safetensors or pytorch_model.bin,
    whole or in parts with an index, a GGUF file or a name on the Hub. language: that it was trained
    on. tokenizer: folder of its vocabulary, where that was kept before. pooling: as of config_of.
    Raises UserError where a file is missing or damaged, or holds a model that no kind of body
    computes. It takes the memory of a few layers in fp32, twice, and of the largest tensor; of a
    model with a finished head that of two.
    """
    try:
        check_name(language)
    except ValueError as error:
        raise UserError(f"--language {error}") from None
    base = _read_config(*place_of(model), pooling)
    source = base.source
    tensors = proof.compare_tensors(base)
    tensors.read_all()
    proof.prove(tensors)
    reference = Reference.of(source)
    space = read_artifact(model, ModelManifest).body.space if is_model(model) else reference.space
    own = BodyArtifact(
        base.config,
        (base.config.num_layers,),
        tensors.ours.under("body."),
        space,
        objective=base.objective,
        model_type=base.architecture.model_type,
    )
    origin = {
        "license": source.license(),
        "base_model": base.name or source.hub_name(),
        "revision": base.revision,
    }
    facts = {"imported_from": base.name or source.name} | {
        key: value for key, value in origin.items() if value
    }
    with atomic_folder(out) as folder:
        if tokenizer is None:
            keep_vocabulary(model, folder / VOCABULARY)
        else:
            copy_artifact(tokenizer, folder / VOCABULARY)
        mark_as_model(
            folder,
            own,
            own.adaptation(language, tensors.ours.under("pack.")),
            source=reference.model_dump(),
            **facts,
        )


def keep_vocabulary(model: str | Path, out: Path) -> None:
    """Write the tokenizer of a base into the folder `out`, as transformers reads it, with its
    settings of generation; UserError where there is none, or it would give other ids.
    """
    with atomic_folder(out) as folder:
        if is_model(model):
            copy_artifact(Path(model) / VOCABULARY, folder)
            return
        base = _read_config(*place_of(model))
        generation = base.source.generation()
        theirs = base.source.tokenizer(base.theirs)
        vocabulary = keep_tokenizer(base.source.path, theirs, folder, base.theirs, base.config)
        if generation is not None:
            write_json(folder / GENERATION_FILE, generation)
        write_manifest(folder, kind="tokenizer", **vocabulary.facts())
