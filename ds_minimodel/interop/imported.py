"""Writing of an imported model: a body and the pack of its language."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_folder, write_manifest
from ds_minimodel.data.tokenizer import JSON_FILE
from ds_minimodel.interop.vocabularies import Kept
from ds_minimodel.model.artifacts import PACK_WEIGHTS, BodyArtifact, save_body, space_of


def refuse_existing(out: str | Path) -> None:
    """Raise UserError where there is something at `out`: nothing is overwritten."""
    if Path(out).exists():
        raise UserError(f"{out}: exists; give another folder")


def save_imported(
    out: str | Path,
    body: BodyArtifact,
    pack: dict[str, Tensor],
    tokenizer: Kept,
    language: str,
    source: str,
    **origin: str | None,
) -> None:
    """Write out/body and out/pack, both or neither.

    body: of no space yet. pack: its tensors. source: name of what was imported. origin: its license, its name on
    the Hub (base_model) and the commit that was fetched (revision), None where they are not known.
    """
    space = space_of(body.tensors, pack)
    known = {key: value for key, value in origin.items() if value is not None}
    facts = {"imported_from": source, "steps": 0, "eflops": 0.0} | known
    with atomic_folder(out) as folder:
        save_body(folder / "body", replace(body, space=space), "body", **facts)
        (folder / "pack").mkdir()
        save_file(pack, folder / "pack" / PACK_WEIGHTS)
        (folder / "pack" / JSON_FILE).write_bytes(tokenizer.data)
        write_manifest(
            folder / "pack",
            kind="language-pack",
            language=language,
            space=space,
            rows=len(pack["tokens"]),
            **tokenizer.vocabulary.facts(),
            **facts,
        )
