"""Foreign models by their files: a configuration, tensors by their headers, a tokenizer; no code of
theirs is run.

What is looked at first are headers: names, shapes and settings. Numbers are read when a tensor is
asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

ADAPTER_CONFIG = "adapter_config.json"  # of PEFT's
CONFIG = "config.json"
CARD = "README.md"
WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX = ".index.json"  # after either's name: which part holds which tensor
WEIGHT_FILES = (
    WEIGHTS,
    f"{WEIGHTS}{INDEX}",
    PICKLE,
    f"{PICKLE}{INDEX}",
)  # the first that is there is read
VOCABULARIES = JSON_FILE, "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "tokenizer.model"
TOKENIZER_FILES = (  # all that transformers may read for the families that are served
    *VOCABULARIES,
    *(
        "merges.txt",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
    ),
)
ADVICE = "download the model again"
# A folder that transformers' Trainer made, such as out/checkpoint-500, is none.
_HUB_NAME = re.compile(
    r"(?!.*checkpoint-[0-9]+$)[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII
)
LICENSE = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,60}$"  # the form of its name


class Source(ABC):
    """The files of a model. path: of the folder or file. config_path: of what holds its
    configuration.
    """

    name: str
    path: Path
    config_path: Path

    @abstractmethod
    def config(self) -> Any:
        """The content of its config.json."""

    @abstractmethod
    def headers(
        self, architecture: Architecture, config: BodyConfig
    ) -> tuple[dict[str, Lazy], Path]:
        """({name: tensor} as its file, or transformers' model, calls them, the file that names
        them).
        """

    @abstractmethod
    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        """Its tokenizer, as transformers has it. config: transformers' of the model."""

    @abstractmethod
    def weight_files(self) -> list[Path]:
        """The files that its weights are read from, and the configuration that says what they
        mean.
        """

    def other_files(self) -> list[Path]:
        """What else it is made of."""
        return []

    def name_of(self, path: Path) -> str:
        """What a file of it is called: its path from the folder."""
        root = self.path if self.path.is_dir() else self.path.parent
        return str(path.relative_to(root))

    def license(self) -> str | None:
        """The license that it names."""
        return None

    def hub_name(self) -> str | None:
        """The name on the Hub that its metadata give it."""
        return None

    def generation(self) -> dict[str, Any] | None:
        """Its settings of generation, where it has some, as transformers takes them."""
        return None


class Folder(Source):
    """A folder as `from_pretrained` takes it."""

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
                "(AutoPeftModelForCausalLM"
                ".from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW)) and take that, "
                "with the tokenizer "
                "beside it"
            )

    def config(self) -> Any:
        return read_json(self.config_path)

    def headers(
        self, architecture: Architecture, config: BodyConfig
    ) -> tuple[dict[str, Lazy], Path]:
        where, *parts = self._weights()
        headers = _projection_headers(self.path)
        if not parts:
            return {**headers, **headers_of(where)}, where
        index = read_model(where, _Index, ADVICE).weight_map
        for part in parts:
            for name, tensor in headers_of(part).items():
                named = self.path / index.get(name, part.name)
                other = tensor if named == part else headers_of(named).get(name)
                if other is tensor:
                    headers[name] = tensor
                elif other is None or not tensor.equals(other):
                    # transformers takes the last of several, other readers the index's.
                    raise UserError(
                        f"{part}: {name!r:.120} lies here, and {where.name} names another one in "
                        f"{named.name}; delete what is older, or {ADVICE}"
                    )
        return headers, where

    def _weights(self) -> list[Path]:
        """The file of the weights, or their index and the files that it names."""
        path = next(
            (self.path / name for name in WEIGHT_FILES if os.path.lexists(self.path / name)), None
        )
        if path is None:
            raise UserError(
                f"{self.path}: neither {WEIGHTS} nor {PICKLE}, nor the index of one in parts"
            )
        if not path.name.endswith(INDEX):
            index = path.with_name(f"{path.name}{INDEX}")
            if index.exists():
                raise UserError(
                    f"{path}: {index.name} beside it names others; delete what is older"
                )
            return [path]
        return [
            path,
            *(
                self.path / part
                for part in sorted({*read_model(path, _Index, ADVICE).weight_map.values()})
            ),
        ]

    def weight_files(self) -> list[Path]:
        return [self.config_path, *self._weights(), *projection_files(self.path)]

    def other_files(self) -> list[Path]:
        named = [self.path / name for name in (*TOKENIZER_FILES, GENERATION_FILE)]
        return [path for path in (*named, *settings_files(self.path)) if path.is_file()]

    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        if not any((self.path / name).is_file() for name in VOCABULARIES):
            raise UserError(
                f"{self.path}: no tokenizer; it must hold one of {', '.join(VOCABULARIES)}"
            )
        most = config.vocab_size
        for path in (self.path / name for name in TOKENIZER_FILES):
            self._check_place(path)
            if path.is_file() and (ids := _ids_of(path)) > most:
                raise UserError(f"{path}: {ids:,} ids, where {CONFIG} has vocab_size {most}")
        tokenizer = tokenizer_of(self.path, config=config)
        return lowercased(tokenizer) if lowercases(self.path) else tokenizer

    def _check_place(self, path: Path) -> None:
        """UserError for a link that leads out of the folder, to what nobody means to give away; the
        Hub's cache has its files beside its folders.
        """
        folder = self.path.resolve()
        roots = [folder]
        if folder.parent.name == "snapshots":
            roots.append(folder.parents[1] / "blobs")
        if not any(path.resolve().is_relative_to(root) for root in roots):
            raise UserError(
                f"{path}: a link out of the folder; put the file itself there, if it is meant"
            )

    def license(self) -> str | None:
        from huggingface_hub import metadata_load

        try:
            path = self.path / CARD
            card = metadata_load(path) if path.is_file() else None
        except Exception:  # of any kind that YAML of a stranger's brings forth
            return None
        return license_name((card or {}).get("license"))

    def generation(self) -> dict[str, Any] | None:
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
    """Of generation_config.json what is used here."""

    suppress_tokens: list[int] | None = None


def _ids_of(path: Path) -> int:
    """How many ids a file of a tokenizer needs, by its largest; 0 where it is damaged, or of
    another kind. Of many, or of a far one, a tokenizer takes minutes to make.
    """
    if path.suffix == ".txt":
        return path.read_bytes().count(b"\n") if path.name in VOCABULARIES else 0
    if path.suffix == ".model":
        with contextlib.suppress(Exception):  # as protobuf's versions call a damaged file
            return len(protobuf.ModelProto.FromString(path.read_bytes()).pieces)
    if path.name not in VOCABULARIES or path.suffix != ".json":
        return 0
    content = read_json(path)
    content = content if isinstance(content, dict) else {}
    vocabulary: Any = content
    if path.name == JSON_FILE:
        model = content.get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    if path.name == JSON_FILE:
        added = content.get("added_tokens")
        for token in added if isinstance(added, list) else ():
            ids.append(token.get("id") if isinstance(token, dict) else None)
    count = len(vocabulary) if isinstance(vocabulary, dict | list) else 0
    return max(count, *(1 + id for id in ids if isinstance(id, int)), 0)


def tokenizer_of(folder: Path, **settings: Any) -> PreTrainedTokenizerBase:
    """transformers' of a folder of its own or a pack; UserError where it cannot be read."""
    from transformers import AutoTokenizer

    with one_line(folder, "transformers cannot read its tokenizer"):
        return AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **settings
        )


def lowercased(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer that lowercases a text first, where it does not anyway."""
    backend: Any = tokenizer
    backend = backend.backend_tokenizer
    steps = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    return tokenizer


def license_name(value: object) -> str | None:
    """`value` where it has the form of a license's name, such as apache-2.0."""
    return value if isinstance(value, str) and re.fullmatch(LICENSE, value) else None


def hub_name(value: object) -> str | None:
    """`value` where it has the form of a model's name on the Hub, such as roberta-base or
    FacebookAI/roberta-base.
    """
    return value if isinstance(value, str) and _HUB_NAME.fullmatch(value) else None


def headers_of(path: Path) -> Mapping[str, Lazy]:
    """The tensors of a file. Pickles are read with torch's unpickler for weights, which runs no
    code; a view that repeats its numbers, of any size from a small file, is refused.
    """
    if not path.is_file():  # a named pipe would be waited for
        raise UserError(f"{path}: no such file")
    if path.suffix == Path(WEIGHTS).suffix:
        return open_tensors(path, ADVICE).entries
    with one_line(path, "damaged, or not a file of weights"):
        tensors: Mapping[Any, Any] = dict(
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        )
    for name, tensor in tensors.items():
        if (
            not isinstance(name, str)
            or not isinstance(tensor, Tensor)
            or tensor.is_meta
            or tensor.layout != torch.strided
        ):
            raise UserError(f"{path}: {name!r:.80} is not a dense tensor")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(
                f"{path}: {name!r:.80} of shape {tuple(tensor.shape)} has fewer numbers than that"
            )
    return {
        name: Lazy(tuple(tensor.shape), tensor.dtype, tensor.clone)
        for name, tensor in tensors.items()
    }


def projection_files(folder: Path) -> list[Path]:
    """The files of the weights of a model's Dense modules, in order."""
    found = []
    for place in projection_folders(folder):
        safe = place / WEIGHTS
        found.append(safe if safe.is_file() else place / PICKLE)
    return found


def _projection_headers(folder: Path) -> dict[str, Lazy]:
    """The tensors of a model's Dense modules, by the names that tables of names have."""
    tensors: dict[str, Lazy] = {}
    for number, path in enumerate(projection_files(folder)):
        for name, lazy in headers_of(path).items():
            tensors[f"{PROJECTIONS}.{number}.{name}"] = lazy
    return tensors


def by_hf_names(names: Iterable[str], headers: Mapping[str, Lazy], prefix: str) -> dict[str, Lazy]:
    """Those of the tensors that have the `names` of transformers' model, also as older versions
    have written them: without the `prefix` of the model under a head, and norms' as gamma and
    beta.
    """
    there = {name: stored_name(name, headers, prefix) for name in names}
    return {name: headers[found] for name, found in there.items() if found is not None}


def stored_name(name: str, headers: Mapping[str, Lazy], prefix: str) -> str | None:
    """Return what a file calls a tensor; None where it has none.

    Args:
        name: of the tensor in transformers' model.
        headers: as of by_hf_names.
        prefix: as of by_hf_names.
    """
    older = re.sub(r"\.bias$", ".beta", re.sub(r"\.weight$", ".gamma", name))
    known = (name, older, name.removeprefix(prefix), older.removeprefix(prefix))
    return next((found for found in known if found in headers), None)


def read_parameters(
    architecture: Architecture,
    theirs: LazyTensors,
    config: BodyConfig,
    names: list[str],
    where: Any,
    advice: str,
) -> dict[str, Lazy]:
    """The parameters `names` of a LanguageModel from a foreign state dict; UserError with `advice`
    where one is not there.
    """
    try:
        return architecture.from_hf(theirs.entries, config, names)
    except KeyError as error:
        raise UserError(f"{where}: no tensor {error.args[0]}; {advice}") from None
