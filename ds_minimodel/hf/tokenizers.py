"""Tokenizers as transformers reads them, written without it.

Those that were taken over come out as they came in, those that were trained here as a
tokenizer.json.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ds_minimodel.common import files
from ds_minimodel.common.errors import one_line
from ds_minimodel.common.vocabulary import Vocabulary, VocabularyManifest
from ds_minimodel.models import BodyConfig
from ds_minimodel.tokenizers.tokenizer import JSON_FILE, SETTINGS_FILE, UNIGRAM_FILE, TokenizerJson

# What a pack keeps of a folder beside tokenizer.json: settings with the chat template, those of
# generation, and the ids of special tokens by the keys of config.json.
GENERATION_FILE = "generation_config.json"
IDS_FILE = "token_ids.json"
_PUT_BACK = "put the pack back from a copy"
# The classes of this module are made at run time, where mypy does not see them.
protobuf: Any = sentencepiece_model_pb2

# Key of tokenizer_config.json -> role of a special token.
_ROLES = {
    "cls_token": "bos",
    "sep_token": "eos",
    "pad_token": "pad",
    "unk_token": "unk",
    "mask_token": "mask",
    "bos_token": "bos",
    "eos_token": "eos",
}


def write_tokenizer(pack: Path, folder: Path, body: BodyConfig, *, is_task: bool) -> dict[str, Any]:
    """Write what `AutoTokenizer` reads for a pack.

    Args:
        pack: folder of the tokenizer.
        folder: to write into.
        body: configuration of the model.
        is_task: whether the model is a task's, to which "<mask>" in a text is text (but in unigram
            vocabularies: docs/hugging-face.md).

    Returns:
        The ids of its special tokens by the keys of config.json.
    """
    vocabulary = files.read_artifact(pack, VocabularyManifest).vocabulary(pack)
    if (pack / SETTINGS_FILE).is_file():
        shutil.copyfile(pack / JSON_FILE, folder / JSON_FILE)
        if (pack / GENERATION_FILE).is_file() and not is_task:
            shutil.copyfile(pack / GENERATION_FILE, folder / GENERATION_FILE)
        settings = _settings_taken_over(pack, body)
        ids = read_ids(pack)
    else:
        settings = _write_trained_here(pack, folder, vocabulary, body)
        ids = token_ids(vocabulary)
    if is_task:
        settings["split_special_tokens"] = True
    files.write_json(folder / SETTINGS_FILE, settings)
    return ids


def _input_names(body: BodyConfig) -> list[str]:
    """Return what a tokenizer gives a model of `body`."""
    types = ["token_type_ids"] if body.token_types > 1 else []
    return ["input_ids", *types, "attention_mask"]


def _settings_taken_over(pack: Path, body: BodyConfig) -> dict[str, Any]:
    """Return the settings that a tokenizer came in with."""
    settings = files.read_model(pack / SETTINGS_FILE, dict[str, Any], _PUT_BACK)
    # The one names code, the other says how this package has read it.
    settings.pop("auto_map", None)
    settings.pop("local_files_only", None)
    # Transformers 4 has no TokenizersBackend; its LlamaTokenizer and GemmaTokenizer begin a text
    # by themselves.
    if body.causal or settings.get("tokenizer_class") == "TokenizersBackend":
        settings = {"model_input_names": _input_names(body), **settings}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    return settings


def _write_trained_here(
    pack: Path, folder: Path, vocabulary: Vocabulary, body: BodyConfig
) -> dict[str, Any]:
    """Write the tokenizer.json of a tokenizer that was trained here, and return its settings."""
    path = pack / JSON_FILE
    if path.is_file():
        file = TokenizerJson(path)
    else:
        file = _json_of_unigram(pack / UNIGRAM_FILE, vocabulary)
    (folder / JSON_FILE).write_text(_framed(file, vocabulary, body), encoding="utf-8")
    special = vocabulary.special
    strings = {key: file.strings[special[role]] for key, role in _ROLES.items() if role in special}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": body.max_positions,
        **strings,
        "model_input_names": _input_names(body),
    }


def ends_of(pack: Path) -> list[int]:
    """Return the tokens that end a text by the settings of generation in a pack."""
    path = pack / GENERATION_FILE
    settings = files.read_model(path, dict[str, Any], _PUT_BACK) if path.is_file() else {}
    ends = settings.get("eos_token_id")
    if ends is None:
        return []
    return ends if isinstance(ends, list) else [ends]


def name_ends(pack: Path, ends: Sequence[int]) -> None:
    """Name tokens that a model has learned to end an answer by in a pack's settings of generation.

    The first becomes the tokenizer's end of a text, where it has none.

    Args:
        pack: folder of the tokenizer, whose files are written anew.
        ends: ids of the tokens.
    """
    path = pack / GENERATION_FILE
    settings_path = pack / SETTINGS_FILE
    ids = read_ids(pack)
    if not path.is_file():
        files.write_json(path, {name: id for name, id in ids.items() if id is not None})
    settings = files.read_model(settings_path, dict[str, Any], _PUT_BACK)
    if not settings.get("eos_token"):
        settings["eos_token"] = TokenizerJson(pack / JSON_FILE).strings[ends[0]]
        files.write_json(settings_path, settings)
        files.write_json(pack / IDS_FILE, ids | {"eos_token_id": ends[0]})
    generation = files.read_model(path, dict[str, Any], _PUT_BACK)
    generation["eos_token_id"] = [*dict.fromkeys([*ends_of(pack), *ends])]
    files.write_json(path, generation)


def read_ids(pack: Path) -> dict[str, Any]:
    """Return the ids of special tokens of a pack whose tokenizer was taken over.

    They go by the keys of config.json.
    """
    return files.read_model(pack / IDS_FILE, dict[str, int | list[int] | None], _PUT_BACK)


def token_ids(vocabulary: Vocabulary) -> dict[str, int | None]:
    """Return the special tokens of a vocabulary by the keys of config.json."""
    ids = {f"{role}_token_id": vocabulary.special.get(role) for role in ("bos", "eos", "pad")}
    if vocabulary.mask is not None:
        # What ModernBERT's configuration has by default is beyond small vocabularies.
        ids["cls_token_id"] = vocabulary.bos
        ids["sep_token_id"] = vocabulary.eos
        ids["mask_token_id"] = vocabulary.mask
    return ids


def _framed(file: TokenizerJson, vocabulary: Vocabulary, body: BodyConfig) -> str:
    """Return `file` with texts put between <s> and </s> as such a body has them.

    Nothing ends a text that is to go on.
    """
    before, after = vocabulary.frame
    if body.causal:
        after = []
    strings = file.strings

    def tokens(ids: list[int], type: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": strings[id], "type_id": type}} for id in ids]

    second = 1 if body.token_types > 1 else 0
    single = [*tokens(before), {"Sequence": {"id": "A", "type_id": 0}}, *tokens(after)]
    pair = [
        *single,
        *tokens(after * (body.separators - 1)),
        {"Sequence": {"id": "B", "type_id": second}},
        *tokens(after, second),
    ]
    special = {
        strings[id]: {"id": strings[id], "ids": [id], "tokens": [strings[id]]}
        for id in (*before, *after)
    }
    processor = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special,
    }
    return file.load({**file.content, "post_processor": processor}).to_str()


def _json_of_unigram(path: Path, vocabulary: Vocabulary) -> TokenizerJson:
    """Return a pack's tokenizer.model as a tokenizer.json that gives the same ids.

    Two things differ. Hugging Face's `Precompiled` normaliser loses a mark where a letter carries
    two that are written apart (decomposed Unicode, as in NFD Vietnamese; normalise such text to
    NFC). And SentencePiece adds scores up in fp32, so a tie of two segmentations may be broken
    differently ("....").
    """
    with one_line(path, "not a SentencePiece model"):
        model = protobuf.ModelProto.FromString(path.read_bytes())
    spec = model.normalizer_spec
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=vocabulary.unk))
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    steps.append(normalizers.Replace(Regex("^ +| +$"), ""))
    steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = [
        AddedToken(pieces[id][0], lstrip=id == vocabulary.mask, normalized=False, special=True)
        for id in vocabulary.special_ids
    ]
    tokenizer.add_special_tokens(special)
    return TokenizerJson(path, json.loads(tokenizer.to_str()))
