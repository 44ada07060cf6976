"""Damaged and hostile folders from strangers, drawn at random: Hugging Face's checkpoints, our bodies and packs.

A damage is a function of (folder, rng) that changes a good folder in place; the same rng does the same again. What must
become of it: `import_outcome` and `artifact_outcome` give "refused", by one line and with nothing written, or "right",
and raise AssertionError for anything else.
"""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, write_manifest
from ds_minimodel.hf.convert import import_hf
from ds_minimodel.serve.packs import check_pack
from ds_minimodel.serve.predictor import Predictor

LONGEST = 60  # seconds of an import, on a machine that does much else
Damage = Callable[[Path, random.Random], str]  # returns what it did, for a message

VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 1.5, 3, 10**9, 10**12, 10**30, 1e300, float("nan"), float("inf")),
    *("", "16", "a\nb", "\0", "<s>", "../x", [], [1], ["a"], {}, {"a": 1}, [[[[]]]]),
]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


# --- Any file ---


def change_json(folder: Path, rng: random.Random) -> str:
    """A value somewhere in a JSON file becomes another, goes, or gets a neighbour."""
    path = rng.choice(sorted(folder.glob("*.json")))
    value = root = _read(path)
    parent: Any = None
    keys: list[Any] = []
    while isinstance(value, (dict, list)) and value and (len(keys) < 1 or rng.random() < 0.75):
        keys.append(rng.choice(list(value) if isinstance(value, dict) else range(len(value))))
        parent, value = value, value[keys[-1]]
    if not keys:
        _write(path, rng.choice(VALUES))
        return f"{path.name} replaced"
    what = rng.choice(["replace", "replace", "replace", "remove", "add"])
    if what == "replace":
        parent[keys[-1]] = rng.choice(VALUES)
    elif what == "remove":
        del parent[keys[-1]]
    elif isinstance(parent, dict):
        parent[f"{keys[-1]}_"] = value
    else:
        parent.append(value)  # type: ignore[attr-defined]
    _write(path, root)
    return f"{path.name}: {what} {'.'.join(map(str, keys))}"


def change_bytes(folder: Path, rng: random.Random) -> str:
    """A file loses its end, or some of its bits turn."""
    path = rng.choice(sorted(file for file in folder.iterdir() if file.is_file()))
    content = bytearray(path.read_bytes())
    if rng.random() < 0.4:
        del content[rng.choice([0, 1, 8, rng.randrange(len(content) + 1)]) :]
    else:
        for _ in range(rng.choice([1, 3, 30])):
            content[rng.randrange(min(len(content), rng.choice([16, 2000, 10**9])))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"{path.name}: bytes"


def change_kind_of_file(folder: Path, rng: random.Random) -> str:
    """A file is gone, a folder, a link to nothing or to itself, a pipe, or a terabyte of zeros."""
    path = rng.choice(sorted(file for file in folder.iterdir() if file.is_file()))
    path.unlink()
    what = rng.choice(["gone", "folder", "dangling", "loop", "pipe", "huge"])
    if what == "folder":
        path.mkdir()
    elif what in ("dangling", "loop"):
        path.symlink_to(path.name if what == "loop" else "nothing")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "huge" and path.suffix == ".json":
        path.touch()
        os.truncate(path, 1 << 40)
    return f"{path.name}: {what}"


def nest_deeply(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.glob("*.json")))
    depth = rng.choice([2000, 200_000])
    path.write_text('{"a":' * depth + "1" + "}" * depth)
    return f"{path.name}: nested"


# --- Weights ---


def change_weights(folder: Path, rng: random.Random) -> str:
    """A tensor has other numbers, another type, shape or name, or is one too many or too few."""
    (path,) = [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]
    tensors = load_file(path) if path.suffix == ".safetensors" else dict(torch.load(path))
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    name = rng.choice(sorted(tensors))
    tensor, what = tensors[name], rng.choice([*_TENSORS, "gone", "other name", "one more"])
    if what == "gone":
        del tensors[name]
    elif what == "other name":
        tensors[f"{name}\n{rng.random()}"] = tensors.pop(name)
    elif what == "one more":
        tensors[f"{name}.more"] = tensor.clone()
    else:
        tensors[name] = _TENSORS[what](tensor).contiguous()
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return f"{path.name}: {name} {what}"


_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda tensor: tensor.fill_(float("nan")),
    "int": lambda tensor: tensor.int(),
    "fp64": lambda tensor: tensor.double() / 3,
    "bf16": lambda tensor: tensor.bfloat16(),
    "longer": lambda tensor: torch.cat([tensor, tensor]),
    "shorter": lambda tensor: tensor[:-1],
}


# --- Hugging Face's folders ---

IMPORT_DAMAGES = change_json, change_bytes, change_kind_of_file, nest_deeply, change_weights


def damage_import(folder: Path, rng: random.Random) -> str:
    """One damage to a folder of Hugging Face's."""
    damage = rng.choice(IMPORT_DAMAGES)
    return f"{damage.__name__}: {damage(folder, rng)}"


def import_outcome(folder: Path, out: Path) -> str:
    """What became of the import of a damaged `folder`: "right" is one that the import's own check let pass."""
    began = time.monotonic()
    try:
        import_hf(folder, out)
        check_pack(out / "pack", out / "body")
        found = "right"
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1200, error
        assert not out.exists() and not list(out.parent.glob(f"{out.name}.*")), "something was written"
        found = "refused"
    assert time.monotonic() - began < LONGEST, "it took too long"
    return found


# --- Our own artifacts, whose makers know how to write a manifest ---


def link(folder: Path, rng: random.Random) -> str:
    path = rng.choice(sorted(folder.iterdir()))
    target = folder.parent / f"{folder.name}.elsewhere"
    path.rename(target)
    path.symlink_to(target)
    return f"{path.name}: a link"


def change_manifest(folder: Path, rng: random.Random) -> str:
    path = folder / MANIFEST
    content = json.loads(path.read_text())
    key = rng.choice([*content, "files"])
    if key == "files" and rng.random() < 0.7:
        name = rng.choice(["../../etc/passwd", "/etc/passwd", "none", "", "a/../b"])
        content["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    elif rng.random() < 0.2:
        del content[key]
    else:
        content[key] = rng.choice([*VALUES, "body", "language-pack", "task-model"])
    _write(path, content)
    return f"{MANIFEST}: {key}"


def _sealed(damage: Damage) -> Damage:
    """A damage under a manifest that agrees with it, as a stranger would write it."""

    def apply(folder: Path, rng: random.Random) -> str:
        content = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).unlink()
        done = damage(folder, rng)
        del content["files"]
        write_manifest(folder, **content)
        return f"sealed {done}"

    return apply


ARTIFACT_DAMAGES: list[Damage] = [
    *(_sealed(change_weights), _sealed(change_weights), _sealed(change_json), _sealed(change_bytes)),
    *(change_weights, change_json, change_bytes, change_kind_of_file, nest_deeply, change_manifest, link),
]


def damage_artifact(folder: Path, rng: random.Random) -> str:
    """One damage to a folder of a body, task model or pack of ours."""
    damage = rng.choice(ARTIFACT_DAMAGES)
    try:
        return damage(folder, rng)
    except (IndexError, ValueError):  # there is no such file in this kind of folder
        return link(folder, rng)


def artifact_outcome(model: Path, pack: Path) -> str:
    """What became of a body or task model and a pack of which one is damaged.

    "right" is an answer by finite weights: under a manifest that agrees, a stranger's other numbers are his to choose.
    """
    try:
        check_pack(pack, model)
        predictor = Predictor(model, {"de": pack}, top=2)
        (answer,) = predictor.predict([{"text": "der <mask>", "question": "wer?", "context": "der Hund"}])
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1200, error
        return "refused"
    json.dumps(answer, allow_nan=False)
    return "right"


def copy(folder: Path, to: Path) -> Path:
    """A copy of a good folder, to be damaged."""
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(folder, to)
