"""Adaptations on disk: what was learned over a model, and its application.

`embeddings.safetensors` has the rows of a language, a tokenizer's files beside it. Low-rank updates
of the body are in the form that PEFT reads (`adapter_config.json`, `adapter_model.safetensors`),
with the new rows of an extended vocabulary; tensors of the body that are replaced as a whole are in
`body.safetensors`. The manifest names the model by the hash of its embedding space. All numbers are
fp32.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ds_minimodel.artifacts.models import MAKE_AGAIN, Adaptation, BodyArtifact
from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.names import Name
from ds_minimodel.common.vocabulary import VocabularyManifest
from ds_minimodel.hf.lazy import Lazy, LazyTensors, lazily, open_tensors, save_tensors, shapes_of
from ds_minimodel.hf.names.architecture import Architecture, row_counts
from ds_minimodel.hf.source import ADAPTER_CONFIG
from ds_minimodel.hf.tokenizers import name_ends
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.body import BASE_ROWS
from ds_minimodel.models.low_rank import ALPHA, DOWN, UP, changed_name, is_low_rank, updated
from ds_minimodel.models.trainable import load_into

EMBEDDINGS, UPDATE = "embeddings.safetensors", "body.safetensors"
ADAPTER = "adapter_model.safetensors"  # PEFT's
_IN_PEFT = "base_model.model."
_ROWS = ".token_adapter.trainable_tokens_delta"


class AdaptationManifest(VocabularyManifest):
    """Manifest of an adaptation. rows: of its embeddings. body_kind, model_type: of the model that
    it is over.
    """

    language: Name
    space: str
    rows: files.Count
    steps: files.Count
    eflops: files.Amount
    body_kind: str
    model_type: str

    noun = "an adaptation"
    kinds = ("adaptation",)
    required = (("tokenizer.model", "tokenizer.json"),)


class _AdapterConfig(files.Stored):
    """Of PEFT's configuration what a read needs."""

    lora_alpha: Annotated[float, Field(gt=0, le=1e6)]


def save_adaptation(
    folder: str | Path,
    adaptation: Adaptation,
    tokenizer: str | Path,
    config: BodyConfig | None = None,
    strength: float = 1.0,
    ends: Sequence[int] = (),
    adapter: Mapping[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Write an adaptation with the vocabulary in `tokenizer`; `facts` go into the manifest.

    config: of the body that it updates, where it does. strength: share of a low-rank update that a
    reader of the adapter adds. ends: tokens that end an answer, as it has learned. adapter: what
    PEFT's configuration says beside it.
    """
    architecture = adaptation.architecture
    low_rank = {name: tensor for name, tensor in adaptation.update.items() if is_low_rank(name)}
    others = {name: tensor for name, tensor in adaptation.update.items() if name not in low_rank}
    embeddings = dict(adaptation.embeddings)
    with files.atomic_folder(folder) as out:
        if low_rank and architecture is None:
            others = dict(adaptation.update)
        elif low_rank:
            assert architecture is not None and config is not None
            tensors = _adapter_of(low_rank, architecture, config)
            for name, theirs in _row_names(architecture).items() if adaptation.num_base else ():
                if name in embeddings:
                    tensors[theirs] = Lazy.of(embeddings.pop(name))
            save_tensors(out / ADAPTER, LazyTensors(tensors))
            own = _adapter_config(tensors, architecture, adaptation, strength)
            files.write_json(out / ADAPTER_CONFIG, own | dict(adapter or {}))
        for name, part in ((EMBEDDINGS, embeddings), (UPDATE, others)):
            if part:
                save_tensors(out / name, part)
        held = files.read_artifact(tokenizer, VocabularyManifest, verify=True)
        for name in held.files:
            if not name.endswith(".safetensors") and name != ADAPTER_CONFIG:
                shutil.copyfile(Path(tokenizer) / name, out / name)
        if ends:
            name_ends(out, ends)
        files.write_manifest(
            out,
            kind="adaptation",
            rows=adaptation.rows,
            **{name: getattr(adaptation, name) for name in Adaptation.facts},
            **replace(held.vocabulary(tokenizer), num_base=adaptation.num_base).facts(),
            **facts,
        )


def load_adaptation(
    folder: str | Path,
    space: str | None = None,
    language: str | None = None,
    steps: int | None = None,
) -> Adaptation:
    """Read an adaptation; UserError where it is damaged or, with `space`, of another model.

    language, steps: what the adaptation in this place must be of, where that is known.
    """
    folder = Path(folder)
    manifest = files.read_artifact(folder, AdaptationManifest, verify=True)
    if space is not None:
        check_space(folder, manifest.space, space)
    for what, here, there in (
        ("language", language, manifest.language),
        ("step", steps, manifest.steps),
    ):
        if here is not None and here != there:
            raise UserError(
                f"{folder}: the adaptation of {what} {there} in the place of that of {here}; "
                f"{MAKE_AGAIN}"
            )
    parts = [
        open_tensors(folder / name, MAKE_AGAIN) if name in manifest.files else {}
        for name in (EMBEDDINGS, UPDATE)
    ]
    embeddings, update = (dict(part) for part in parts)
    facts = {name: getattr(manifest, name) for name in Adaptation.facts}
    adaptation = Adaptation(
        **facts, num_base=manifest.num_base, embeddings=embeddings, update=update
    )
    if ADAPTER in manifest.files and adaptation.architecture is not None:
        config = files.read_model(folder / ADAPTER_CONFIG, _AdapterConfig, MAKE_AGAIN)
        adapter, rows = (
            open_tensors(folder / ADAPTER, MAKE_AGAIN),
            _row_names(adaptation.architecture),
        )
        embeddings |= {name: adapter[theirs] for name, theirs in rows.items() if theirs in adapter}
        try:
            update |= _low_rank_of(adapter, adaptation.architecture, config.lora_alpha / ALPHA)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{folder / ADAPTER}: no LoRA of this model ({error!r:.200}); {MAKE_AGAIN}"
            ) from None
    _check_rows(folder, manifest, shapes_of(embeddings))
    return adaptation


def _check_rows(
    folder: Path, manifest: AdaptationManifest, own: Mapping[str, tuple[int, ...]]
) -> None:
    rows, tokens = manifest.rows, own.get("tokens", ())
    expected = {"tokens": (rows, *tokens[1:]), "output": (rows, *tokens[1:]), "bias": (rows,)}
    agree = all(expected.get(name) == shape for name, shape in own.items())
    if len(tokens) != 2 or manifest.num_base + rows < manifest.vocab_size or not agree:
        raise UserError(
            f"{folder}: embeddings of shapes {own!s:.120} are not those of {rows} tokens for "
            f"{manifest.vocab_size} ids; {MAKE_AGAIN}"
        )


# The form of PEFT: an update of a product that is several of theirs is one of each, which share
# what goes in.


def _adapter_of(
    low_rank: Mapping[str, Tensor], architecture: Architecture, config: BodyConfig
) -> dict[str, Lazy]:
    adapter: dict[str, Lazy] = {}
    for name in sorted(low_rank):
        module, _, part = name.rpartition(".")
        (theirs,) = architecture.names([f"body.{module}.weight"], {}).values()
        tensor, first = Lazy.of(low_rank[name]), 0
        for place, rows in zip(
            theirs,
            row_counts(f"body.{module}.weight", len(theirs), tensor.shape[0], config),
            strict=True,
        ):
            own = tensor if part == DOWN or len(theirs) == 1 else tensor.rows(first, first + rows)
            adapter[
                f"{_IN_PEFT}{place.removesuffix('.weight')}.lora_{'A' if part == DOWN else 'B'}.weight"
            ] = own
            first += rows
    return adapter


def _low_rank_of(
    adapter: LazyTensors, architecture: Architecture, scale: float
) -> dict[str, Tensor]:
    low_rank: dict[str, Tensor] = {}
    layers = {
        name.split(f"{architecture.layers}.")[1].split(".")[0]
        for name in adapter
        if ".lora_A." in name
    }
    for layer in sorted(layers, key=int):
        for part, theirs in architecture.layer.items():
            own = [
                f"{_IN_PEFT}{architecture.layers}.{layer}.{name}" for name in theirs
            ]  # modules that we have as one
            if (down := f"{own[0]}.lora_A.weight") in adapter:
                up = torch.cat([adapter[f"{name}.lora_B.weight"] for name in own])
                if adapter[down].dim() != 2 or not 0 < len(adapter[down]) == up.shape[1]:
                    raise ValueError(f"{down} and its other half are not of one rank")
                low_rank[f"layers.{layer}.{part}.{DOWN}"] = adapter[down]
                low_rank[f"layers.{layer}.{part}.{UP}"] = up if scale == 1 else up * scale
    return low_rank


def _row_names(architecture: Architecture) -> dict[str, str]:
    """Our embeddings -> what PEFT calls rows of them that train."""
    theirs = {"tokens": architecture.tokens, "output": architecture.output}
    return {name: f"{_IN_PEFT}{module}{_ROWS}" for name, module in theirs.items()}


def _adapter_config(
    tensors: Mapping[str, Lazy], architecture: Architecture, adaptation: Adaptation, strength: float
) -> dict[str, Any]:
    rank = next(lazy.shape[0] for name, lazy in tensors.items() if ".lora_A." in name)
    modules = {
        name.split(f"{architecture.layers}.")[1].split(".", 1)[1]
        for name in tensors
        if ".lora_A." in name
    }
    rows = [*range(adaptation.num_base, adaptation.num_base + adaptation.rows)]
    theirs = architecture.tokens, architecture.output
    trained = {
        name.rpartition(".")[2]: rows for name in theirs if f"{_IN_PEFT}{name}{_ROWS}" in tensors
    }
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": ALPHA * strength,
        "target_modules": sorted(module.removesuffix(".lora_A.weight") for module in modules),
        "trainable_token_indices": trained or None,
        "task_type": "CAUSAL_LM" if "ForCausalLM" in architecture.endings else None,
        "inference_mode": True,
    }


# Application.


def whole(adaptation: Adaptation, base: Adaptation) -> Adaptation:
    """An adaptation with all rows of its vocabulary: those that it keeps of the model's language
    before its own.
    """
    if not adaptation.num_base:
        return adaptation
    if adaptation.num_base != base.rows:
        raise UserError(
            f"the language {adaptation.language} extends a vocabulary of {adaptation.num_base:,} "
            "tokens, the model has "
            f"{base.rows:,}, so its tokens would be others'; take a model of as many"
        )
    rows = lazily(base.embeddings)
    own = {
        name: Lazy.below([rows[name], Lazy.of(tensor.to(rows[name].dtype))])
        if name in rows
        else Lazy.of(tensor)
        for name, tensor in adaptation.embeddings.items()
    }
    return replace(adaptation, embeddings=LazyTensors(own), num_base=0)


def plug(
    model: nn.Module,
    adaptation: Adaptation,
    body: BodyArtifact | None = None,
    strength: float = 1.0,
) -> None:
    """Put a language into `model` and, where it has an update, what it makes of the tensors of
    `body`.

    strength: share of their change that these keep, UserError where it is none. The model's pack
    must already have the vocabulary's size.
    """
    check_strength(strength)
    load_into(model, adaptation.embeddings, "pack.")
    if adaptation.update:
        assert body is not None
        for name, tensor in updated(body.own_tensors, adaptation.update, strength):
            load_into(model, {name: tensor}, "body.")


def keep_rows(model: nn.Module, base: Adaptation, num_base: int) -> None:
    """Put the rows that an extended language keeps of the model's into `model`; where it keeps
    none, nothing.
    """
    if num_base:
        load_into(model, base.embeddings, f"pack.{BASE_ROWS}")


def merged(
    body: BodyArtifact, adaptation: Adaptation, strength: float = 1.0
) -> Iterator[tuple[str, Lazy]]:
    """The body's tensors, each with what the adaptation makes of it, in the type that the body has
    it in.
    """
    names = {changed_name(name) for name in adaptation.update}
    for name, lazy in lazily(body.own_tensors).items():
        if name not in names:
            yield name, lazy
            continue

        def read(name: str = name, lazy: Lazy = lazy) -> Tensor:
            own = {
                key: tensor
                for key, tensor in adaptation.update.items()
                if changed_name(key) == name
            }
            ((_, tensor),) = updated({name: lazy.read()}, own, strength)
            return tensor.to(lazy.dtype)

        yield name, Lazy(lazy.shape, lazy.dtype, read)


def check_space(what: str | Path, of_adaptation: str, of_body: str) -> None:
    """UserError, beginning with `what`, where an adaptation is of another embedding space than a
    body.
    """
    if of_adaptation != of_body:
        raise UserError(
            f"{what}: this was trained for embedding space {of_adaptation}, the body "
            f"has {of_body}; use what was adapted to this body, or adapt it"
        )


def check_strength(strength: float) -> None:
    """UserError where it is no share of what a body has learned."""
    if not 0 < strength <= 1:
        raise UserError(f"a strength of {strength:g}; give one above 0, at most 1")


def check_fit(folder: str | Path, adaptation: Adaptation, body: BodyArtifact) -> None:
    """UserError where the tensors of the adaptation in `folder` do not fit a body of its embedding
    space.
    """
    shapes = shapes_of(adaptation.embeddings)
    width = shapes["tokens"][1]
    if width != body.config.hidden_size:
        raise UserError(
            f"{folder}: embeddings of size {width}, the body has {body.config.hidden_size}"
        )
    needed, has = set(body.config.language_tensors), set(shapes)
    if has != needed:
        names = [", ".join(sorted(part)) for part in (has, needed)]
        raise UserError(
            f"{folder}: the language holds {names[0]}, where languages of this body have {names[1]}"
        )
    changed = {changed_name(name) for name in adaptation.update}
    if body.task is not None and any(name.startswith("layers.") for name in changed):
        raise UserError(
            f"{folder}: has a body of its own, which is not the one that the task was finetuned on"
        )
    own = shapes_of(body.own_tensors)
    for name, tensor in adaptation.update.items():
        shape = own.get(changed_name(name))
        side = (
            None if not is_low_rank(name) else 1 if name.endswith(DOWN) else 0
        )  # of the body's, and not of the rank
        if shape is None or (
            shape[side] != tensor.shape[side] if side is not None else shape != tuple(tensor.shape)
        ):
            raise UserError(
                f"{folder}: changes {name} of shape {tuple(tensor.shape)}, which the body has not"
            )
