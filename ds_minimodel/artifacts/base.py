"""Foreign models taken as bases: looked at, proved to be computed as transformers does, and named,
not copied.

transformers is the reader of what config.json and a tokenizer's files mean. That a body here
computes the same is proved by the logits of a model of a few layers, one of each kind that there
is, with the real weights, norms and head.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from ds_minimodel.artifacts.models import (
    BodyArtifact,
    ModelManifest,
    Reference,
    is_model,
    mark_as_model,
    named_as_ours,
)
from ds_minimodel.common.errors import UserError, one_line, reason_of
from ds_minimodel.common.files import (
    Content,
    atomic_folder,
    copy_artifact,
    read_artifact,
    write_json,
    write_manifest,
)
from ds_minimodel.common.hub import hub_api
from ds_minimodel.common.names import check_name
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.hf import source as foreign
from ds_minimodel.hf.lazy import DTYPES, Lazy, LazyTensors
from ds_minimodel.hf.names import ARCHITECTURES
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.source import Source
from ds_minimodel.hf.tokenizers import GENERATION_FILE
from ds_minimodel.hf.vocabularies import keep_tokenizer
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import LanguageModel, encode
from ds_minimodel.tokenizers.tokenizer import VOCABULARY

# The largest of the sizes that a configuration makes something of; all others are compared with the
# tensors.
_MOST = {"num_hidden_layers": 10_000, "num_labels": 10_000}


@dataclass(frozen=True)
class Foreign:
    """A foreign model. theirs: transformers' configuration; config: ours. name: on the Hub;
    revision: commit there.
    """

    source: Source
    architecture: Architecture
    theirs: Any
    config: BodyConfig
    name: str | None
    revision: str | None = None

    @property
    def objective(self) -> str:
        """What such a body is trained with."""
        return self.config.objective

    @property
    def their_class(self) -> Any:
        """transformers' class of it."""
        return getattr(
            _library(), self.architecture.classes + OBJECTIVES[self.objective].hugging_face_class
        )


def _library() -> Any:
    """transformers, which takes seconds to import; UserError where it is not installed."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; pip install 'ds_minimodel[hf]'") from None
    return transformers


# Where it is.


def place_of(model: str | Path, only: str | None = None) -> tuple[Path, str | None, str | None]:
    """(folder or GGUF file, name on the Hub, commit) of a model; one that is neither here is looked
    for on the Hub.

    model: a path, or MODEL, OWNER/MODEL, each with @REVISION. only: the one file that is fetched
    from the Hub, where not all that is needed; they stay in huggingface_hub's cache.
    """
    if is_model(model):  # as step 1 makes it, or a reference
        source = read_artifact(model, ModelManifest).source
        if source is not None:
            source.check()
        return Path(source.path if source else model), None, None
    if Path(model).exists():
        return Path(model), None, None
    name, _, revision = str(model).partition("@")
    with _looked_for(model), hub_api(name) as api:
        info = api.model_info(name, revision=revision or None)
        there = [file.rfilename for file in info.siblings or []]
        if not {foreign.CONFIG, foreign.ADAPTER_CONFIG} & {*there}:
            raise UserError(
                f"{name} on {api.endpoint}: no {foreign.CONFIG}, so no model of transformers"
            )
        weights = next((name for name in foreign.WEIGHT_FILES if name in there), "")
        stem, suffix = os.path.splitext(weights.removesuffix(foreign.INDEX))
        parts = [f"{stem}-*-of-*{suffix}"] if weights.endswith(foreign.INDEX) else []
        others = {
            foreign.ADAPTER_CONFIG,
            GENERATION_FILE,
            foreign.CARD,
            weights,
            *foreign.TOKENIZER_FILES,
            *parts,
        }
        files = [only] if only else [foreign.CONFIG, *others]
        return (
            Path(api.snapshot_download(name, revision=info.sha, allow_patterns=files)),
            name,
            info.sha,
        )


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
    source = foreign.source_of(place_of(model)[0])
    return {path.name: Content.of(path) for path in (*source.weight_files(), *source.other_files())}


# What it is.


def config_of(model: str | Path) -> Foreign:
    """The configuration of a folder, a GGUF file or a model of the Hub, of which nothing else is
    fetched.
    """
    return (
        _read_config(*place_of(model, foreign.CONFIG))
        if Path(model).exists()
        else _config_on_hub(str(model))
    )


@functools.cache
def _config_on_hub(model: str) -> Foreign:
    return _read_config(*place_of(model, foreign.CONFIG))


def _read_config(model: Path, name: str | None = None, revision: str | None = None) -> Foreign:
    source = foreign.source_of(model)
    path, values = source.config_path, source.config()
    served = {
        own.model_type: own for architectures in ARCHITECTURES.values() for own in architectures
    }
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str) or model_type not in served:
        *first, last = served
        raise UserError(
            f"{path}: model_type {model_type!s:.40}; there are {', '.join(first)} and {last}"
        )
    if values.get("quantization_config") is not None:
        raise UserError(
            f"{path}: quantization_config: quantised weights are not taken; take the model they "
            "are of"
        )
    for key, most in _MOST.items():
        if not isinstance(values.get(key, 0), int) or not 0 <= values.get(key, 0) <= most:
            raise UserError(f"{path}: {key}: {values[key]!s:.40} is not a number up to {most:,}")
    with one_line(path, "transformers does not take it"):
        theirs = _library().CONFIG_MAPPING[model_type].from_dict(dict(values))
    try:
        config = served[model_type].config(theirs)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(
            f"{path}: {': '.join([*map(str, fault['loc']), reason_of(fault)])}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}: {error}") from None
    if is_model(model):  # of ours, whose dropout has no key in some of theirs
        config = read_artifact(model, ModelManifest).body.architecture
    return Foreign(
        source,
        served[model_type],
        theirs,
        config,
        name or foreign.hub_name(values.get("_name_or_path")),
        revision,
    )


def module_of(model: str | Path, dtype: torch.dtype | None = None) -> Any:
    """transformers' own module of a base, in evaluation mode; dtype: of its weights, by default as
    they are.
    """
    base = _read_config(*place_of(model))
    place = base.source.path
    _library().utils.logging.disable_progress_bar()
    with one_line(place, "transformers cannot read it"):
        if place.is_dir():
            settings: dict[str, Any] = {
                "local_files_only": True,
                "trust_remote_code": False,
                "dtype": dtype or "auto",
            }
            return base.their_class.from_pretrained(place, **settings).eval()
        headers, _ = base.source.headers(base.architecture, base.config)
        state = {name: lazy.read() for name, lazy in headers.items()}
        dtype = dtype or headers[f"{base.architecture.tokens}.weight"].dtype
        return base.their_class.from_pretrained(
            None, config=base.theirs, state_dict=state, dtype=dtype
        ).eval()


# Taken over.


def refer(
    model: str | Path,
    out: str | Path,
    language: str = UNKNOWN_LANGUAGE,
    tokenizer: Path | None = None,
) -> None:
    """Check a foreign model and write a reference to it, a model's folder, into the folder `out`.

    model: a folder as `from_pretrained` takes it, with model.safetensors or pytorch_model.bin,
    whole or in parts with an index, a GGUF file or a name on the Hub. language: that it was trained
    on. tokenizer: folder of its vocabulary, where that was kept before. Raises UserError where a
    file is missing or damaged, or holds a model that no kind of body computes. It takes the memory
    of a few layers in fp32, twice, and of the largest tensor.
    """
    try:
        check_name(language)
    except ValueError as error:
        raise UserError(f"--language {error}") from None
    base = _read_config(*place_of(model))
    source, config = base.source, base.config
    body, embeddings = _checked(base)
    reference = Reference.of(source)
    space = read_artifact(model, ModelManifest).body.space if is_model(model) else reference.space
    own = BodyArtifact(
        config,
        (config.num_layers,),
        body,
        space,
        objective=base.objective,
        model_type=base.architecture.model_type,
    )
    origin = {"license": source.license(), "base_model": base.name, "revision": base.revision}
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
            own.adaptation(language, embeddings),
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
        generation, theirs = base.source.generation(), base.source.tokenizer(base.theirs)
        vocabulary = keep_tokenizer(base.source.path, theirs, folder, base.theirs, base.config)
        if generation is not None:
            write_json(folder / GENERATION_FILE, generation)
        write_manifest(folder, kind="tokenizer", **vocabulary.facts())


# By a language model.
_UNUSED = re.compile(r"(^|\.)pooler\.|position_ids$|^cls\.seq_relationship\.|rotary_emb\.inv_freq$")
_SMALL = 1_000_000  # numbers, of which anything may be made


def _checked(base: Foreign) -> tuple[LazyTensors, LazyTensors]:
    """(body, embeddings) of a foreign model, by our names; UserError where configuration and
    tensors disagree, a number is none, or ours has other logits than transformers'.
    """
    source, says, config = base.source, base.source.config_path.name, base.config
    headers, where = source.headers(base.architecture, config)
    if config.num_layers > len(headers):
        raise UserError(
            f"{where}: {len(headers)} tensors, where {says} has {config.num_layers} layers"
        )
    numbers = sum(math.prod(lazy.shape) for lazy in headers.values())
    own = base.their_class
    with one_line(source.path, "transformers cannot read it"), torch.device("meta"):
        expected = own(base.theirs)
    size = sum(parameter.numel() for parameter in expected.parameters())
    if (
        size > 2 * numbers + _SMALL
    ):  # of a model for something else the message below says which tensor is missing
        raise UserError(f"{where}: {numbers:,} numbers, where {says} describes a model of {size:,}")
    parameters = dict(expected.named_parameters(remove_duplicate=False))
    wanted = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    theirs = foreign.as_transformers_names(wanted, headers, base.architecture.prefix)
    aliases = {id(parameter) for name, parameter in parameters.items() if name in theirs}
    for name, parameter in parameters.items():
        if name not in theirs and id(parameter) not in aliases:
            raise UserError(f"{where}: no tensor {name}; it must hold a {own.__name__}")
        if name in theirs and theirs[name].shape != wanted[name]:
            raise UserError(
                f"{where}: {name} has shape {theirs[name].shape}, by {says} {wanted[name]}"
            )
    used = {id(lazy) for lazy in theirs.values()}
    buffers = dict(expected.named_buffers())
    for name in sorted(name for name, lazy in headers.items() if id(lazy) not in used):
        if not _UNUSED.search(name) and name not in buffers:
            raise UserError(
                f"{where}: {name!r:.120} is nothing that a {own.__name__} by {says} has"
            )
    with torch.device("meta"):
        names = [*LanguageModel(config, base.theirs.vocab_size, (config.num_layers,)).state_dict()]
    parts = itertools.chain(*base.architecture.parts_of(names, config).values())
    taken = {id(parameters[part]) for part in parts if part in parameters}
    for name, lazy in theirs.items():
        tensor = lazy.read()
        if tensor.dtype not in DTYPES.values():
            raise UserError(
                f"{where}: {name!r:.80} is {tensor.dtype}; weights in fp32, bf16 or fp16 are taken"
            )
        if not tensor.isfinite().all():
            raise UserError(
                f"{where}: {name} holds NaN or infinite numbers; the model that it was made of "
                "diverged"
            )
        if id(parameters[name]) not in taken and tensor.any():
            raise UserError(f"{where}: {name!r:.80} is not 0, and no {config.kind} here has it")
    named = named_as_ours(
        base.architecture, LazyTensors(theirs), config, names, where, f"a {config.kind} here has it"
    )
    _prove(base, theirs, tensors := LazyTensors(named))
    return tensors.under("body."), tensors.under("pack.")


# The proof.

_TOLERANCE = 1e-4  # of the largest logit; fp32 leaves some 1e-6
_ROWS, _TOKENS = 96, 48  # of the vocabulary; of the longer of two texts, where no window is longer


def _prove(base: Foreign, theirs: dict[str, Lazy], ours: LazyTensors) -> None:
    """UserError where a model of the first layers of each kind has other logits of random ids than
    transformers', padded or not, in texts that are longer than its windows.
    """
    path, config = base.source.config_path, base.config
    layers, small = _first_of_each_kind(config)
    settings, vocab_size = copy.deepcopy(base.theirs), base.theirs.vocab_size
    draw, rows = torch.Generator().manual_seed(0), min(_ROWS, base.theirs.vocab_size)
    pad = (
        settings.pad_token_id
        if settings.pad_token_id is not None and settings.pad_token_id < rows
        else None
    )
    chosen = torch.randperm(vocab_size, generator=draw)[:rows].sort().values
    if pad is not None:  # RoBERTa's positions count from that id
        chosen[pad] = pad
    settings.num_hidden_layers, settings.vocab_size, settings.pad_token_id = len(layers), rows, pad
    if getattr(settings, "layer_types", None):
        settings.layer_types = [settings.layer_types[index] for index in layers]
        settings.global_attn_every_n_layers = small.period
    settings._attn_implementation = "eager"

    def fill(module: torch.nn.Module, tensors: Mapping[str, Lazy], stack: str) -> None:
        """Put in the layers that stand for the first ones, and of the vocabulary the rows that are
        there.
        """
        state = module.state_dict()
        for name, own in state.items():
            index, _, rest = name.removeprefix(stack).partition(".")
            of_layer = name.startswith(stack)
            lazy = tensors.get(f"{stack}{layers[int(index)]}.{rest}" if of_layer else name)
            if lazy is not None:  # else another name of one that is
                own.copy_(lazy.read() if lazy.shape == own.shape else lazy.read()[chosen])

    with (
        torch.inference_mode(),
        one_line(path, "it cannot be computed"),
        torch.random.fork_rng(devices=[]),
    ):
        model = base.their_class(settings).eval()
        fill(model, theirs, f"{base.architecture.layers}.")
        own = LanguageModel(small, rows, (len(layers),)).eval()
        last, top = f"body.heads.{config.num_layers}.", f"body.heads.{len(layers)}."
        fill(
            own,
            {name.replace(last, top): lazy for name, lazy in ours.entries.items()},
            "body.layers.",
        )
        windows = [sum(filter(None, layer.window)) for layer in small.products.layers]
        length = min(config.max_positions, max(_TOKENS, max(windows) + 32))
        tokens = torch.randint(rows, (2, length), generator=draw)
        tokens[tokens == pad] = rows - 1
        lengths = torch.tensor([length, length // 3], dtype=torch.int32)
        real = torch.arange(length) < lengths[:, None]
        expected = model(input_ids=tokens, attention_mask=real.long()).logits[real]
        (x_BSH,), table = encode(own.pack, own.body, {"tokens": tokens, "lengths": lengths})
        logits = own.pack.logits(own.body.heads[str(len(layers))](x_BSH[real]), table)
    differ, most = (logits - expected).abs().max(), expected.abs().max()
    if not differ <= _TOLERANCE * most:
        raise UserError(
            f"{path}: has a setting by which transformers computes what {config.kind} here does "
            "not: "
            f"logits of up to {most:.3g} differ by {differ:.2g}"
        )


def _first_of_each_kind(config: BodyConfig) -> tuple[list[int], BodyConfig]:
    """(layers that stand for all, one of each kind that there is, two where all are of one; a body
    of these)
    """
    windows = [layer.window for layer in config.products.layers]
    changed = {"num_layers": min(2, config.num_layers)} | (
        {"global_every": 2} if config.period > 1 else {}
    )
    small, layers = config.model_copy(update=changed), list[int]()
    for index, layer in enumerate(small.products.layers):
        if config.period == 1:
            layers.append(index)
        elif layer.window in windows:
            layers.append(windows.index(layer.window))
        else:
            break
    return layers, small.with_layers(len(layers))
