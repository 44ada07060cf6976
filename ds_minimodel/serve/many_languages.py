"""One body and many languages: their packs, and a model into which one of them is plugged at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_artifact
from ds_minimodel.models.artifacts import BodyArtifact, PackManifest
from ds_minimodel.models.body import LanguagePack
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.gpu import check_gpus
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.serve.packs import open_pack


class ManyLanguages:
    """The packs of a body by language, and where and in what a model computes with them.

    packs: {language: PackArtifact}. tokenizers: {language: Tokenizer}.
    """

    def __init__(
        self, artifact: BodyArtifact, pack_folders: Mapping[str, str | Path], precision: str | None = None
    ) -> None:
        """pack_folders, precision: as of Predictor."""
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
        self.dtype = DTYPES[self.precision]
        opened = {language: open_pack(folder, artifact) for language, folder in pack_folders.items()}
        self.packs = {language: pack for language, (pack, _) in opened.items()}
        self.tokenizers = {language: tokenizer for language, (_, tokenizer) in opened.items()}

    def language(self, name: object, where: str) -> str:
        """The language of that name, or the only one; UserError, beginning with `where`, where there is none."""
        languages = ", ".join(self.packs)
        if name is None and len(self.packs) > 1:
            raise UserError(f"{where}: no language is named; there are {languages}")
        if name is not None and (not isinstance(name, str) or name not in self.packs):
            shown = repr(name) if isinstance(name, str) else f"of type {type(name).__name__}"
            raise UserError(f"{where}: no pack for language {shown:.40}; there are {languages}")
        return str(name or next(iter(self.packs)))


class SharedModel:
    """A model whose weights are there once, for many languages: each adds its embeddings.

    module: into which the language is plugged of which `plug` was called last.
    """

    def __init__(self, module: Any, artifact: BodyArtifact, languages: ManyLanguages) -> None:
        """module: one with `body` and `pack`."""
        place: Any = {"device": languages.device, "dtype": languages.dtype}
        self.module = module.eval().to(**place)
        self._packs: dict[str, LanguagePack] = {}
        self._replaced: dict[str, dict[str, torch.Tensor]] = {}  # of the body, by each language
        for language, pack in languages.packs.items():
            with torch.device("meta"):
                own = LanguagePack(len(pack.tensors["tokens"]), artifact.config)
            own.load_state_dict({name: pack.tensors[name] for name in artifact.config.language_tensors}, assign=True)
            self._packs[language] = own.to(**place)
            self._replaced[language] = {
                name: tensor.to(**place) for name, tensor in pack.tensors.items() if name.startswith("body.")
            }
        names = {name for tensors in self._replaced.values() for name in tensors}
        self._own = {name: tensor.clone() for name, tensor in self.module.state_dict().items() if name in names}

    def plug(self, language: str) -> None:
        """Put a language into `module`."""
        self.module.pack = self._packs[language]
        state = self.module.state_dict()
        for name, own in self._own.items():
            state[name].copy_(self._replaced[language].get(name, own))


def beside(model_folder: str | Path) -> dict[str, Path]:
    """{its language: folder} of the pack that lies beside a model, as `pack plug` and the steps leave it."""
    folder = Path(model_folder).resolve().parent / "pack"
    return {read_artifact(folder, PackManifest).language: folder} if folder.is_dir() else {}
