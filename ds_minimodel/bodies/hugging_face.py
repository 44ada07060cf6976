"""Bodies as Hugging Face's library writes them: what a kind declares of that, and what all of them need for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, ValidationError
from torch import Tensor

from ds_minimodel.bodies.body import INIT_STD
from ds_minimodel.bodies.config import BodyConfig
from ds_minimodel.common.errors import UserError, reason_of
from ds_minimodel.common.files import Stored
from ds_minimodel.common.sections import Few, Size

_ANSWERS = "ForQuestionAnswering"
Shapes = Mapping[str, tuple[int, ...]]
Blocks = Mapping[str, Sequence[int]]
_EQUAL: Blocks = {}
_SIZES = {  # of a body, as config.json spells them
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
}
_SPELT = _SIZES | {  # keys that a message may name
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "max_positions": "max_position_embeddings",
    "rotary_low": "low_freq_factor",
    "rotary_high": "high_freq_factor",
}


class ConfigFile(Stored):
    """Of config.json what decides the model: what every type has; what is not served is no value of it."""

    model_config = ConfigDict(validate_default=True)

    vocab_size: Size
    num_hidden_layers: Few
    hidden_size: Size
    num_attention_heads: Few
    intermediate_size: Size
    max_position_embeddings: Size


@dataclass(frozen=True)
class Architecture(ABC):
    """One of Hugging Face's model types that a kind of body serves.

    model_type: in config.json. classes: how the names of its model classes begin. tokenizer: the same of its own
    tokenizer class. endings: how the names of those of its classes end that are served. own: configuration of its kind
    here. config_file: its config.json. pad_id: of the padding token, where positions count from it. Our names are those
    of a LanguageModel's parameters; a language-model head is module `body.heads.DEPTH`, the head of a task lies beside
    `body`.
    """

    model_type: str
    classes: str
    tokenizer: str
    endings: tuple[str, ...] = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", _ANSWERS)
    own: type[BodyConfig] = field(kw_only=True)
    config_file: type[ConfigFile] = field(kw_only=True)

    @property
    def pad_id(self) -> int | None:
        return None

    @abstractmethod
    def config(self, file: Any, where: Path) -> tuple[BodyConfig, int]:
        """(configuration, number of ids) of the `config_file` that `where` holds; UserError where sizes disagree."""

    def checked_config(self, file: ConfigFile, where: Path, **values: Any) -> BodyConfig:
        """Of the file's sizes and these values; where they disagree, a UserError with the keys of the file `where`."""
        try:
            return self.own(**{ours: getattr(file, theirs) for ours, theirs in _SIZES.items()}, **values)
        except ValidationError as error:
            fault = error.errors()[0]
            reason = ": ".join([*map(str, fault["loc"]), reason_of(fault)])
            for ours, theirs in _SPELT.items():
                reason = reason.replace(ours, theirs)
            raise UserError(f"{where}: {reason}") from None

    def config_json(self, config: BodyConfig, vocab_size: int) -> dict[str, Any]:
        """The content of config.json for a body, but for the class of the model."""
        return {
            "model_type": self.model_type,
            "vocab_size": vocab_size,
            **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
            "initializer_range": INIT_STD,
            "tie_word_embeddings": config.tied,
            **self.own_keys(config),
        }

    @abstractmethod
    def own_keys(self, config: Any) -> dict[str, Any]:
        """Of config.json what not every model type has."""

    @abstractmethod
    def from_theirs(
        self, tensors: dict[str, Tensor], config: BodyConfig, shapes: Shapes, where: Path
    ) -> dict[str, Tensor]:
        """A language model's state dict under our names, in fp32, its head at the body's last layer.

        shapes: of our parameters. where: the file, for messages. UserError where a tensor is missing, of another shape
        or without a counterpart.
        """

    @abstractmethod
    def to_theirs(self, tensors: dict[str, Tensor], config: BodyConfig, head: Mapping[str, str]) -> dict[str, Tensor]:
        """Our state dict under their names. head: modules of the model's head -> those of Hugging Face's RoBERTa."""

    @abstractmethod
    def language_model_head(self, depth: int) -> dict[str, str]:
        """Modules of the head that reads after `depth` layers -> those of Hugging Face's RoBERTa."""


def converted(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, Sequence[str]],
    shapes: Shapes,
    where: Path,
    served: str,
    blocks: Blocks = _EQUAL,
) -> dict[str, Tensor]:
    """Tensors under our names; names: each of ours -> those of theirs that it is when these are concatenated.

    shapes: of the concatenated ones. served: in a message, whose language model the file must hold. blocks: as of
    part_sizes.
    """
    rest, ours = dict(tensors), {}
    for name, parts in names.items():
        rows, *others = shapes[name]
        chunks = []
        for part, size in zip(parts, part_sizes(name, parts, rows, blocks), strict=True):
            if part not in rest:
                raise UserError(f"{where}: no tensor {part}; it must hold a language model of {served}")
            chunks.append(as_fp32(rest.pop(part), part, (size, *others), where))
        ours[name] = torch.cat(chunks)
    if rest:
        raise UserError(
            f"{where}: {sorted(rest)[0]!r:.120} has no counterpart here; it must hold a language model of {served} "
            "without additions"
        )
    return ours


def part_sizes(name: str, parts: Sequence[str], rows: int, blocks: Blocks = _EQUAL) -> Sequence[int]:
    """Rows of the parts of which the parameter `name` of so many is concatenated.

    blocks: module -> rows of its parts, where they are not equal.
    """
    if len(parts) == 1:
        return [rows]
    return blocks.get(name.split(".")[-2]) or [rows // len(parts)] * len(parts)


def remove_copy(tensors: dict[str, Tensor], copy: str, original: str, where: Path) -> None:
    """Leave of two tied tensors the original, which may be under the copy's name alone; UserError where they differ."""
    tensor = tensors.pop(copy, None)
    if tensor is None:
        return
    kept = tensors.setdefault(original, tensor)
    if tensor.dtype != kept.dtype or tensor.shape != kept.shape or not torch.equal(tensor, kept):
        raise UserError(f"{where}: {copy} differs from {original}; output embeddings of their own are not supported")


def as_fp32(tensor: Tensor, name: str, shape: tuple[int, ...], where: Path) -> Tensor:
    """A foreign weight as fp32; UserError where it is of another shape, not finite, or not a number fp32 has."""
    if tensor.shape != shape:
        raise UserError(f"{where}: {name} has shape {tuple(tensor.shape)}, the configuration gives {shape}")
    if not tensor.is_floating_point():
        raise UserError(f"{where}: {name} is {tensor.dtype}, not of floating point")
    as_float = tensor.float()
    if not as_float.isfinite().all():
        raise UserError(f"{where}: {name} holds NaN or infinite numbers; the model that it was made of diverged")
    if not torch.equal(as_float.to(tensor.dtype), tensor):
        raise UserError(f"{where}: {name} is {tensor.dtype} and holds numbers that fp32 has not; convert it first")
    return as_float
