"""`ds-minimodel pack`: what a language pack is, whether it is whole and fits a body, both side by side."""

import shutil
from pathlib import Path

from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.errors import UserError
from ds_minimodel.files import atomic_folder, read_manifest
from ds_minimodel.model.artifacts import load_body, load_pack

_NAMED = ("kind", "language", "space", "vocab_size", "steps", "eflops", "files")


def facts_of(folder):
    """What a pack says of itself, in the order to show; all its files are verified. UserError where damaged."""
    pack, tokenizer, manifest = *_open(folder), read_manifest(folder)
    facts = {"language": pack.language, "space": pack.space, "vocabulary": tokenizer.vocab_size,
             "vocabulary sha256": tokenizer.sha256[:16], "hidden size": pack.tensors["tokens"].shape[1],
             "steps": pack.steps, "eflops": pack.eflops}
    facts |= {key: value for key, value in manifest.items() if key not in _NAMED}
    replaced = sorted(name for name in pack.tensors if name.startswith("body."))
    facts |= {"replaces of the body": replaced} if replaced else {}
    return facts | {"files": {name: entry["bytes"] for name, entry in manifest["files"].items()}}


def check(folder, body_folder=None):
    """UserError where a pack is damaged or its parts disagree or, with `body_folder`, where it does not fit."""
    if body_folder is None:
        _open(folder)
        return
    body = load_body(body_folder)
    pack, _ = _open(folder, body.space)
    width = pack.tensors["tokens"].shape[1]
    if width != body.config.hidden_size:
        raise UserError(f"{folder}: embeddings of size {width}, the body {body_folder} has {body.config.hidden_size}")
    for name, tensor in pack.tensors.items():
        own = body.tensors.get(name) if body.task else body.tensors.get(name.removeprefix("body."))
        if name.startswith("body.") and (own is None or own.shape != tensor.shape):
            raise UserError(f"{folder}: replaces {name} of shape {tuple(tensor.shape)}, which {body_folder} has not")


def plug(body_folder, pack_folder, out):
    """Write the folder `out` with copies of both, `body` and `pack`: a model of that language, ready to serve."""
    out = Path(out)
    if out.exists():
        raise UserError(f"{out}: exists; choose another name or delete it")
    check(pack_folder, body_folder)
    with atomic_folder(out) as temporary:
        shutil.copytree(body_folder, temporary / "body")
        shutil.copytree(pack_folder, temporary / "pack")


def _open(folder, space=None):
    """A pack and its vocabulary, all files verified, that belong together."""
    pack, tokenizer = load_pack(folder, space), open_tokenizer(folder)
    rows = len(pack.tensors["tokens"])
    if tokenizer.vocab_size != rows or len(pack.tensors["bias"]) != rows:
        raise UserError(f"{folder}: its vocabulary has {tokenizer.vocab_size} pieces, its embeddings {rows} rows: "
                        "the tokenizer is of another pack")
    return pack, tokenizer
