"""Adaptations on disk: what was learned over a model, and its application.

`embeddings.safetensors` has the rows of a language, a tokenizer's files beside it. Low-rank updates
of the body are in the form that PEFT reads (`adapter_config.json`, `adapter_model.safetensors`),
with the new rows of an extended vocabulary; tensors of the body that are replaced as a whole are in
`body.safetensors`. The manifest names the model by the hash of its embedding space. All numbers are
fp32.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from ds_minimodel.hf.lazy import (
    Lazy,
    LazyTensors,
    lazy_entries,
    open_tensors,
    save_tensors,
    shapes_of,
)
from ds_minimodel.hf.names.architecture import Architecture, split_rows
from ds_minimodel.hf.source import ADAPTER_CONFIG
from ds_minimodel.hf.tokenizers import name_ends
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.body import BASE_ROWS
from ds_minimodel.models.low_rank import ALPHA, LORA_A, LORA_B, changed_name, is_low_rank, updated
from ds_minimodel.models.trainable import load_into

EMBEDDINGS = "embeddings.safetensors"
UPDATE = "body.safetensors"
# PEFT's name of a file, and its names of what is in it.
ADAPTER = "adapter_model.safetensors"
_IN_PEFT = "base_model.model."
_ROWS = ".token_adapter.trainable_tokens_delta"


class AdaptationManifest(VocabularyManifest):
    """Manifest of an adaptation.

    Attributes:
        language: what was learned.
        space: identity of the model that it is over.
        rows: of its embeddings.
        steps: optimizer steps of its training.
        eflops: cost of its training.
        body_kind: kind of the model's body.
        model_type: the model's in transformers, "" where that has no such body.
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
    """What a reader needs of PEFT's configuration."""

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
    """Write an adaptation with its vocabulary.

    Args:
        folder: where to; it must not exist.
        adaptation: what was learned.
        tokenizer: folder of the vocabulary.
        config: architecture of the body, where that is updated.
        strength: share of a low-rank update that a reader of the adapter adds.
        ends: ids of tokens that end an answer, as it has learned.
        adapter: further keys of PEFT's configuration.
        facts: further keys of the manifest.
    """
    architecture = adaptation.architecture
    embeddings = dict(adaptation.embeddings)
    update = dict(adaptation.update)
    with files.atomic_folder(folder) as out:
        low_rank = {name: tensor for name, tensor in update.items() if is_low_rank(name)}
        if low_rank and architecture is not None:
            assert config is not None
            for name in low_rank:
                del update[name]
            tensors = _adapter_of(low_rank, architecture, config)
            if adaptation.num_base:
                # New rows beside those of the model are what PEFT calls rows that train.
                for name, peft_name in _row_names(architecture).items():
                    if name in embeddings:
                        tensors[peft_name] = Lazy.of(embeddings.pop(name))
            save_tensors(out / ADAPTER, LazyTensors(tensors))
            settings = _adapter_config(tensors, architecture, adaptation, strength)
            files.write_json(out / ADAPTER_CONFIG, settings | dict(adapter or {}))
        if embeddings:
            save_tensors(out / EMBEDDINGS, embeddings)
        if update:
            save_tensors(out / UPDATE, update)
        manifest = files.read_artifact(tokenizer, VocabularyManifest, verify=True)
        for name in manifest.files:
            if not name.endswith(".safetensors") and name != ADAPTER_CONFIG:
                shutil.copyfile(Path(tokenizer) / name, out / name)
        if ends:
            name_ends(out, ends)
        vocabulary = replace(manifest.vocabulary(tokenizer), num_base=adaptation.num_base)
        files.write_manifest(
            out,
            kind="adaptation",
            rows=adaptation.rows,
            language=adaptation.language,
            space=adaptation.space,
            steps=adaptation.steps,
            eflops=adaptation.eflops,
            body_kind=adaptation.body_kind,
            model_type=adaptation.model_type,
            **vocabulary.facts(),
            **facts,
        )


def load_adaptation(
    folder: str | Path,
    space: str | None = None,
    language: str | None = None,
    steps: int | None = None,
) -> Adaptation:
    """Read an adaptation.

    Args:
        folder: of the adaptation.
        space: identity of the model that it must be over, where that is known.
        language: what it must have learned, where that is known.
        steps: optimizer steps that it must have trained, where they are known.

    Raises:
        UserError: it is damaged, or another one.
    """
    folder = Path(folder)
    manifest = files.read_artifact(folder, AdaptationManifest, verify=True)
    if space is not None:
        check_space(folder, manifest.space, space)
    _check_is_of(folder, "language", manifest.language, language)
    _check_is_of(folder, "step", manifest.steps, steps)

    def read(name: str) -> dict[str, Tensor]:
        return dict(open_tensors(folder / name, MAKE_AGAIN)) if name in manifest.files else {}

    embeddings = read(EMBEDDINGS)
    update = read(UPDATE)
    adaptation = Adaptation(
        language=manifest.language,
        embeddings=embeddings,
        space=manifest.space,
        steps=manifest.steps,
        eflops=manifest.eflops,
        num_base=manifest.num_base,
        body_kind=manifest.body_kind,
        model_type=manifest.model_type,
        update=update,
    )
    architecture = adaptation.architecture
    if ADAPTER in manifest.files and architecture is not None:
        config = files.read_model(folder / ADAPTER_CONFIG, _AdapterConfig, MAKE_AGAIN)
        adapter = open_tensors(folder / ADAPTER, MAKE_AGAIN)
        for name, peft_name in _row_names(architecture).items():
            if peft_name in adapter:
                embeddings[name] = adapter[peft_name]
        try:
            update |= _low_rank_of(adapter, architecture, config.lora_alpha / ALPHA)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{folder / ADAPTER}: no LoRA of this model ({error!r:.200}); {MAKE_AGAIN}"
            ) from None
    _check_rows(folder, manifest, shapes_of(embeddings))
    return adaptation


def _check_is_of(folder: Path, what: str, actual: object, expected: object) -> None:
    """Raise UserError where an adaptation is of another language or step than is known."""
    if expected is not None and actual != expected:
        raise UserError(
            f"{folder}: the adaptation of {what} {actual} in the place of that of {expected}; "
            f"{MAKE_AGAIN}"
        )


def _check_rows(
    folder: Path, manifest: AdaptationManifest, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise UserError where embeddings are not rows for the ids that the manifest names."""
    rows = manifest.rows
    tokens = shapes.get("tokens", ())
    matrix = (rows, *tokens[1:])
    expected = {"tokens": matrix, "output": matrix, "bias": (rows,)}
    agree = all(expected.get(name) == shape for name, shape in shapes.items())
    if len(tokens) != 2 or manifest.num_base + rows < manifest.vocab_size or not agree:
        raise UserError(
            f"{folder}: embeddings of shapes {shapes!s:.120} are not those of {rows} tokens for "
            f"{manifest.vocab_size} ids; {MAKE_AGAIN}"
        )


# The form of PEFT. Where one product here is several of transformers', an update of it is one of
# each, and these share lora_A, which reads what goes in.


def _adapter_of(
    low_rank: Mapping[str, Tensor], architecture: Architecture, config: BodyConfig
) -> dict[str, Lazy]:
    """Return low-rank updates by PEFT's names."""
    adapter: dict[str, Lazy] = {}
    for name in sorted(low_rank):
        module, _, part = name.rpartition(".")
        weight = f"body.{module}.weight"
        tensor = Lazy.of(low_rank[name])
        (weights,) = architecture.names([weight], {}).values()
        modules = [f"{_IN_PEFT}{peft_name.removesuffix('.weight')}" for peft_name in weights]
        if part == LORA_A:
            adapter |= {f"{peft_module}.lora_A.weight": tensor for peft_module in modules}
            continue
        for peft_module, rows in split_rows(weight, modules, tensor.shape[0], config):
            adapter[f"{peft_module}.lora_B.weight"] = tensor.rows(rows.start, rows.stop)
    return adapter


def _low_rank_of(
    adapter: LazyTensors, architecture: Architecture, scale: float
) -> dict[str, Tensor]:
    """Return low-rank updates by the names of a body, out of PEFT's; lora_B is times `scale`."""
    low_rank: dict[str, Tensor] = {}
    layers = {module.partition(".")[0] for module in _modules_in(adapter, architecture)}
    for layer in sorted(layers, key=int):
        for part, names in architecture.layer.items():
            # What is one product here may be several modules of transformers'.
            modules = [f"{_IN_PEFT}{architecture.layers}.{layer}.{name}" for name in names]
            name_of_a = f"{modules[0]}.lora_A.weight"
            if name_of_a not in adapter:
                continue
            lora_a = adapter[name_of_a]
            lora_b = torch.cat([adapter[f"{module}.lora_B.weight"] for module in modules])
            if lora_a.dim() != 2 or not 0 < len(lora_a) == lora_b.shape[1]:
                raise ValueError(f"{name_of_a} and its other half are not of one rank")
            low_rank[f"layers.{layer}.{part}.{LORA_A}"] = lora_a
            low_rank[f"layers.{layer}.{part}.{LORA_B}"] = lora_b if scale == 1 else lora_b * scale
    return low_rank


def _modules_in(adapter: Iterable[str], architecture: Architecture) -> set[str]:
    """Return the names, from the index of the layer on, of the modules that PEFT updates."""
    layers = f"{architecture.layers}."
    names = [name for name in adapter if ".lora_A." in name]
    return {name.split(layers)[1].removesuffix(".lora_A.weight") for name in names}


def _row_names(architecture: Architecture) -> dict[str, str]:
    """Return {name of embeddings: what PEFT calls rows of them that train}."""
    modules = {"tokens": architecture.tokens, "output": architecture.output}
    return {name: f"{_IN_PEFT}{module}{_ROWS}" for name, module in modules.items()}


def _adapter_config(
    tensors: Mapping[str, Lazy], architecture: Architecture, adaptation: Adaptation, strength: float
) -> dict[str, Any]:
    """Return PEFT's configuration of an adapter with these tensors."""
    rank = next(lazy.shape[0] for name, lazy in tensors.items() if ".lora_A." in name)
    modules = {module.partition(".")[2] for module in _modules_in(tensors, architecture)}
    rows = [*range(adaptation.num_base, adaptation.num_base + adaptation.rows)]
    trained = {
        module.rpartition(".")[2]: rows
        for module in (architecture.tokens, architecture.output)
        if f"{_IN_PEFT}{module}{_ROWS}" in tensors
    }
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": ALPHA * strength,
        "target_modules": sorted(modules),
        "trainable_token_indices": trained or None,
        "task_type": "CAUSAL_LM" if "ForCausalLM" in architecture.endings else None,
        "inference_mode": True,
    }


# Application.


def whole(adaptation: Adaptation, base: Adaptation) -> Adaptation:
    """Return an adaptation with all rows of its vocabulary.

    Args:
        adaptation: what was learned, perhaps new rows alone.
        base: the model's language, whose rows precede them.

    Raises:
        UserError: the model has not as many tokens as the adaptation extends.
    """
    if not adaptation.num_base:
        return adaptation
    if adaptation.num_base != base.rows:
        raise UserError(
            f"the language {adaptation.language} extends a vocabulary of {adaptation.num_base:,} "
            f"tokens, the model has {base.rows:,}, so its tokens would be others'; take a model of "
            "as many"
        )
    base_rows = lazy_entries(base.embeddings)
    embeddings = {}
    for name, tensor in adaptation.embeddings.items():
        if name in base_rows:
            new_rows = Lazy.of(tensor.to(base_rows[name].dtype))
            embeddings[name] = Lazy.concat([base_rows[name], new_rows])
        else:
            embeddings[name] = Lazy.of(tensor)
    return replace(adaptation, embeddings=LazyTensors(embeddings), num_base=0)


def plug(
    model: nn.Module,
    adaptation: Adaptation,
    body: BodyArtifact | None = None,
    strength: float = 1.0,
) -> None:
    """Put a language into a model, and the update of the body where it has one.

    Args:
        model: a module whose pack has the vocabulary's size.
        adaptation: what was learned.
        body: the body as it was before; needed for an update.
        strength: share of their change that the body's tensors keep.

    Raises:
        UserError: the strength is none.
    """
    check_strength(strength)
    load_into(model, adaptation.embeddings, "pack.")
    if adaptation.update:
        assert body is not None
        for name, tensor in updated(body.body_tensors, adaptation.update, strength):
            load_into(model, {name: tensor}, "body.")


def load_base_rows(model: nn.Module, base: Adaptation, num_base: int) -> None:
    """Load the rows that an extended language has of the model's language into a module.

    Args:
        model: a module with such rows.
        base: the model's language.
        num_base: how many rows there are; 0 where the language extends none.
    """
    if num_base:
        load_into(model, base.embeddings, f"pack.{BASE_ROWS}")


def merged(
    body: BodyArtifact, adaptation: Adaptation, strength: float = 1.0
) -> Iterator[tuple[str, Lazy]]:
    """Yield (name, tensor) of the body, each with what the adaptation makes of it.

    Args:
        body: the body as it was before; its tensors keep their types.
        adaptation: what was learned.
        strength: share of their change that the tensors keep.
    """
    changed = {changed_name(name) for name in adaptation.update}
    for name, lazy in lazy_entries(body.body_tensors).items():
        if name not in changed:
            yield name, lazy
            continue
        update = {
            key: tensor for key, tensor in adaptation.update.items() if changed_name(key) == name
        }
        yield name, lazy.map(partial(_with_update, name, update, strength))


def _with_update(
    name: str, update: Mapping[str, Tensor], strength: float, tensor: Tensor
) -> Tensor:
    """Return what an update of the tensor `name` makes of it, in the tensor's type."""
    ((_, changed),) = updated({name: tensor}, update, strength)
    return changed.to(tensor.dtype)


def check_space(what: str | Path, of_adaptation: str, of_body: str) -> None:
    """Raise UserError where an adaptation is of another embedding space than a body.

    Args:
        what: the adaptation, for the message.
        of_adaptation: its space.
        of_body: the body's.
    """
    if of_adaptation != of_body:
        raise UserError(
            f"{what}: this was trained for embedding space {of_adaptation}, the body "
            f"has {of_body}; use what was adapted to this body, or adapt it"
        )


def check_strength(strength: float) -> None:
    """Raise UserError where a strength is no share of what a body has learned."""
    if not 0 < strength <= 1:
        raise UserError(f"a strength of {strength:g}; give one above 0, at most 1")


def check_fit(folder: str | Path, adaptation: Adaptation, body: BodyArtifact) -> None:
    """Raise UserError where an adaptation does not fit a body of its embedding space.

    Args:
        folder: of the adaptation, for messages.
        adaptation: what was learned.
        body: what it is to be put into.
    """
    shapes = shapes_of(adaptation.embeddings)
    width = shapes["tokens"][1]
    if width != body.config.hidden_size:
        raise UserError(
            f"{folder}: embeddings of size {width}, the body has {body.config.hidden_size}"
        )
    needed = set(body.config.language_tensors)
    if shapes.keys() != needed:
        raise UserError(
            f"{folder}: the language holds {', '.join(sorted(shapes))}, where languages of this "
            f"body have {', '.join(sorted(needed))}"
        )
    changed = {changed_name(name) for name in adaptation.update}
    if body.task is not None and any(name.startswith("layers.") for name in changed):
        raise UserError(
            f"{folder}: has a body of its own, which is not the one that the task was finetuned on"
        )
    body_shapes = shapes_of(body.body_tensors)
    for name, tensor in adaptation.update.items():
        shape = body_shapes.get(changed_name(name))
        if shape is None or not _changes(name, tuple(tensor.shape), shape):
            raise UserError(
                f"{folder}: changes {name} of shape {tuple(tensor.shape)}, which the body has not"
            )


def _changes(name: str, shape: tuple[int, ...], of_body: tuple[int, ...]) -> bool:
    """Return whether an entry of an update, by its shape, can change a tensor of the body."""
    if not is_low_rank(name):
        return shape == of_body
    # (rank, what goes in) and (what comes out, rank) beside a weight of (out, in).
    side = 1 if name.endswith(LORA_A) else 0
    return shape[side] == of_body[side]
