"""What a foreign model computes: its tensors compared with its configuration, and its logits with
those of a body here.

That our body computes the same as transformers is proved by a model of a few layers, one of each
kind that there is, with the real weights, norms and head: over whole texts, and where it writes
texts one token after the other, as transformers does that, with a cache.
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

# By a language model.
_UNUSED = re.compile(r"(^|\.)pooler\.|position_ids$|^cls\.seq_relationship\.|rotary_emb\.inv_freq$")
# By a body alone, heads of a language model neither.
_UNREAD_BY_BODIES = re.compile(rf"{_UNUSED.pattern}|^(cls|lm_head|head|decoder|vocab_\w+)\.")
_SMALL = 1_000_000  # numbers, of which anything may be made
_TOLERANCE = 1e-4  # of the largest logit; fp32 leaves some 1e-6
# Of the vocabulary; of the longer of two texts, where no window is longer; of what is written.
_ROWS = 96
_TOKENS = 48
_WRITTEN = 8
_VECTOR_TOLERANCE = 1e-5  # of a number of a vector, or of the largest score that is above 1
_TEXTS = 200
_TEXTS_OF_BATCH = 20


@dataclass(frozen=True)
class Tensors:
    """The tensors of a foreign model, which are those that its configuration asks for.

    where: the file that names them. theirs: by the names of transformers' model; ours: by those of
    a LanguageModel. unused: those of theirs that are in none of ours.
    """

    base: Foreign
    where: Path
    hf_state: dict[str, Lazy]
    state: LazyTensors
    unused: frozenset[str]

    def read_all(self) -> None:
        """Read every number; UserError for one that is none, or that no body here has."""
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
    """Compare a model's tensors with its configuration by their headers, without reading them.

    Raises:
        UserError: one is missing, has another shape, has no place in the model, or differs from
            another that the configuration says is the same.
    """
    source = base.source
    config = base.config
    says = source.config_path.name
    headers, where = source.headers(base.architecture, config)
    if config.num_layers > len(headers):
        raise UserError(
            f"{where}: {len(headers)} tensors, where {says} has {config.num_layers} layers"
        )
    numbers = sum(math.prod(lazy.shape) for lazy in headers.values())
    with one_line(source.path, "transformers cannot read it"), torch.device("meta"):
        expected = base.make_hf_module()
    size = sum(parameter.numel() for parameter in expected.parameters())
    # Of a model for something else the messages below say which tensor is missing.
    if size > 2 * numbers + _SMALL:
        raise UserError(f"{where}: {numbers:,} numbers, where {says} describes a model of {size:,}")
    prefix = base.architecture.prefix if base.is_bare else ""
    named_parameters = expected.named_parameters(remove_duplicate=False)
    parameters = {prefix + name: parameter for name, parameter in named_parameters}
    wanted = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    theirs = by_hf_names(wanted, headers, base.architecture.prefix)
    first_names: dict[int, str] = {}
    for name, lazy in theirs.items():
        if lazy.shape != wanted[name]:
            raise UserError(f"{where}: {name} has shape {lazy.shape}, by {says} {wanted[name]}")
        first = first_names.setdefault(id(parameters[name]), name)
        if first != name and not lazy.equals(theirs[first]):
            raise UserError(
                f"{where}: {name} differs from {first}, and by {says} they are one; set "
                "tie_word_embeddings to false there where both are meant"
            )
    for name, parameter in parameters.items():
        if id(parameter) not in first_names:
            is_output = name == f"{base.architecture.output}.weight"
            advice = f", or {says} tie_word_embeddings true" if is_output else ""
            kind = base.hf_class.__name__
            raise UserError(f"{where}: no tensor {name}; it must hold a {kind}{advice}")
    theirs |= {name: lazy for name, lazy in headers.items() if name.startswith(PROJECTIONS)}
    taken = {id(lazy) for lazy in theirs.values()}
    unread = _UNREAD_BY_BODIES if base.is_bare else _UNUSED
    buffers = dict(expected.named_buffers())
    for name in sorted(name for name, lazy in headers.items() if id(lazy) not in taken):
        if not unread.search(name) and name not in buffers:
            kind = base.hf_class.__name__
            raise UserError(f"{where}: {name!r:.120} is nothing that a {kind} by {says} has")
    with torch.device("meta"):
        names = [*_our_module(base).state_dict()]
    parts = itertools.chain(*base.architecture.parts_of(names, config).values())
    used = {id(parameters[part]) for part in parts if part in parameters}
    unused = frozenset(name for name in parameters if name in theirs) - {
        name for name, parameter in parameters.items() if id(parameter) in used
    }
    advice = f"a {config.kind} here has it"
    ours = read_parameters(
        base.architecture, LazyTensors(theirs), config, names, where, advice=advice
    )
    return Tensors(base, where, theirs, LazyTensors(ours), unused)


def _our_module(base: Foreign) -> Model:
    """A fresh module of ours."""
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
    with a cache.

    Raises:
        UserError: logits differ, or transformers asked for a setting that is not computed here.
    """
    base = tensors.base
    config = base.config
    path = base.source.config_path
    if config.head is not None:
        _prove_outputs(tensors)
        return
    layers, small = _first_of_each_kind(config)
    settings = copy.deepcopy(base.hf_config)
    vocab_size = base.hf_config.vocab_size
    draw = torch.Generator().manual_seed(0)
    rows = min(_ROWS, vocab_size)
    pad = settings.pad_token_id
    if pad is not None and pad >= rows:
        pad = None
    chosen = torch.randperm(vocab_size, generator=draw)[:rows].sort().values
    if pad is not None:  # RoBERTa's positions count from that id
        chosen[pad] = pad
    settings.num_hidden_layers = len(layers)
    settings.vocab_size = rows
    settings.pad_token_id = pad
    if getattr(settings, "layer_types", None):
        settings.layer_types = [settings.layer_types[index] for index in layers]
        settings.global_attn_every_n_layers = small.period
    settings._attn_implementation = "eager"
    asked = _note_what_is_asked(settings)

    def fill(module: torch.nn.Module, tensors: Mapping[str, Lazy], stack: str) -> None:
        """Put in the layers that stand for the first ones, and of the vocabulary the rows that are
        there.
        """
        for name, parameter in module.state_dict().items():
            index, _, rest = name.removeprefix(stack).partition(".")
            of_layer = name.startswith(stack)
            lazy = tensors.get(f"{stack}{layers[int(index)]}.{rest}" if of_layer else name)
            if lazy is not None:  # else another name of one that is
                is_whole = lazy.shape == parameter.shape
                parameter.copy_(lazy.read() if is_whole else lazy.read()[chosen])

    with (
        torch.inference_mode(),
        one_line(path, "it cannot be computed"),
        torch.random.fork_rng(devices=[]),
    ):
        model = base.hf_class(settings).eval()
        fill(model, tensors.hf_state, f"{base.architecture.layers}.")
        ours = LanguageModel(small, rows, (len(layers),)).eval()
        last = f"body.heads.{config.num_layers}."
        top = f"body.heads.{len(layers)}."
        entries = tensors.state.entries.items()
        fill(ours, {name.replace(last, top): lazy for name, lazy in entries}, "body.layers.")

        def our_logits(tokens: Tensor, lengths: Tensor, real: Tensor) -> Tensor:
            """Logits (N, V) at the positions `real` of texts (B, S)."""
            (x_BSH,), table = encode(ours.pack, ours.body, {"tokens": tokens, "lengths": lengths})
            return ours.pack.logits(ours.body.heads[str(len(layers))](x_BSH[real]), table)

        windows = [sum(filter(None, layer.window)) for layer in small.products.layers]
        length = min(config.max_positions, max(_TOKENS, max(windows) + 32))
        tokens = torch.randint(rows, (2, length), generator=draw)
        tokens[tokens == pad] = rows - 1
        lengths = torch.tensor([length, length // 3], dtype=torch.int32)
        real = torch.arange(length) < lengths[:, None]
        expected = model(input_ids=tokens, attention_mask=real.long()).logits[real]
        logits = our_logits(tokens, lengths, real)
        if config.causal and length > _WRITTEN:
            model.generation_config = library().GenerationConfig(
                max_new_tokens=_WRITTEN,
                do_sample=False,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
            begun = tokens[:1, : length - _WRITTEN]
            written = model.generate(begun, attention_mask=torch.ones_like(begun))
            places = torch.arange(length)[None] >= length - _WRITTEN - 1
            places[0, -1] = False  # after which nothing was written
            expected = torch.cat([expected, *written.logits])
            logits = torch.cat([logits, our_logits(written.sequences, lengths[:1], places)])
    difference = (logits - expected).abs().max()
    most = expected.abs().max()
    if not difference <= _TOLERANCE * most:
        raise UserError(
            f"{path}: has a setting by which transformers computes what {config.kind} here does "
            "not: "
            f"logits of up to {most:.3g} differ by {difference:.2g}"
        )
    for key in sorted(base.notes.keys() & asked):
        raise not_computed(path, key, base.notes[key])


def probe_texts(without: Collection[str] = (), count: int = _TEXTS) -> list[str]:
    """Return texts of many scripts, the same each time.

    Their length rises; any model cuts the last ones.

    Args:
        without: words that do not occur, such as special tokens, which other texts become nowhere.
        count: of texts.
    """
    lengths = [1 + number // 10 if number < count - 4 else 1000 for number in range(count)]
    words = [
        word
        for text in PROBES
        for word in text.split()
        if not any(token in word for token in without)
    ]
    return [
        " ".join(words[(7 * number + place) % len(words)] for place in range(length))
        for number, length in enumerate(lengths)
    ]


def _prove_outputs(tensors: Tensors) -> None:
    """Compare what the whole model gives for texts, vectors or scores, with transformers' forward
    pass and the pooling that the model declares, in equal batches.

    Raises:
        UserError: as of `prove`.
    """
    base = tensors.base
    path = base.source.config_path
    head = base.config.head
    assert head is not None
    tokenizer = base.source.tokenizer(base.hf_config)
    theirs = module_of(base, torch.float32)
    asked = _note_what_is_asked(theirs.config)
    with torch.device("meta"):
        ours = _our_module(base)
    materialise(ours, torch.float32)
    load_into(ours.eval(), tensors.state)
    texts = probe_texts(without=tokenizer.all_special_tokens)
    difference = 0.0
    most = 1.0
    with torch.inference_mode(), one_line(path, "it cannot be computed"):
        for first in range(0, len(texts), _TEXTS_OF_BATCH):
            inputs = tokenizer(
                texts[first : first + _TEXTS_OF_BATCH],
                truncation=True,
                max_length=head.max_length,
                padding=True,
                padding_side="right",
                return_tensors="pt",
            )
            expected = _their_outputs(theirs, inputs, base.config, tensors.state)
            lengths = inputs["attention_mask"].sum(1).int()
            outputs = ours({"tokens": inputs["input_ids"], "lengths": lengths})
            difference = max(difference, (outputs - expected).abs().max().item())
            most = max(most, expected.abs().max().item())
    if not difference <= _VECTOR_TOLERANCE * most:
        raise UserError(
            f"{path}: has a setting by which transformers computes what {base.config.kind} here "
            f"does not: numbers of vectors differ by {difference:.2g}"
        )
    for key in sorted(base.notes.keys() & asked):
        raise not_computed(path, key, base.notes[key])


def _their_outputs(
    theirs: Any, inputs: Mapping[str, Tensor], config: BodyConfig, ours: Mapping[str, Tensor]
) -> Tensor:
    """Scores of transformers' model, or its last states pooled and projected as the head says."""
    head = config.head
    if not isinstance(head, SentenceHead):
        return theirs(**inputs).logits
    states_BSH = theirs(**inputs).last_hidden_state
    mask_BS1 = inputs["attention_mask"][..., None].float()
    vectors_BD = states_BSH[:, 0]
    if head.pooling == "mean":
        vectors_BD = (states_BSH * mask_BS1).sum(1) / mask_BS1.sum(1)
    for number, projection in enumerate(head.projections):
        place = f"body.heads.{config.num_layers}.projections.{number}"
        vectors_BD = vectors_BD @ ours[f"{place}.weight"].float().T
        if projection.bias:
            vectors_BD = vectors_BD + ours[f"{place}.bias"].float()
        if projection.activation != "identity":
            vectors_BD = getattr(torch.nn.functional, projection.activation)(vectors_BD)
    return torch.nn.functional.normalize(vectors_BD) if head.normalises else vectors_BD


def _note_what_is_asked(settings: Any) -> set[str]:
    """The attributes that a configuration does not have and is asked for from now on."""
    asked = set[str]()

    def missing(_: object, name: str) -> Any:
        asked.add(name)
        raise AttributeError(name)

    kind = type(settings)
    settings.__class__ = type(kind.__name__, (kind,), {"__getattr__": missing})
    return asked


def _first_of_each_kind(config: BodyConfig) -> tuple[list[int], BodyConfig]:
    """(layers that stand for all, one of each kind that there is, two where all are of one; a body
    of these)
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
