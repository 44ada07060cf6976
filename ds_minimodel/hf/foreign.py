"""Foreign models by their files: a configuration, tensors by their headers, a tokenizer; no code of theirs is run.

What is looked at first are headers: names, shapes and settings. Numbers are read when a tensor is asked for.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from safetensors import safe_open
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.files import NameInside, Stored, read_json, read_model
from ds_minimodel.hf.architecture import Architecture
from ds_minimodel.hf.card import license_of
from ds_minimodel.hf.vocabularies import GENERATION_FILE, VOCABULARIES, tokenizer_of
from ds_minimodel.models import BodyConfig

ADAPTER = "adapter_config.json"  # of PEFT's
SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"  # after either's name: which part holds which tensor
WEIGHTS = (SAFETENSORS, f"{SAFETENSORS}{INDEX}", PICKLE, f"{PICKLE}{INDEX}")  # the first that is there is read
ADVICE = "download the model again"


class Header(NamedTuple):
    """A tensor by what its file says of it. read: gives its numbers."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


class Source(ABC):
    """The files of a model. path: of the folder or file. config_path: of what holds its configuration."""

    name: str
    path: Path
    config_path: Path

    @abstractmethod
    def config(self) -> Any:
        """The content of its config.json."""

    @abstractmethod
    def headers(self, architecture: Architecture, config: BodyConfig) -> tuple[dict[str, Header], Path]:
        """({name: header} of its tensors as transformers' model calls them, the file that names them)."""

    @abstractmethod
    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        """Its tokenizer, as transformers has it. config: transformers' of the model."""

    def license(self) -> str | None:
        """The license that it names."""
        return None

    def generation(self) -> dict[str, Any] | None:
        """Its settings of generation, where it has some."""
        return None


class Folder(Source):
    """A folder as `from_pretrained` takes it."""

    def __init__(self, path: Path):
        self.name, self.path, self.config_path = path.name, path, path / "config.json"
        if (path / ADAPTER).exists():
            what = "an adapter beside a model" if self.config_path.exists() else "an adapter without its model"
            raise UserError(
                f"{path / ADAPTER}: {what}; merge it by peft (AutoPeftModelForCausalLM.from_pretrained(FOLDER)"
                ".merge_and_unload().save_pretrained(NEW)) and take that, with the tokenizer beside it"
            )

    def config(self) -> Any:
        return read_json(self.config_path)

    def headers(self, architecture: Architecture, config: BodyConfig) -> tuple[dict[str, Header], Path]:
        path = next((self.path / name for name in WEIGHTS if os.path.lexists(self.path / name)), None)
        if path is None:
            raise UserError(f"{self.path}: neither {SAFETENSORS} nor {PICKLE}, nor the index of one in parts")
        if not path.name.endswith(INDEX):
            return _headers_of(path), path
        parts = {*read_model(path, _Index, ADVICE).weight_map.values()}
        return {name: own for part in sorted(parts) for name, own in _headers_of(self.path / part).items()}, path

    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        if not any((self.path / name).is_file() for name in VOCABULARIES):
            raise UserError(f"{self.path}: no tokenizer; it must hold one of {', '.join(VOCABULARIES)}")
        return tokenizer_of(self.path, config=config)

    def license(self) -> str | None:
        return license_of(self.path)

    def generation(self) -> dict[str, Any] | None:
        return generation_settings(self.path / GENERATION_FILE)


def generation_settings(path: Path) -> dict[str, Any] | None:
    """The content of a generation_config.json that transformers takes; None where there is no such file."""
    if not path.exists():
        return None
    settings = read_model(path, _Generation, ADVICE).model_dump(exclude_unset=True)
    with one_line(path, "transformers does not take it"):
        GenerationConfig.from_dict(dict(settings))
        str(settings).encode()  # half a surrogate pair is no text
    return settings


class _Index(Stored):
    """The index of weights in parts: tensor -> file."""

    weight_map: Annotated[dict[str, Annotated[NameInside, Field(pattern=r"^[^/]+$")]], Field(min_length=1)]


class _Generation(Stored):
    """Of generation_config.json what is added to here."""

    suppress_tokens: list[int] | None = None


def _headers_of(path: Path) -> dict[str, Header]:
    """The tensors of a file. Pickles are read with torch's unpickler for weights, which runs no code; a view that
    repeats its numbers, of any size from a small file, is refused.
    """
    if not path.is_file():  # a named pipe would be waited for
        raise UserError(f"{path}: no such file")
    with one_line(path, "damaged, or not a file of weights"):
        if path.suffix == Path(SAFETENSORS).suffix:
            file = safe_open(path, "pt")
            return {
                name: Header(tuple(file.get_slice(name).get_shape()), partial(file.get_tensor, name))
                for name in file.keys()  # noqa: SIM118
            }
        tensors: Mapping[Any, Any] = dict(torch.load(path, map_location="cpu", weights_only=True))
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise UserError(f"{path}: {name!r:.80} is not a dense tensor")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(f"{path}: {name!r:.80} of shape {tuple(tensor.shape)} has fewer numbers than that")
    return {name: Header(tuple(tensor.shape), partial(tensor.view_as, tensor)) for name, tensor in tensors.items()}
