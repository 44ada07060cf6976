"""One body in memory and many languages, of which one is plugged in at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ds_minimodel.bodies.body import LanguagePack
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_artifact
from ds_minimodel.data.tokenizer import Tokenizer
from ds_minimodel.model.artifacts import BodyArtifact, PackManifest
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.gpu import check_gpus
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.serve.packs import open_pack


@dataclass(frozen=True)
class _Language:
    """A language that is plugged in: its module, its vocabulary, and what it replaces of the body."""

    module: LanguagePack
    tokenizer: Tokenizer
    body: dict[str, torch.Tensor]


class ManyLanguages:
    """A model that serves many languages: its weights are there once, each language adds its embeddings.

    device, precision: where and in what it computes. languages: by their names.
    """

    def __init__(
        self, model: Any, artifact: BodyArtifact, pack_folders: Mapping[str, str | Path], precision: str | None = None
    ):
        """model: a module with `body` and `pack`. pack_folders, precision: as of Predictor."""
        if not pack_folders:
            raise UserError("no language pack; give one at least, for example --pack de=FOLDER")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            configure_cpu()
        else:
            check_gpus(1)
        if precision not in (None, "auto", *DTYPES):
            raise UserError(f"--precision {precision}: there are {', '.join(DTYPES)} and auto")
        default = "fp32" if self.device.type == "cpu" else "auto"
        self.precision = resolve_precision(precision or default, self.device, "--precision")
        self.model: Any = model.eval().to(self.device, DTYPES[self.precision])
        self.languages = {language: self._load(folder, artifact) for language, folder in pack_folders.items()}
        replaced = {name for language in self.languages.values() for name in language.body}
        self._own = {name: tensor.clone() for name, tensor in self.model.state_dict().items() if name in replaced}

    def _load(self, folder: str | Path, artifact: BodyArtifact) -> _Language:
        pack, tokenizer = open_pack(folder, artifact)
        with torch.device("meta"):
            module = LanguagePack(len(pack.tensors["tokens"]), artifact.config)
        module.load_state_dict({name: pack.tensors[name] for name in artifact.config.language_tensors}, assign=True)
        dtype = DTYPES[self.precision]
        body = {
            name: tensor.to(self.device, dtype) for name, tensor in pack.tensors.items() if name.startswith("body.")
        }
        return _Language(module.to(self.device, dtype), tokenizer, body)

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """{language: its vocabulary}"""
        return {name: language.tokenizer for name, language in self.languages.items()}

    def plug(self, language: str) -> Tokenizer:
        """Put a language into `model`; its tokenizer."""
        plugged = self.languages[language]
        self.model.pack = plugged.module
        state = self.model.state_dict()
        for name, own in self._own.items():
            state[name].copy_(plugged.body.get(name, own))
        return plugged.tokenizer


def beside(model_folder: str | Path) -> dict[str, Path]:
    """{its language: folder} of the pack that lies beside a model, as `pack plug` and the steps leave it."""
    folder = Path(model_folder).resolve().parent / "pack"
    return {read_artifact(folder, PackManifest).language: folder} if folder.is_dir() else {}
