"""Damaged and hostile folders from strangers, drawn at random: Hugging Face's checkpoints, our bodies and packs.

A damage is a function of (folder, rng) that changes a good folder in place; the same rng does the same again. What must
become of it: `import_outcome` and `artifact_outcome` give "refused", by one line and with nothing written, or "right",
and raise AssertionError for anything else.
"""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentencepiece import sentencepiece_model_pb2 as protobuf

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, write_manifest
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.interop.hugging_face import import_hf
from ds_minimodel.model.artifacts import load_body, load_pack
from ds_minimodel.serve.packs import check_pack
from ds_minimodel.serve.predictor import Predictor

from ..interop.conftest import ODD_TEXTS, TEXTS

LINES = [*TEXTS, *(text for text in ODD_TEXTS if "\u0085" not in text)]  # which transformers takes for no space
_SentencePiece: Any = vars(protobuf)["ModelProto"]  # made as the module is read
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
    tensor, what = tensors[name], rng.choice(list(_TENSORS))
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


def _with(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[tensor.numel() // 2] = value
        return tensor

    return change


_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": _with(float("nan")),
    "infinite": _with(float("-inf")),
    "int": lambda tensor: tensor.int(),
    "bool": lambda tensor: tensor.bool(),
    "fp64": lambda tensor: tensor.double() / 3,
    "bf16": lambda tensor: tensor.bfloat16(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "flat": lambda tensor: tensor.flatten()[None],
    "longer": lambda tensor: torch.cat([tensor, tensor]),
    "shorter": lambda tensor: tensor[:-1],
    "empty": lambda tensor: tensor[:0],
    "gone": lambda tensor: tensor,
    "other name": lambda tensor: tensor,
    "one more": lambda tensor: tensor,
}


def absurd_header(folder: Path, rng: random.Random) -> str:
    """A safetensors file that promises more than there is."""
    path = folder / "model.safetensors"
    size = rng.choice([10, 10**6, 10**12, 2**62])
    entry = {"dtype": "F32", "shape": [size, rng.choice([1, 16])], "data_offsets": [0, size]}
    header = json.dumps({"lm_head.bias": entry}).encode()
    claimed = rng.choice([len(header), 2**63, 10**9])
    path.write_bytes(claimed.to_bytes(8, "little") + header)
    return f"{path.name}: header of {claimed}, tensor of {size}"


class Code:
    """Unpickled by a reader that trusts it, it makes the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def hostile_pickle(folder: Path, rng: random.Random) -> str:
    """pytorch_model.bin with code, without tensors, or with views of a size that no memory has."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    path, code = folder / "pytorch_model.bin", Code(folder / "code-has-run")
    name = "roberta.embeddings.word_embeddings.weight"
    view = torch.zeros(1).expand(10**11, 16)
    deep: list[object] = []
    for _ in range(150):
        deep = [deep]
    what = rng.choice([{name: code}, {name: view}, {7: view}, [1, 2], {name: deep}, view, {name: "text"}, code])
    if rng.random() < 0.5:
        torch.save(what, path, _use_new_zipfile_serialization=rng.random() < 0.5)
    else:
        path.write_bytes(pickle.dumps({"code": code} if isinstance(what, (dict, torch.Tensor)) else what, protocol=2))
    return f"{path.name}: {type(what).__name__}"


# --- Vocabularies ---

TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def change_tokenizer(folder: Path, rng: random.Random) -> str:
    """A setting that changes the ids of a text, in tokenizer.json or in a file beside it."""
    path = folder / "tokenizer.json"
    beside: dict[str, list[Any]] = {
        "tokenizer_config.json": [
            {"add_prefix_space": rng.random() < 0.5},
            {"tokenizer_class": rng.choice(["BertTokenizer", "PreTrainedTokenizerFast", "RobertaTokenizerFast", 7])},
            {"cls_token": rng.choice(["boat", "<s>", {"content": "</s>"}])},
            {
                "added_tokens_decoder": {
                    str(rng.choice([2, 9, 400])): {"content": rng.choice(["boat", "</s>"]), **TOKEN}
                }
            },
            {"additional_special_tokens": rng.choice([["boat"], ["<s>"], "boat"])},
            {"sp_model_kwargs": {"enable_sampling": rng.random() < 0.5}},
        ],
        "special_tokens_map.json": [{"additional_special_tokens": ["boat"]}, {"mask_token": "boat"}],
        "added_tokens.json": [{"boat": 400}, {"<mask>": rng.randrange(500)}, [1]],
    }
    if not path.exists() or rng.random() < 0.4:
        name = rng.choice(sorted(beside))
        _write(folder / name, rng.choice(beside[name]))
        return f"{name}: {_read(folder / name)}"
    content = json.loads(path.read_text(encoding="utf-8"))
    model, added = content["model"], content["added_tokens"]
    pieces = list(model["vocab"])
    piece = rng.choice(pieces)
    settings: list[Callable[[], object]] = [
        lambda: added.append({"id": rng.choice([9, len(pieces), 10**9]), "content": "boat", **TOKEN}),
        lambda: added.append({"id": 0, "content": "<s>", **TOKEN}),
        lambda: added[-1].update(rstrip=True),
        lambda: added.pop(rng.randrange(len(added))),
        lambda: model.update(dropout=rng.choice([0.0, 0.5, 1.5, "a"])),
        lambda: model.update(continuing_subword_prefix=rng.choice(["##", "ééé", ""])),
        lambda: model.update(end_of_word_suffix="</w>"),
        lambda: model.update(unk_token=rng.choice(["boat", "<unk>"]), fuse_unk=True),
        lambda: model.update(unk_id=rng.choice([0, 2, 10**9, -1])),
        lambda: model.update(ignore_merges=True),
        lambda: model.update(byte_fallback=True),
        lambda: model["merges"].insert(0, rng.choice([["q", "zzz"], "a b c", ["t", "h"], []])),
        lambda: model["merges"].reverse(),
        lambda: model["vocab"].append(piece),
        lambda: model["vocab"].update({piece: 1}),
        lambda: content.update(normalizer=rng.choice([{"type": "Lowercase"}, {"type": "NFC"}, None])),
        lambda: content.update(
            normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": rng.choice(["b", "a"])}
        ),
        lambda: content.update(
            normalizer={"type": "Precompiled", "precompiled_charsmap": rng.choice(["", "AAAA", "?"])}
        ),
        lambda: content.update(pre_tokenizer=rng.choice([None, {"type": "WhitespaceSplit"}, {"type": "Whitespace"}])),
        lambda: content["pre_tokenizer"].update(add_prefix_space=True),
        lambda: content["pre_tokenizer"].update(use_regex=False),
        lambda: content.update(post_processor=rng.choice([None, {"type": "ByteLevel"}, {"type": "BertProcessing"}])),
        lambda: content["post_processor"].update(cls=["<s>", 5], single=[{"Sequence": {"id": "A", "type_id": 0}}]),
        lambda: content.update(
            truncation={"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        ),
    ]
    number = rng.randrange(len(settings))
    try:
        settings[number]()
    except (AttributeError, KeyError, TypeError):
        return "nothing"  # a setting of the other kind of vocabulary
    _write(path, content)
    return f"tokenizer.json: setting {number}"


def change_sentencepiece(folder: Path, rng: random.Random) -> str:
    """sentencepiece.bpe.model has other scores, pieces, kinds or settings."""
    path = folder / "sentencepiece.bpe.model"
    model = _SentencePiece.FromString(path.read_bytes())
    number = rng.randrange(3, len(model.pieces))
    piece, what = model.pieces[number], rng.randrange(8)
    if what == 0:
        piece.score = rng.choice([float("nan"), float("inf"), -1e38])
    elif what == 1:
        piece.piece = rng.choice(["", "<mask>", "<s>", "<pad>", model.pieces[3].piece, "a\0b"])
    elif what == 2:
        piece.type = rng.choice([2, 3, 4, 5, 6])
    elif what == 3:
        model.trainer_spec.model_type = rng.choice([2, 3, 4])
    elif what == 4:
        model.trainer_spec.treat_whitespace_as_suffix = True
    elif what == 5:
        model.normalizer_spec.precompiled_charsmap = rng.choice([b"", b"\xff" * 9, b"\4\0\0\0abcd"])
    elif what == 6:
        del model.pieces[rng.randrange(len(model.pieces))]
    else:
        model.pieces[0].piece = "unknown"
    path.write_bytes(model.SerializeToString())
    return f"{path.name}: {what}"


IMPORT_DAMAGES: list[Damage] = [
    *(change_json, change_json, change_bytes, change_kind_of_file, nest_deeply, change_weights, change_weights),
    *(absurd_header, hostile_pickle, change_tokenizer, change_tokenizer, change_tokenizer, change_sentencepiece),
]


def damage_import(folder: Path, rng: random.Random) -> str:
    """One damage to a folder of Hugging Face's."""
    damage = rng.choice(IMPORT_DAMAGES)
    if damage is change_sentencepiece and not (folder / "sentencepiece.bpe.model").exists():
        damage = change_tokenizer
    return f"{damage.__name__}: {damage(folder, rng)}"


def import_outcome(folder: Path, out: Path, good: Path, lines: list[str]) -> str:
    """What became of the import of a damaged `folder`; `good`: the import of the folder as it was.

    "right" is either what `good` is, to the bit, or the ids and logits of transformers on the damaged folder.
    """
    try:
        import_hf(folder, out)
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1200, error
        assert not out.exists() and not list(out.parent.glob(f"{out.name}.*")), "something was written"
        assert not (folder / "code-has-run").exists(), "code ran"
        return "refused"
    assert not (folder / "code-has-run").exists(), "code ran"
    names = ("body/model.safetensors", "pack/embeddings.safetensors", "pack/tokenizer.json")
    if any((out / name).read_bytes() != (good / name).read_bytes() for name in names):
        assert_as_transformers(folder, out, lines)
    check_pack(out / "pack", out / "body")
    return "right"


def assert_as_transformers(folder: Path, out: Path, lines: list[str]) -> None:
    """AssertionError where an import gives other ids of `lines`, or other logits, than transformers on its folder.

    Lines that spell a special token out are left aside: which ids they have is said in docs/hugging-face.md.
    """
    from transformers import AutoTokenizer, RobertaForMaskedLM

    from ..interop.test_hugging_face import encode, logits_of_ours

    ours, theirs = open_tokenizer(out / "pack"), AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    special = theirs.convert_ids_to_tokens(sorted(ours.vocabulary.special_ids))
    for line, ids in zip(lines, ours.encode(lines), strict=True):
        assert theirs(line)["input_ids"][1:-1] == ids or any(token in line for token in special), line
    body, pack = load_body(out / "body"), load_pack(out / "pack")
    tokens, lengths = encode(ours, lines[:4])
    tokens, lengths = tokens[:, : body.config.max_positions], lengths.clamp(max=body.config.max_positions)
    found = logits_of_ours(body, pack, tokens, lengths, body.config.num_layers)
    mask = tokens != 1
    with torch.no_grad():
        model = RobertaForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
        expected = model(tokens, attention_mask=mask.long()).logits
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-4, rtol=1e-4)  # a flipped bit may make 1e30


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
    assert all(tensor.isfinite().all() for tensor in predictor.model.state_dict().values()), answer
    return "right"


def copy(folder: Path, to: Path) -> Path:
    """A copy of a good folder, to be damaged."""
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(folder, to)
