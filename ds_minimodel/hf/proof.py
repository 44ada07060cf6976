"""The proof that a foreign model is computed here as transformers computes it.

Its tensors are compared with its configuration, and its logits with those of a body here: a model
of a few layers, one of each kind that there is, with the real weights, norms and head, over whole
texts, and where it writes texts, token by token, as transformers does that, with a cache.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.hf.configuration import Foreign, library, not_computed
from ds_minimodel.hf.lazy import DTYPES, Lazy, LazyTensors
from ds_minimodel.hf.names.architecture import PROJECTIONS
from ds_minimodel.hf.source import by_hf_names, read_parameters
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.heads import SentenceHead
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import LanguageModel, Model, encode, load_into, materialise
from ds_minimodel.tokenizers.tokenizer import PROBES

# Names of tensors that a language model does not read; those that a body alone does not.
_UNUSED = re.compile(r"(^|\.)pooler\.|position_ids$|^cls\.seq_relationship\.|rotary_emb\.inv_freq$")
_UNREAD_BY_BODIES = re.compile(rf"{_UNUSED.pattern}|^(cls|lm_head|head|decoder|vocab_\w+)\.")
# Numbers that a configuration may ask for beyond twice those that are stored.
_MAX_EXCESS = 1_000_000
# Logits may differ by this share of the largest one; fp32 leaves some 1e-6.
_TOLERANCE = 1e-4
# Rows of the vocabulary that are compared.
_ROWS = 96
# Tokens of the longer of the texts that are compared, where no window is longer.
_TOKENS = 48
# Tokens that transformers writes.
_WRITTEN = 8
# Vectors, or scores, may differ by this share of their largest number, where that is above 1.
_VECTOR_TOLERANCE = 1e-5
_TEXTS = 200
_TEXTS_OF_BATCH = 20


@dataclass(frozen=True)
class Tensors:
    """The tensors of a foreign model, which are those that its configuration asks for.

    Attributes:
        base: the model.
        where: the file that names them.
        hf_state: the tensors by the names of transformers' model.
        state: the same by the names of a model here.
        unused: names of those in hf_state that are part of none in `state`.
    """

    base: Foreign
    where: Path
    hf_state: dict[str, Lazy]
    state: LazyTensors
    unused: frozenset[str]

    def read_all(self) -> None:
        """Read every number; UserError for NaN, infinity, and one that no body here has."""
        for name, lazy in self.hf_state.items():
            tensor = lazy.read()
            if tensor.dtype not in DTYPES.values():
                raise UserError(
                    f"{self.where}: {name!r:.80} is {tensor.dtype}; weights in fp32, bf16 or fp16 "
                    "are taken"
                )
            if not tensor.isfinite().all():
                raise UserError(
                    f"{self.where}: {name} holds NaN or infinite numbers; the model that it was "
                    "made of diverged"
                )
            if name in self.unused and tensor.any():
                kind = self.base.config.kind
                raise UserError(f"{self.where}: {name!r:.80} is not 0, and no {kind} here has it")


def compare_tensors(base: Foreign) -> Tensors:
    """Compare a model's tensors with its configuration.

    That is done by their headers; only where two of them are to be the same both are read.

    Raises:
        UserError: one is missing, has another shape, is not of the model, or differs from another
            that the configuration says is the same.
    """
    config = base.config
    headers, where = base.source.headers(base.architecture, config)
    expected = _expected_module(base, headers, where)
    prefix = base.architecture.prefix if base.is_bare else ""
    named_parameters = expected.named_parameters(remove_duplicate=False)
    parameters = {prefix + name: parameter for name, parameter in named_parameters}
    hf_state = by_hf_names(parameters, headers, base.architecture.prefix)
    _check_parameters(base, hf_state, parameters, where)
    hf_state |= {name: lazy for name, lazy in headers.items() if name.startswith(PROJECTIONS)}
    known = {id(lazy) for lazy in hf_state.values()}
    others = {name for name, lazy in headers.items() if id(lazy) not in known}
    _check_others(base, others.difference(dict(expected.named_buffers())), where)
    with torch.device("meta"):
        names = [*_make_module(base).state_dict()]
    parts = itertools.chain(*base.architecture.parts_of(names, config).values())
    used = {id(parameters[part]) for part in parts if part in parameters}
    unused = frozenset(
        name
        for name, parameter in parameters.items()
        if name in hf_state and id(parameter) not in used
    )
    advice = f"a {config.kind} here has it"
    state = read_parameters(
        base.architecture, LazyTensors(hf_state), config, names, where, advice=advice
    )
    return Tensors(base, where, hf_state, LazyTensors(state), unused)


def _expected_module(base: Foreign, headers: Mapping[str, Lazy], where: Path) -> Any:
    """Return a module of transformers without memory.

    Raises:
        UserError: it is larger by far than what is stored, and might take minutes to make.
    """
    config_name = base.source.config_path.name
    num_layers = base.config.num_layers
    if num_layers > len(headers):
        raise UserError(
            f"{where}: {len(headers)} tensors, where {config_name} has {num_layers} layers"
        )
    with one_line(base.source.path, "transformers cannot read it"), torch.device("meta"):
        expected = base.make_hf_module()
    size = sum(parameter.numel() for parameter in expected.parameters())
    stored_size = sum(math.prod(lazy.shape) for lazy in headers.values())
    # Of a model for something else a later message says which tensor is missing.
    if size > 2 * stored_size + _MAX_EXCESS:
        raise UserError(
            f"{where}: {stored_size:,} numbers, where {config_name} describes a model of {size:,}"
        )
    return expected


def _check_parameters(
    base: Foreign, hf_state: Mapping[str, Lazy], parameters: Mapping[str, Tensor], where: Path
) -> None:
    """Raise UserError for a parameter that is missing or not as the configuration says."""
    config_name = base.source.config_path.name
    # Of a parameter with two names either may be stored, or both.
    first_names: dict[int, str] = {}
    for name, lazy in hf_state.items():
        shape = tuple(parameters[name].shape)
        if lazy.shape != shape:
            raise UserError(f"{where}: {name} has shape {lazy.shape}, by {config_name} {shape}")
        first = first_names.setdefault(id(parameters[name]), name)
        if first != name and not lazy.equals(hf_state[first]):
            raise UserError(
                f"{where}: {name} differs from {first}, and by {config_name} they are one; set "
                "tie_word_embeddings to false there where both are meant"
            )
    for name, parameter in parameters.items():
        if id(parameter) not in first_names:
            is_output = name == f"{base.architecture.output}.weight"
            advice = f", or {config_name} tie_word_embeddings true" if is_output else ""
            hf_class = base.hf_class.__name__
            raise UserError(f"{where}: no tensor {name}; it must hold a {hf_class}{advice}")


def _check_others(base: Foreign, names: Collection[str], where: Path) -> None:
    """Raise UserError where one of the other tensors may change what is computed."""
    unread = _UNREAD_BY_BODIES if base.is_bare else _UNUSED
    for name in sorted(names):
        if not unread.search(name):
            raise UserError(
                f"{where}: {name!r:.120} is nothing that a {base.hf_class.__name__} by "
                f"{base.source.config_path.name} has"
            )


def _make_module(base: Foreign) -> Model:
    """Return a fresh module of this package for a model."""
    config = base.config
    return OBJECTIVES[base.objective].model(config, base.hf_config.vocab_size, (config.num_layers,))


def module_of(base: Foreign, dtype: torch.dtype | None = None) -> Any:
    """Make transformers' own module of a model, in evaluation mode.

    It has the configuration and the tensors that the proof is of; transformers looks for nothing.

    Args:
        base: the model.
        dtype: of its weights; default: that of the token embeddings.
    """
    tensors = compare_tensors(base)
    dtype = dtype or tensors.hf_state[f"{base.architecture.tokens}.weight"].dtype
    prefix = base.architecture.prefix if base.is_bare else ""
    state = {
        name.removeprefix(prefix): lazy.read().to(dtype)
        for name, lazy in tensors.hf_state.items()
        if not name.startswith(PROJECTIONS)
    }
    generation = base.source.generation()
    library().utils.logging.disable_progress_bar()
    with one_line(base.source.path, "transformers cannot read it"):
        module = base.hf_class.from_pretrained(
            None, config=base.hf_config, state_dict=state, dtype=dtype, attn_implementation="sdpa"
        )
        if generation is not None:
            module.generation_config = library().GenerationConfig.from_dict(generation)
    return module.eval()


def prove(tensors: Tensors) -> None:
    """Compare a model of the first layers of each kind with transformers', over random ids.

    The texts are longer than its windows, padded or not; one goes on with what transformers' writes
    with a cache. Of a model with a finished head all is compared, over texts.

    Raises:
        UserError: what is computed differs, or transformers asked for a setting that is not
            computed here.
    """
    if tensors.base.config.head is None:
        _prove_logits(tensors)
    else:
        _prove_outputs(tensors)


def _prove_logits(tensors: Tensors) -> None:
    """Compare a small model that has a language model's head."""
    base = tensors.base
    config = base.config
    layers, small = _first_of_each_kind(config)
    vocab_size = base.hf_config.vocab_size
    draw = torch.Generator().manual_seed(0)
    rows = min(_ROWS, vocab_size)
    chosen = torch.randperm(vocab_size, generator=draw)[:rows].sort().values
    pad = base.hf_config.pad_token_id
    if pad is not None and pad >= rows:
        pad = None
    if pad is not None:
        # RoBERTa's positions count from that id.
        chosen[pad] = pad
    hf_config = copy.deepcopy(base.hf_config)
    hf_config.num_hidden_layers = len(layers)
    hf_config.vocab_size = rows
    hf_config.pad_token_id = pad
    if getattr(hf_config, "layer_types", None):
        hf_config.layer_types = [hf_config.layer_types[index] for index in layers]
        hf_config.global_attn_every_n_layers = small.period
    hf_config._attn_implementation = "eager"
    asked = _note_what_is_asked(hf_config)

    def fill(module: torch.nn.Module, tensors: Mapping[str, Lazy], stack: str) -> None:
        """Fill a small module: its layers from those chosen of `stack`, vocabularies by rows."""
        for name, parameter in module.state_dict().items():
            stored = name
            if name.startswith(stack):
                index, _, rest = name.removeprefix(stack).partition(".")
                stored = f"{stack}{layers[int(index)]}.{rest}"
            lazy = tensors.get(stored)
            # Of a tensor with two names one may be missing.
            if lazy is not None:
                is_whole = lazy.shape == parameter.shape
                parameter.copy_(lazy.read() if is_whole else lazy.read()[chosen])

    with (
        torch.inference_mode(),
        one_line(base.source.config_path, "it cannot be computed"),
        torch.random.fork_rng(devices=[]),
    ):
        hf_model = base.hf_class(hf_config).eval()
        fill(hf_model, tensors.hf_state, f"{base.architecture.layers}.")
        model = LanguageModel(small, rows, (len(layers),)).eval()
        head = f"body.heads.{config.num_layers}."
        small_head = f"body.heads.{len(layers)}."
        entries = tensors.state.entries.items()
        state = {name.replace(head, small_head): lazy for name, lazy in entries}
        fill(model, state, "body.layers.")
        logits, expected = _both_logits(model, hf_model, small, rows, pad, draw)
    largest = expected.abs().max().item()
    difference = (logits - expected).abs().max().item()
    _check_alike(base, asked, f"logits of up to {largest:.3g}", difference, _TOLERANCE * largest)


def _both_logits(
    model: LanguageModel,
    hf_model: Any,
    config: BodyConfig,
    vocab_size: int,
    pad: int | None,
    draw: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return logits of a model here and of transformers' at the same positions of random texts."""

    def logits_at(tokens: Tensor, lengths: Tensor, real_BS: Tensor) -> Tensor:
        """Return logits (N, V) at the positions that are true in `real_BS`."""
        (x_BSH,), table = encode(model.pack, model.body, {"tokens": tokens, "lengths": lengths})
        head = model.body.heads[str(config.num_layers)]
        return model.pack.logits(head(x_BSH[real_BS]), table)

    windows = [sum(filter(None, layer.window)) for layer in config.products.layers]
    length = min(config.max_positions, max(_TOKENS, max(windows) + 32))
    tokens = torch.randint(vocab_size, (2, length), generator=draw)
    tokens[tokens == pad] = vocab_size - 1
    lengths = torch.tensor([length, length // 3], dtype=torch.int32)
    real_BS = torch.arange(length) < lengths[:, None]
    expected = hf_model(input_ids=tokens, attention_mask=real_BS.long()).logits[real_BS]
    logits = logits_at(tokens, lengths, real_BS)
    if not config.causal or length <= _WRITTEN:
        return logits, expected
    hf_model.generation_config = library().GenerationConfig(
        max_new_tokens=_WRITTEN,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    begun = tokens[:1, : length - _WRITTEN]
    written = hf_model.generate(begun, attention_mask=torch.ones_like(begun))
    before_written = torch.arange(length)[None] >= length - _WRITTEN - 1
    # After the last token nothing was written.
    before_written[0, -1] = False
    of_written = logits_at(written.sequences, lengths[:1], before_written)
    return torch.cat([logits, of_written]), torch.cat([expected, *written.logits])


def _check_alike(
    base: Foreign, asked: set[str], what: str, difference: float, limit: float
) -> None:
    """Raise UserError where transformers computes otherwise, or looked for an unknown setting.

    Args:
        base: the model.
        asked: as of _note_what_is_asked.
        what: the numbers that were compared, for the message.
        difference: the largest one.
        limit: the largest difference that is taken.
    """
    path = base.source.config_path
    if not difference <= limit:
        raise UserError(
            f"{path}: has a setting by which transformers computes what {base.config.kind} here "
            f"does not: {what} differ by {difference:.2g}"
        )
    for key in sorted(base.notes.keys() & asked):
        raise not_computed(path, key, base.notes[key])


def probe_texts(without: Collection[str]) -> list[str]:
    """Return _TEXTS texts of many scripts, the same each time.

    Their length rises; any model cuts the last ones.

    Args:
        without: words that do not occur, such as special tokens, which other texts become nowhere.
    """
    words = [
        word
        for text in PROBES
        for word in text.split()
        if not any(token in word for token in without)
    ]
    texts = []
    for index in range(_TEXTS):
        length = 1 + index // 10 if index < _TEXTS - 4 else 1000
        first = 7 * index
        chosen = [words[position % len(words)] for position in range(first, first + length)]
        texts.append(" ".join(chosen))
    return texts


def _prove_outputs(tensors: Tensors) -> None:
    """Compare what a whole model with a finished head gives for texts: vectors or scores.

    Transformers' are those of its forward pass and the pooling that the model declares.
    """
    base = tensors.base
    head = base.config.head
    assert head is not None
    tokenizer = base.source.tokenizer(base.hf_config)
    hf_module = module_of(base, torch.float32)
    asked = _note_what_is_asked(hf_module.config)
    with torch.device("meta"):
        module = _make_module(base)
    materialise(module, torch.float32)
    load_into(module.eval(), tensors.state)
    texts = probe_texts(without=tokenizer.all_special_tokens)
    difference = 0.0
    largest = 1.0
    with torch.inference_mode(), one_line(base.source.config_path, "it cannot be computed"):
        for first in range(0, len(texts), _TEXTS_OF_BATCH):
            inputs = tokenizer(
                texts[first : first + _TEXTS_OF_BATCH],
                truncation=True,
                max_length=head.max_length,
                padding=True,
                padding_side="right",
                return_tensors="pt",
            )
            expected = _hf_outputs(hf_module, inputs, base.config, tensors.state)
            lengths = inputs["attention_mask"].sum(1).int()
            outputs = module({"tokens": inputs["input_ids"], "lengths": lengths})
            difference = max(difference, (outputs - expected).abs().max().item())
            largest = max(largest, expected.abs().max().item())
    _check_alike(base, asked, "numbers of vectors", difference, _VECTOR_TOLERANCE * largest)


def _hf_outputs(
    hf_module: Any, inputs: Mapping[str, Tensor], config: BodyConfig, state: Mapping[str, Tensor]
) -> Tensor:
    """Return transformers' scores, or its last states pooled and projected as the head says."""
    head = config.head
    if not isinstance(head, SentenceHead):
        return hf_module(**inputs).logits
    states_BSH = hf_module(**inputs).last_hidden_state
    mask_BS1 = inputs["attention_mask"][..., None].float()
    vectors_BD = states_BSH[:, 0]
    if head.pooling == "mean":
        vectors_BD = (states_BSH * mask_BS1).sum(1) / mask_BS1.sum(1)
    for index, projection in enumerate(head.projections):
        name = f"body.heads.{config.num_layers}.projections.{index}"
        vectors_BD = vectors_BD @ state[f"{name}.weight"].float().T
        if projection.bias:
            vectors_BD = vectors_BD + state[f"{name}.bias"].float()
        if projection.activation != "identity":
            vectors_BD = getattr(torch.nn.functional, projection.activation)(vectors_BD)
    return torch.nn.functional.normalize(vectors_BD) if head.normalises else vectors_BD


def _note_what_is_asked(hf_config: Any) -> set[str]:
    """Return a set that takes up what a configuration is asked for from now on and does not have.

    A setting that its class does not know, and its model's code reads all the same, shows so.
    """
    asked = set[str]()

    def missing(_: object, name: str) -> Any:
        asked.add(name)
        raise AttributeError(name)

    kind = type(hf_config)
    hf_config.__class__ = type(kind.__name__, (kind,), {"__getattr__": missing})
    return asked


def _first_of_each_kind(config: BodyConfig) -> tuple[list[int], BodyConfig]:
    """Return (indices of layers that stand for all, a body of these).

    There is one of each kind that the body has, two where all are of one.
    """
    windows = [layer.window for layer in config.products.layers]
    changed = {"num_layers": min(2, config.num_layers)}
    if config.period > 1:
        changed["global_every"] = 2
    small = config.model_copy(update=changed)
    layers = list[int]()
    for index, layer in enumerate(small.products.layers):
        if config.period == 1:
            layers.append(index)
        elif layer.window in windows:
            layers.append(windows.index(layer.window))
        else:
            break
    return layers, small.with_layers(len(layers))
