"""Configurations of foreign models: what transformers is given of somebody's config.json.

Each key of that file is one that the family's declaration reads, or says nothing of what is
computed, or is refused. Nothing but the first reaches transformers, so that no file names code, an
attention or other weights to it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ds_minimodel.common.errors import UserError, one_line, reason_of
from ds_minimodel.common.extras import import_extra
from ds_minimodel.hf.names import ARCHITECTURES
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.sentence import has_labels, read_head
from ds_minimodel.hf.source import Source, hub_name
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.heads import SentenceHead
from ds_minimodel.models.objectives import OBJECTIVES

# How large sizes may be by which something is made before it is compared with the tensors.
MAX_SIZES = {"num_hidden_layers": 10_000, "vocab_size": 1 << 20}
_UNSERVED = {
    "quantization_config": "quantised weights are not taken; take the model they are of",
    "transformers_weights": "names other weights than the folder's; take the key out",
}
# Keys of transformers' own that say nothing of what a language model computes: of the file and its
# writer, of training, of other heads, of output and speed.
_NOTES = re.compile(
    r"_.*|architectures|auto_map|(torch_)?dtype|transformers_version"
    r"|.*dropout|initializer_.*|gradient_checkpointing|pretraining_tp|sparse_pred.*"
    r"|classifier_.*|num_labels|id2label|label2id|problem_type"
    r"|use_cache|output_.*|return_dict|chunk_size_feed_forward|\w+_implementation|\w+_flash_attn"
)
# Keys of a classifier's head.
_OF_LABELS = {
    "id2label",
    "label2id",
    "problem_type",
    "classifier_pooling",
    "classifier_bias",
    "classifier_activation",
}


@dataclass(frozen=True)
class Foreign:
    """A foreign model by its configuration.

    Attributes:
        source: its files.
        architecture: its names.
        hf_config: its configuration in transformers.
        config: that of its body here.
        notes: what its config.json says besides, by keys that transformers' configuration lacks.
        name: on the Hub.
        revision: commit there.
    """

    source: Source
    architecture: Architecture
    hf_config: Any
    config: BodyConfig
    notes: Mapping[str, Any]
    name: str | None
    revision: str | None = None

    @property
    def objective(self) -> str:
        """What such a model is trained with."""
        return self.config.trained_with

    @property
    def hf_class(self) -> Any:
        """Its class in transformers."""
        decided_by = self.config.head or OBJECTIVES[self.objective]
        return getattr(library(), self.architecture.classes + decided_by.hugging_face_class)

    @property
    def is_bare(self) -> bool:
        """Whether it is a body alone for transformers, where no prefix is before its names."""
        return isinstance(self.config.head, SentenceHead)

    def make_hf_module(self) -> Any:
        """Return a fresh module of transformers, without a pooler, which nothing here reads."""
        hf_class = self.hf_class
        if self.is_bare and "add_pooling_layer" in inspect.signature(hf_class).parameters:
            return hf_class(self.hf_config, add_pooling_layer=False)
        return hf_class(self.hf_config)


def library() -> Any:
    """Import transformers, which takes seconds; UserError where it is not installed."""
    return import_extra("transformers", "hf")


def read_configuration(
    source: Source,
    name: str | None = None,
    revision: str | None = None,
    pooling: str | None = None,
) -> Foreign:
    """Read what a model's config.json says.

    Args:
        source: the model's files.
        name: on the Hub, where the model was fetched from there.
        revision: commit there.
        pooling: "mean" or "cls", of an encoder that names none and is to give vectors.

    Raises:
        UserError: no kind of body here computes what the file says.
    """
    path = source.config_path
    values = source.config()
    served = {
        architecture.model_type: architecture
        for architectures in ARCHITECTURES.values()
        for architecture in architectures
    }
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str) or model_type not in served:
        *first, last = served
        raise UserError(
            f"{path}: model_type {model_type!s:.40}; there are {', '.join(first)} and {last}"
        )
    for key, reason in _UNSERVED.items():
        if values.get(key) is not None:
            raise UserError(f"{path}: {key}: {reason}")
    for key, largest in MAX_SIZES.items():
        size = values.get(key, 0)
        if not isinstance(size, int) or not 0 <= size <= largest:
            raise UserError(f"{path}: {key}: {size!s:.40} is not a number up to {largest:,}")
    architecture = served[model_type]
    with one_line(path, "transformers does not take it"):
        hf_config, notes = _read_keys(path, architecture, values)
    try:
        config = architecture.config(hf_config)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ": ".join(map(str, fault["loc"]))
        raise UserError(f"{path}: {key}: {reason_of(fault)}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}: {error}") from None
    classes = values.get("architectures")
    head = read_head(source.path, hf_config, classes, config, pooling)
    config = config.model_copy(update={"head": head})
    # A finetuned model's _name_or_path is what it was finetuned from.
    if head is None and not name:
        name = hub_name(values.get("_name_or_path"))
    return Foreign(
        source=source,
        architecture=architecture,
        hf_config=hf_config,
        config=config,
        notes=notes,
        name=name,
        revision=revision,
    )


def _read_keys(
    path: Path, architecture: Architecture, values: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return (transformers' configuration of the keys that the family reads, its other keys).

    Raises:
        UserError: a setting would change that configuration.
    """
    make = library().CONFIG_MAPPING[architecture.model_type].from_dict
    of_labels = _OF_LABELS if has_labels(values.get("architectures")) else set()
    read = {
        key: value for key, value in values.items() if architecture.reads(key) or key in of_labels
    }
    hf_config = make(dict(read))
    notes = {}
    for key, value in values.items():
        if key in read or value is None or key == "model_type" or _NOTES.fullmatch(key):
            continue
        if not hasattr(hf_config, key):
            notes[key] = value
        elif getattr(hf_config, key) != value:
            raise not_computed(path, key, value)
    # A key that becomes no attribute may still decide another, such as a share of what is rotated.
    without = hf_config.to_dict()
    for key, value in make({**read, **notes}).to_dict().items():
        if key not in notes and without.get(key) != value:
            raise not_computed(path, key, value)
    return hf_config, notes


def not_computed(path: Path, key: str, value: Any) -> UserError:
    """Return the refusal of a setting in the file `path`."""
    return UserError(
        f"{path}: {key} {value!r:.80} is a setting that is not computed here; if it is only a "
        "note, take it out"
    )
