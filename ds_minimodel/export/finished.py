"""Exports of models with a finished head: the base's own folder with another vocabulary.

What did not train comes out as it came in, byte by byte where its type is not changed: the body
under the names that the base's file has, the head and its settings as sentence-transformers reads
them. Other forms of the weights that lie in a base's folder hold its own vocabulary and stay there.
"""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ds_minimodel.artifacts.adaptation import merged
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact, ModelManifest, model_tensors
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_artifact, write_json
from ds_minimodel.hf.lazy import DTYPES, Lazy, LazyTensors, save_tensors
from ds_minimodel.hf.names.architecture import PROJECTIONS
from ds_minimodel.hf.sentence import is_sentence_model, settings_files
from ds_minimodel.hf.source import CONFIG, WEIGHTS, Folder, projection_files, stored_name
from ds_minimodel.hf.tokenizers import write_tokenizer
from ds_minimodel.models.heads import SentenceHead
from ds_minimodel.models.low_rank import changed_name
from ds_minimodel.tokenizers.tokenizer import JSON_FILE, TokenizerJson

VOCABULARY_TEXT = "vocab.txt"  # of a WordPiece vocabulary: a token a line
# Heads of a language model, which a body that gives vectors does not read
_OTHER_HEADS = re.compile(r"(cls|lm_head|head|decoder|vocab_\w+)\.")


def write_finished(
    out: Path,
    model: Path,
    body: BodyArtifact,
    language: Adaptation,
    tokenizer: Path,
    strength: float = 1.0,
    dtype: torch.dtype | None = None,
) -> str:
    """Write the folder of a model with a finished head, but for its card.

    Args:
        out: the folder, which is there.
        model: reference to the base.
        body: of it.
        language: with all of its rows, and perhaps an update of the body.
        tokenizer: folder of its vocabulary.
        strength: share of what the body has learned that it keeps.
        dtype: of the weights; default: as they are.

    Returns:
        The name of transformers' class.

    Raises:
        UserError: the model is a mini-model, or was not taken from a folder.
    """
    source = read_artifact(model, ModelManifest).source
    architecture = body.architecture
    head = body.config.head
    if source is None or architecture is None or not Path(source.path).is_dir():
        raise UserError(
            f"{model}: is no reference to a folder; finished models are exported of one"
        )
    assert head is not None
    folder = Folder(Path(source.path))
    headers, _ = folder.headers(architecture, body.config)
    is_sentence = isinstance(head, SentenceHead)
    tensors = {
        name: lazy
        for name, lazy in headers.items()
        if lazy.dtype in DTYPES.values()  # older files hold positions as integers
        and not name.startswith(PROJECTIONS)
        and not (is_sentence and _OTHER_HEADS.match(name))
    }
    for name, lazy in _changed(body, language, strength).items():
        # Files of some bases have shorter or older names.
        name_in_file = stored_name(name, tensors, architecture.prefix) or name
        tensors[name_in_file] = lazy
    if dtype is not None:
        cast = partial(torch.Tensor.to, dtype=dtype)
        tensors = {name: lazy.map(cast, dtype) for name, lazy in tensors.items()}
    save_tensors(out / WEIGHTS, LazyTensors(tensors))
    class_name = architecture.classes + head.hugging_face_class
    values = {**folder.config(), "architectures": [class_name], "vocab_size": language.rows}
    if dtype is not None:
        values |= {"dtype": str(dtype).removeprefix("torch.")}
    write_json(out / CONFIG, values)
    write_tokenizer(tokenizer, out, body.config, is_task=False)
    if (folder.path / VOCABULARY_TEXT).is_file():
        strings = TokenizerJson(tokenizer / JSON_FILE).strings
        lines = [f"{strings[id]}\n" for id in sorted(strings)]
        (out / VOCABULARY_TEXT).write_text("".join(lines), encoding="utf-8")
    if is_sentence_model(folder.path):
        for path in (*settings_files(folder.path), *projection_files(folder.path)):
            if path.is_file():
                place = out / path.relative_to(folder.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
    elif isinstance(head, SentenceHead):
        write_modules(out, head, body.config.hidden_size)
    return class_name


def _changed(body: BodyArtifact, language: Adaptation, strength: float) -> dict[str, Lazy]:
    """Return the tensors that are not the base's, by the names of transformers' model."""
    architecture = body.architecture
    assert architecture is not None
    tensors = {f"body.{name}": lazy for name, lazy in merged(body, language, strength)}
    tensors |= model_tensors({}, language.embeddings)
    head = architecture.head_of(body.config, body.config.num_layers)
    # A tensor of this package may be several of transformers' (architecture.parts_of).
    names = {"pack.tokens", *(f"body.{changed_name(name)}" for name in language.update)}
    parts_of = architecture.parts_of(names, body.config)
    changed = {part for parts in parts_of.values() for part in parts}
    all_tensors = architecture.to_hf(tensors, body.config, head)
    return {name: lazy for name, lazy in all_tensors.items() if name in changed}


def write_modules(folder: Path, head: SentenceHead, width: int) -> None:
    """Write the files by which sentence-transformers reads a folder of transformers.

    They name the pooling, and normalisation where there is one.
    """
    parts = {"Transformer": "", "Pooling": "1_Pooling"}
    if head.normalises:
        parts["Normalize"] = "2_Normalize"
    modules: list[dict[str, Any]] = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{name}",
        }
        for index, (name, path) in enumerate(parts.items())
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": head.max_length})
    reads = {
        "pooling_mode_mean_tokens": head.pooling == "mean",
        "pooling_mode_cls_token": head.pooling == "cls",
    }
    write_json(folder / parts["Pooling"] / CONFIG, {"word_embedding_dimension": width, **reads})
