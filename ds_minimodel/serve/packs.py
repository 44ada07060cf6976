"""Language packs (`ds-minimodel pack`): show one, check that it is whole and fits a body, put both side by side."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, atomic_folder, read_manifest, refuse_existing
from ds_minimodel.data.extension import join_tokenizers
from ds_minimodel.data.tokenizer import Tokenizer, open_tokenizer
from ds_minimodel.models import artifacts
from ds_minimodel.models.artifacts import (
    BodyArtifact,
    PackArtifact,
    check_fit,
    check_space,
    load_body,
    load_pack,
    save_pack,
    whole_pack,
)
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import LanguageModel, load_into
from ds_minimodel.tasks import task_of

# Of a manifest what is written anew for a copy.
_WRITTEN = {"kind", "language", "space", "vocab_size", "special", "lossy", "kept", "kept_of", "rows", "files"}
_WRITTEN |= {"steps", "eflops"}


def facts_of(folder: str | Path) -> dict[str, Any]:
    """The facts of a pack's manifest, with the bytes of each file; all files are verified. UserError where damaged."""
    open_pack(folder)
    manifest = read_manifest(folder)
    return {**manifest, "files": {name: entry["bytes"] for name, entry in manifest["files"].items()}}


def check_pack(folder: str | Path, body_folder: str | Path | None = None) -> None:
    """Raise UserError where a pack is damaged, its parts disagree or, with `body_folder`, it does not fit."""
    open_pack(folder, None if body_folder is None else _load_body(body_folder))


def _load_body(folder: str | Path) -> BodyArtifact:
    """A body or task model; UserError also where its task is of no kind that there is."""
    body = load_body(folder)
    if body.task:
        task_of(folder, body)
    return body


def save_plugged(body_folder: str | Path, pack_folder: str | Path, out: str | Path, onto: bool = False) -> None:
    """Write the folder `out` with copies of both, `body` and `pack`: a model of that language, with all rows it has.

    onto: the body is declared to be another one of the pack's embedding space, such as what was made of its body by
    training on instructions; the copy's manifest says so (`trained_over`). UserError where they do not fit.
    """
    out = Path(out)
    refuse_existing(out)
    body = _load_body(body_folder)
    pack, _ = open_pack(pack_folder, None if onto else body, body_folder)
    if onto:
        if pack.space == body.space:
            raise UserError(f"{pack_folder}: is of this body's embedding space already; leave out --onto")
        check_fit(pack_folder, pack, body)
    _refuse_inside(out, [body_folder, pack_folder])
    with atomic_folder(out, is_new=True) as temporary:
        _copy(body_folder, temporary / "body")
        manifest = read_manifest(pack_folder)
        if onto or "kept" in manifest:
            facts = {key: value for key, value in manifest.items() if key not in _WRITTEN}
            facts |= {"trained_over": pack.space} if onto else {}
            save_pack(temporary / "pack", replace(pack, space=body.space), pack_folder, **facts)
        else:
            _copy(pack_folder, temporary / "pack")


def _copy(artifact: str | Path, to: Path) -> None:
    """Copy the files that its manifest names, and no other: a link beside them may lead anywhere."""
    for name in (MANIFEST, *read_manifest(artifact)["files"]):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(artifact) / name, to / name)


def _refuse_inside(out: Path, artifacts: Sequence[str | Path]) -> None:
    """UserError where `out` lies in one of the folders that go into it."""
    for folder in artifacts:
        if out.resolve().is_relative_to(Path(folder).resolve()):
            raise UserError(f"{out}: lies in {folder}, which is copied there; choose a place outside of it")


def join_packs(packs: Sequence[str | Path], out: str | Path) -> None:
    """Write one pack with the rows of several that extend the same base: a model that reads all of their languages.

    A piece that two of them have is one row, that of the first which is named. UserError where they extend different
    bases, are of one language or replace parts of the body.
    """
    out, (first, *others) = Path(out), packs
    refuse_existing(out)
    _refuse_inside(out, packs)
    joined = load_pack(first)
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer = Path(first)
        for number, folder in enumerate(others):
            pack = load_pack(folder)
            for name, one in ((first, joined), (folder, pack)):
                if not one.kept or any(part.startswith("body.") for part in one.tensors):
                    raise UserError(
                        f"{name}: is no pack that only adds rows to a base's, as of --train rows; those join"
                    )
            if pack.kept_of != joined.kept_of:
                raise UserError(f"{folder}: extends another base than {first}")
            if {*pack.language.split("+")} & {*joined.language.split("+")}:
                raise UserError(f"{folder}: is of {pack.language}, as one before it; give each language once")
            place = Path(temporary) / str(number)
            chosen = join_tokenizers(tokenizer, folder, place, joined.kept)
            rows = {name: torch.cat((rows, pack.tensors[name][chosen])) for name, rows in joined.tensors.items()}
            language, eflops = f"{joined.language}+{pack.language}", joined.eflops + pack.eflops
            joined = replace(joined, tensors=rows, language=language, steps=joined.steps + pack.steps, eflops=eflops)
            tokenizer = place
        save_pack(out, joined, tokenizer)


def plugged_module(body: BodyArtifact, pack: PackArtifact) -> LanguageModel:
    """The module of a body or mini-model with a pack plugged in, in evaluation mode; UserError where they do not fit.

    Both stay as they are.
    """
    if body.task is not None:
        raise UserError("a task model has a head of its own; give a body or a mini-model")
    check_space(f"the pack of {pack.language}", pack.space, body.space)
    objective = OBJECTIVES[body.objective]
    model = LanguageModel(body.config, len(pack.tensors["tokens"]), body.head_depths, objective)
    load_into(model, body.tensors, "body.")
    artifacts.plug(model, pack)
    return model.eval()


def open_pack(
    folder: str | Path, body: BodyArtifact | None = None, body_folder: str | Path | None = None
) -> tuple[PackArtifact, Tokenizer]:
    """(PackArtifact, Tokenizer) of a language pack, all files verified.

    body_folder: where `body` lies; then the pack has all rows, also those that it keeps of its base. UserError where
    its parts disagree or it does not fit `body`.
    """
    pack, tokenizer = load_pack(folder, None if body is None else body.space), open_tokenizer(folder)
    if body is not None:
        check_fit(folder, pack, body)
    return (pack if body_folder is None else whole_pack(pack, folder, body_folder)), tokenizer
