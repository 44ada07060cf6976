"""Writing of an imported model: a body and the pack of its language."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_folder, write_manifest
from ds_minimodel.data.tokenizer import trained_layout
from ds_minimodel.interop.vocabularies import Vocabulary
from ds_minimodel.model.artifacts import PACK_WEIGHTS, BodyArtifact, save_body, space_of
from ds_minimodel.model.transformer import BodyConfig


def refuse_existing(out: str | Path) -> None:
    """Raise UserError where there is something at `out`: nothing is overwritten."""
    if Path(out).exists():
        raise UserError(f"{out}: exists; give another folder")


def save_imported(
    out: str | Path,
    config: BodyConfig,
    tensors: dict[str, Tensor],
    vocabulary: Vocabulary,
    language: str,
    source: str,
    **origin: str | None,
) -> None:
    """Write out/body and out/pack, both or neither.

    tensors: fp32 under the names of MaskedLanguageModel, rows by the foreign ids. source: name of what was
    imported. origin: its license and its name on the Hub (base_model), None where they are not known.
    """
    body = {name.removeprefix("body."): tensor for name, tensor in tensors.items() if name.startswith("body.")}
    pack = {name: tensors[f"pack.{name}"][vocabulary.order] for name in ("tokens", "bias")}
    space = space_of(body, pack)
    known = {key: value for key, value in origin.items() if value is not None}
    facts = {"imported_from": source, "steps": 0, "eflops": 0.0} | known
    with atomic_folder(out) as folder:
        save_body(folder / "body", BodyArtifact(config, body, space), "body", **facts)
        (folder / "pack").mkdir()
        save_file(pack, folder / "pack" / PACK_WEIGHTS)
        (folder / "pack" / vocabulary.file_name).write_bytes(vocabulary.data)
        write_manifest(
            folder / "pack",
            kind="language-pack",
            language=language,
            space=space,
            rows=len(vocabulary.order),
            **trained_layout(len(vocabulary.order)).facts(),
            **facts,
        )
