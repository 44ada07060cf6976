"""Foreign models by their files: a configuration, tensors by their headers, a tokenizer.

What is looked at first are headers: names, shapes and settings. Numbers are read when a tensor is
asked for. No code of the model's is run.
"""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
from pydantic import Field
from tokenizers import normalizers
from torch import Tensor

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.files import MANIFEST, NameInside, Stored, read_json, read_model
from ds_minimodel.hf.lazy import Lazy, LazyTensors, open_tensors
from ds_minimodel.hf.names.architecture import PROJECTIONS, Architecture
from ds_minimodel.hf.sentence import lowercases, projection_folders, settings_files
from ds_minimodel.hf.tokenizers import GENERATION_FILE, protobuf
from ds_minimodel.models import BodyConfig
from ds_minimodel.tokenizers.tokenizer import JSON_FILE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# PEFT's name of a file.
ADAPTER_CONFIG = "adapter_config.json"
CONFIG = "config.json"
CARD = "README.md"
WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
# This stands after the name of either, in the name of a file that says which part holds what.
INDEX = ".index.json"
# The first of these that is there is read.
WEIGHT_FILES = (WEIGHTS, f"{WEIGHTS}{INDEX}", PICKLE, f"{PICKLE}{INDEX}")
VOCABULARIES = (JSON_FILE, "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "tokenizer.model")
# All that transformers may read for the families that are served.
TOKENIZER_FILES = (
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
ADVICE = "download the model again"
# A name on the Hub. A folder that transformers' Trainer made, such as out/checkpoint-500, is none.
_HUB_NAME = re.compile(
    r"(?!.*checkpoint-[0-9]+$)[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII
)
# The form of a license's name.
LICENSE = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,60}$"


class Source(ABC):
    """The files of a model.

    Attributes:
        name: of the model, for people.
        path: of its folder or file.
        config_path: of the file that holds its configuration.
    """

    name: str
    path: Path
    config_path: Path

    @abstractmethod
    def config(self) -> Any:
        """Return the content of its config.json."""

    @abstractmethod
    def headers(
        self, architecture: Architecture, config: BodyConfig
    ) -> tuple[dict[str, Lazy], Path]:
        """Return the tensors by their headers.

        Args:
            architecture: the model's names.
            config: of its body.

        Returns:
            ({name: tensor} as its file or transformers' model calls them, the file that says so).
        """

    @abstractmethod
    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        """Return its tokenizer as transformers has it; `config` is transformers' of the model."""

    @abstractmethod
    def weight_files(self) -> list[Path]:
        """Return the files of its weights, and of the configuration that says what they mean."""

    def other_files(self) -> list[Path]:
        """Return what else it is made of."""
        return []

    def name_of(self, path: Path) -> str:
        """Return the path of a file of it from its folder."""
        root = self.path if self.path.is_dir() else self.path.parent
        return str(path.relative_to(root))

    def license(self) -> str | None:
        """Return the license that it names."""
        return None

    def hub_name(self) -> str | None:
        """Return the name on the Hub that its metadata give it."""
        return None

    def generation(self) -> dict[str, Any] | None:
        """Return its settings of generation as transformers takes them, where it has some."""
        return None


class Folder(Source):
    """A folder as `from_pretrained` takes it.

    Args:
        path: of the folder.

    Raises:
        UserError: it holds an adapter, or an adaptation of this package.
    """

    def __init__(self, path: Path):
        self.name = path.name
        self.path = path
        self.config_path = path / CONFIG
        if (path / ADAPTER_CONFIG).exists():
            if (path / MANIFEST).is_file():
                raise UserError(
                    f"{path}: an adaptation, not a model; export-hf writes it and its model as one"
                )
            raise UserError(
                f"{path / ADAPTER_CONFIG}: an adapter, not a model; merge it by peft "
                "(AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()"
                ".save_pretrained(NEW)) and take that, with the tokenizer beside it"
            )

    def config(self) -> Any:
        """Return the content of its config.json."""
        return read_json(self.config_path)

    def headers(
        self, architecture: Architecture, config: BodyConfig
    ) -> tuple[dict[str, Lazy], Path]:
        """Return ({name: tensor}, the file of the weights or of their index).

        Raises:
            UserError: a file is missing or damaged, or two hold different tensors of one name.
        """
        where, *parts = self._weights()
        headers = _projection_headers(self.path)
        if not parts:
            return headers | headers_of(where), where
        index = read_model(where, _Index, ADVICE).weight_map
        for part in parts:
            for name, lazy in headers_of(part).items():
                indexed = self.path / index.get(name, part.name)
                if indexed == part:
                    headers[name] = lazy
                    continue
                # Transformers takes the last of several, other readers the index's.
                other = headers_of(indexed).get(name)
                if other is None or not lazy.equals(other):
                    raise UserError(
                        f"{part}: {name!r:.120} lies here, and {where.name} names another one in "
                        f"{indexed.name}; delete what is older, or {ADVICE}"
                    )
        return headers, where

    def _weights(self) -> list[Path]:
        """Return the file of the weights, or their index and the files that it names."""
        paths = [self.path / name for name in WEIGHT_FILES]
        path = next((path for path in paths if os.path.lexists(path)), None)
        if path is None:
            raise UserError(
                f"{self.path}: neither {WEIGHTS} nor {PICKLE}, nor the index of one in parts"
            )
        if path.name.endswith(INDEX):
            parts = {*read_model(path, _Index, ADVICE).weight_map.values()}
            return [path, *(self.path / part for part in sorted(parts))]
        index = path.with_name(f"{path.name}{INDEX}")
        if index.exists():
            raise UserError(f"{path}: {index.name} beside it names others; delete what is older")
        return [path]

    def weight_files(self) -> list[Path]:
        """Return config.json and the files of all weights."""
        return [self.config_path, *self._weights(), *projection_files(self.path)]

    def other_files(self) -> list[Path]:
        """Return the files of the tokenizer, of generation and of a sentence's vector."""
        files = [self.path / name for name in (*TOKENIZER_FILES, GENERATION_FILE)]
        return [path for path in (*files, *settings_files(self.path)) if path.is_file()]

    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        """Return its tokenizer.

        Args:
            config: transformers' of the model.

        Raises:
            UserError: it has none, one of more ids than the model, or files that lie elsewhere.
        """
        if not any((self.path / name).is_file() for name in VOCABULARIES):
            raise UserError(
                f"{self.path}: no tokenizer; it must hold one of {', '.join(VOCABULARIES)}"
            )
        for name in TOKENIZER_FILES:
            path = self.path / name
            self._check_inside(path)
            count = _id_count(path) if path.is_file() else 0
            if count > config.vocab_size:
                raise UserError(
                    f"{path}: {count:,} ids, where {CONFIG} has vocab_size {config.vocab_size}"
                )
        tokenizer = tokenizer_of(self.path, config=config)
        return lowercased(tokenizer) if lowercases(self.path) else tokenizer

    def _check_inside(self, path: Path) -> None:
        """Raise UserError for a link that leads out of the folder.

        It would give away what nobody means to.
        """
        folder = self.path.resolve()
        roots = [folder]
        if folder.parent.name == "snapshots":
            # The Hub's cache has its files beside its folders.
            roots.append(folder.parents[1] / "blobs")
        if not any(path.resolve().is_relative_to(root) for root in roots):
            raise UserError(
                f"{path}: a link out of the folder; put the file itself there, if it is meant"
            )

    def license(self) -> str | None:
        """Return the license that its card names."""
        from huggingface_hub import metadata_load

        path = self.path / CARD
        # A stranger's YAML brings forth errors of any kind.
        with contextlib.suppress(Exception):
            card = metadata_load(path) if path.is_file() else None
            return license_name((card or {}).get("license"))
        return None

    def generation(self) -> dict[str, Any] | None:
        """Return what of its settings of generation is used; UserError where it is damaged."""
        from transformers import GenerationConfig

        path = self.path / GENERATION_FILE
        if not path.exists():
            return None
        settings = read_model(path, _Generation, ADVICE).model_dump(exclude_unset=True)
        with one_line(path, "transformers does not take it"):
            GenerationConfig.from_dict(dict(settings))
        return settings


class _Index(Stored):
    """The index of weights in parts: tensor -> file."""

    weight_map: Annotated[
        dict[str, Annotated[NameInside, Field(pattern=r"^[^/]+$")]], Field(min_length=1)
    ]


class _Generation(Stored):
    """The settings of a generation_config.json that are used here."""

    suppress_tokens: list[int] | None = None


def _id_count(path: Path) -> int:
    """Return how many ids a file of a tokenizer needs, by its largest.

    0 where it is damaged, or of another kind. A tokenizer of many ids, or with one far beyond the
    others, would take minutes to make.
    """
    if path.name not in VOCABULARIES:
        return 0
    if path.suffix == ".txt":
        return path.read_bytes().count(b"\n")
    if path.suffix == ".model":
        # Versions of protobuf call a damaged file by several exceptions.
        with contextlib.suppress(Exception):
            return len(protobuf.ModelProto.FromString(path.read_bytes()).pieces)
        return 0
    content = read_json(path)
    if not isinstance(content, dict):
        return 0
    vocabulary: Any = content
    added: Any = None
    if path.name == JSON_FILE:
        model = content.get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        added = content.get("added_tokens")
    ids: list[Any] = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    if isinstance(added, list):
        ids += [token.get("id") for token in added if isinstance(token, dict)]
    count = len(vocabulary) if isinstance(vocabulary, dict | list) else 0
    largest_id = max((id for id in ids if isinstance(id, int)), default=-1)
    return max(count, largest_id + 1)


def tokenizer_of(folder: Path, **settings: Any) -> PreTrainedTokenizerBase:
    """Return transformers' tokenizer of a model's folder or a pack.

    Args:
        folder: where it lies.
        settings: further keywords of `from_pretrained`.

    Raises:
        UserError: it cannot be read.
    """
    from transformers import AutoTokenizer

    with one_line(folder, "transformers cannot read its tokenizer"):
        return AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **settings
        )


def lowercased(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Make a tokenizer lowercase a text first, and return it."""
    backend = cast(Any, tokenizer).backend_tokenizer
    steps = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    return tokenizer


def license_name(value: object) -> str | None:
    """Return `value` where it has the form of a license's name, such as apache-2.0."""
    return value if isinstance(value, str) and re.fullmatch(LICENSE, value) else None


def hub_name(value: object) -> str | None:
    """Return `value` where it has the form of a model's name on the Hub.

    Such are roberta-base and FacebookAI/roberta-base.
    """
    return value if isinstance(value, str) and _HUB_NAME.fullmatch(value) else None


def headers_of(path: Path) -> dict[str, Lazy]:
    """Return {name: tensor} of a file of weights.

    Pickles are read with torch's unpickler for weights, which runs no code.

    Raises:
        UserError: the file is missing or damaged, or holds what is no tensor in memory.
    """
    # A named pipe would be waited for.
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix == Path(WEIGHTS).suffix:
        return open_tensors(path, ADVICE).entries
    with one_line(path, "damaged, or not a file of weights"):
        stored: dict[Any, Any] = dict(
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        )
    headers = {}
    for name, tensor in stored.items():
        is_tensor = isinstance(name, str) and isinstance(tensor, Tensor) and not tensor.is_meta
        if not is_tensor or tensor.layout != torch.strided:
            raise UserError(f"{path}: {name!r:.80} is not a dense tensor")
        # A view that repeats its numbers could be of any size, out of a small file.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(
                f"{path}: {name!r:.80} of shape {tuple(tensor.shape)} has fewer numbers than that"
            )
        headers[name] = Lazy(tuple(tensor.shape), tensor.dtype, tensor.clone)
    return headers


def projection_files(folder: Path) -> list[Path]:
    """Return the files of the weights of a model's Dense modules, in order."""
    paths = []
    for module in projection_folders(folder):
        path = module / WEIGHTS
        paths.append(path if path.is_file() else module / PICKLE)
    return paths


def _projection_headers(folder: Path) -> dict[str, Lazy]:
    """Return the tensors of a model's Dense modules, by the names that tables of names have."""
    headers: dict[str, Lazy] = {}
    for index, path in enumerate(projection_files(folder)):
        for name, lazy in headers_of(path).items():
            headers[f"{PROJECTIONS}.{index}.{name}"] = lazy
    return headers


def by_hf_names(names: Iterable[str], headers: Mapping[str, Lazy], prefix: str) -> dict[str, Lazy]:
    """Return tensors by their names in transformers' model; those that are missing are left out.

    Args:
        names: of the tensors in transformers' model.
        headers: {name: tensor} of the files, also as older versions have written them.
        prefix: of the model under a head, which older versions leave out.
    """
    stored_names = {name: stored_name(name, headers, prefix) for name in names}
    return {name: headers[stored] for name, stored in stored_names.items() if stored is not None}


def stored_name(name: str, headers: Mapping[str, Lazy], prefix: str) -> str | None:
    """Return what a file calls a tensor; None where it has none.

    Args:
        name: of the tensor in transformers' model.
        headers: as of by_hf_names.
        prefix: as of by_hf_names.
    """
    # Older versions call a norm's weight and bias gamma and beta.
    older = re.sub(r"\.bias$", ".beta", re.sub(r"\.weight$", ".gamma", name))
    known = (name, older, name.removeprefix(prefix), older.removeprefix(prefix))
    return next((found for found in known if found in headers), None)


def read_parameters(
    architecture: Architecture,
    hf_state: LazyTensors,
    config: BodyConfig,
    names: list[str],
    where: Any,
    advice: str,
) -> dict[str, Lazy]:
    """Return parameters of a LanguageModel from a foreign state dict.

    Args:
        architecture: names of the foreign model.
        hf_state: its tensors by transformers' names.
        config: of its body.
        names: of the parameters.
        where: its file, for messages.
        advice: what a user is told to do where one is missing.

    Raises:
        UserError: a tensor is missing.
    """
    try:
        return architecture.from_hf(hf_state.entries, config, names)
    except KeyError as error:
        raise UserError(f"{where}: no tensor {error.args[0]}; {advice}") from None
