"""Tokenizers of Hugging Face's folders: kept by transformers' own classes, and written back for them."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.vocabulary import Vocabulary, VocabularyManifest
from ds_minimodel.data.tokenizer import JSON_FILE, PROBES, SETTINGS_FILE, UNIGRAM_FILE, TokenizerJson
from ds_minimodel.models import BodyConfig

VOCABULARIES = JSON_FILE, "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "tokenizer.model"
TOKENIZER_FILES = (  # all that transformers may read for the families that are served
    *VOCABULARIES,
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)
# What a pack keeps of a folder beside tokenizer.json: settings with the chat template, those of generation, and the ids
# of special tokens by the keys of config.json.
GENERATION_FILE, IDS_FILE = "generation_config.json", "token_ids.json"
protobuf: Any = sentencepiece_model_pb2  # its classes are made at run time
_PIECE = protobuf.ModelProto.SentencePiece


def keep_tokenizer(
    folder: Path, theirs: PreTrainedTokenizerBase, pack: Path, config: Any, body: BodyConfig
) -> Vocabulary:
    """Write the tokenizer of a model, as transformers has it, into a pack -> its vocabulary.

    folder: as messages name the model. config: transformers' of it. body: of the model, by which texts stand in a
    sequence. UserError where what is written would give other ids of some text of the probes.
    """
    with one_line(folder, f"{type(theirs).__name__} is not written as {JSON_FILE}"):
        file = TokenizerJson(folder / JSON_FILE, json.loads(theirs.backend_tokenizer.to_str()))
        theirs.save_pretrained(pack, save_jinja_files=False)
    vocabulary = _vocabulary(folder, theirs, file, body)
    if file.size > config.vocab_size:
        raise UserError(
            f"{folder}: config.json has vocab_size {config.vocab_size}, the tokenizer {file.size} ids; resize "
            "the embeddings to the tokenizer"
        )
    if 2 * file.size < config.vocab_size:  # transformers makes an empty one where a file is missing or empty
        raise UserError(f"{folder}: config.json has vocab_size {config.vocab_size}, the tokenizer only {file.size} ids")
    special = [file.strings[id] for id in vocabulary.special_ids]  # which no text becomes here
    texts = [text for text in PROBES if not any(token in text for token in special)]
    runner, again = file.runner(vocabulary), tokenizer_of(pack)
    with one_line(folder, "the tokenizer does not run"):
        ours = [encoding.ids for encoding in runner.encode_batch(texts, add_special_tokens=False)]
        alone = theirs(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        whole, kept = theirs(PROBES)["input_ids"], again(PROBES)["input_ids"]
    _compare(folder, texts, ours, alone)
    _compare(folder, PROBES, kept, whole)
    ids = {key: value for key, value in config.to_dict().items() if key.endswith("_token_id")}
    files.write_json(pack / IDS_FILE, ids)
    return replace(vocabulary, lossy=file.lost_text(vocabulary))


def tokenizer_of(folder: Path, **settings: Any) -> PreTrainedTokenizerBase:
    """transformers' of a folder of its own or a pack; UserError where it cannot be read."""
    with one_line(folder, "transformers cannot read its tokenizer"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **settings)


def asked(tokenizer: PreTrainedTokenizerBase, words: str, **settings: Any) -> str | None:
    """What a user says as the chat template has it, after a system message of no words where it demands one; None where
    there is no template, or it asks for more than that.
    """
    for system in ([], [{"role": "system", "content": ""}]) if tokenizer.chat_template else ():
        with contextlib.suppress(UserError), one_line("", "the chat template does not run"):
            dialogue = [*system, {"role": "user", "content": words}]
            return str(tokenizer.apply_chat_template(dialogue, tokenize=False, **settings))
    return None


def _compare(folder: Path, texts: Sequence[str], ours: list[list[int]], theirs: list[list[int]]) -> None:
    for text, our_ids, their_ids in zip(texts, ours, theirs, strict=True):
        if our_ids != their_ids:
            raise UserError(
                f"{folder}: {text!r:.60} has the ids {their_ids!s:.60} by transformers, and would have {our_ids!s:.60} "
                "as it is kept; this tokenizer is not served"
            )


def _vocabulary(folder: Path, theirs: Any, file: TokenizerJson, body: BodyConfig) -> Vocabulary:
    """Which ids are special: those by what they are called, and those that stand before and after a text."""
    with one_line(folder, "the tokenizer does not run"):
        first, second = (theirs(text, add_special_tokens=False)["input_ids"] for text in ("a", "b"))
        single, pair = theirs("a")["input_ids"], theirs("a", "b", return_token_type_ids=True)
    place = next((at for at in range(len(single)) if single[at : at + len(first)] == first), 0)
    before, after = single[:place], single[place + len(first) :]
    found = {role: getattr(theirs, f"{role}_token_id") for role in ("pad", "unk", "mask")}
    found |= {"bos": before[0] if before else None, "eos": after[0] if after else theirs.eos_token_id}
    frame = [found["bos"]] if before else [], [] if body.causal else [found["eos"]]
    head, tail = [*frame[0], *first, *frame[1]], [*frame[1] * (body.separators - 1), *second, *frame[1]]
    types = [0] * len(head) + [1] * len(tail)
    is_pair = pair["input_ids"] == [*head, *tail] and (body.token_types == 1 or pair["token_type_ids"] == types)
    if single != head or (not body.causal and not (before and is_pair)):
        raise UserError(
            f"{folder}: the tokenizer puts a text as {theirs.convert_ids_to_tokens(single)!s:.80} and two as "
            f"{theirs.convert_ids_to_tokens(pair['input_ids'])!s:.120}, which is not as a {body.kind} has them here"
        )
    if found["pad"] in (found["bos"], found["eos"], found["unk"]):
        found["pad"] = None  # what ends a text fills it up too
    try:
        return Vocabulary(file.size, **found, name=str(folder))
    except ValueError as error:
        raise UserError(f"{folder}: {error}") from None


# Export.

_ROLES = {"cls_token": "bos", "sep_token": "eos", "pad_token": "pad", "unk_token": "unk", "mask_token": "mask"}
_TEXT_ROLES = {"bos_token": "bos", "eos_token": "eos"}


def write_tokenizer(pack: Path, folder: Path, body: BodyConfig, is_task: bool) -> dict[str, Any]:
    """Write what `AutoTokenizer` reads for a pack; return the ids of its special tokens by the keys of config.json.

    An imported tokenizer comes out as it came in. is_task: of a task's model, to which "<mask>" in a text is text (but
    in unigram vocabularies: docs/hugging-face.md).
    """
    vocabulary = files.read_artifact(pack, VocabularyManifest).vocabulary(pack)
    if (pack / SETTINGS_FILE).is_file():
        shutil.copyfile(pack / JSON_FILE, folder / JSON_FILE)
        settings = files.read_model(pack / SETTINGS_FILE, dict[str, Any], "put the pack back from a copy")
        for key in ("auto_map", "local_files_only"):  # names code; how this package has read it
            settings.pop(key, None)
        ids: dict[str, Any] = files.read_model(
            pack / IDS_FILE, dict[str, int | list[int] | None], "put the pack back from a copy"
        )
        if (pack / GENERATION_FILE).is_file() and not is_task:
            shutil.copyfile(pack / GENERATION_FILE, folder / GENERATION_FILE)
    else:
        path = pack / JSON_FILE
        file = TokenizerJson(path) if path.is_file() else _json_of_unigram(pack / UNIGRAM_FILE, vocabulary)
        (folder / JSON_FILE).write_text(_framed(file, vocabulary, body), encoding="utf-8")
        spelt = {role: file.strings[id] for role, id in vocabulary.special.items()}
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": body.max_positions,
            **{key: spelt[role] for key, role in (*_ROLES.items(), *_TEXT_ROLES.items()) if role in spelt},
            "model_input_names": inputs if body.token_types > 1 else [inputs[0], inputs[2]],
        }
        ids = {**token_ids(vocabulary)}
    files.write_json(folder / SETTINGS_FILE, settings | ({"split_special_tokens": True} if is_task else {}))
    return ids


def token_ids(vocabulary: Vocabulary) -> dict[str, int | None]:
    """The special tokens of a vocabulary by the keys of config.json."""
    ids = {f"{token}_token_id": vocabulary.special.get(token) for token in ("bos", "eos", "pad")}
    if vocabulary.mask is None:
        return ids
    frame = {"cls_token_id": vocabulary.bos, "sep_token_id": vocabulary.eos}  # ModernBERT's own are beyond small ones
    return {**ids, **frame, "mask_token_id": vocabulary.mask}


def _framed(file: TokenizerJson, vocabulary: Vocabulary, body: BodyConfig) -> str:
    """`file` with texts put between <s> and </s> as such a body has them; nothing ends one that is to go on."""
    before, after = vocabulary.frame
    strings, after = file.strings, [] if body.causal else after

    def tokens(ids: list[int], type: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": strings[id], "type_id": type}} for id in ids]

    second = 1 if body.token_types > 1 else 0
    single = [*tokens(before), {"Sequence": {"id": "A", "type_id": 0}}, *tokens(after)]
    between = tokens(after * (body.separators - 1))
    special = {strings[id]: {"id": strings[id], "ids": [id], "tokens": [strings[id]]} for id in (*before, *after)}
    processor = dict(
        type="TemplateProcessing",
        single=single,
        pair=[*single, *between, {"Sequence": {"id": "B", "type_id": second}}, *tokens(after, second)],
        special_tokens=special,
    )
    return file.load({**file.content, "post_processor": processor}).to_str()


def _json_of_unigram(path: Path, vocabulary: Vocabulary) -> TokenizerJson:
    """A pack's tokenizer.model as a tokenizer.json that gives the same ids, special ones included.

    Two things differ. Hugging Face's `Precompiled` normaliser loses a mark where a letter carries two that are written
    apart (decomposed Unicode, as in NFD Vietnamese; normalise such text to NFC). And SentencePiece adds scores up in
    fp32, so a tie of two segmentations may be broken differently ("...."). Raises UserError where SentencePiece's
    settings have no counterpart.
    """
    try:
        model = protobuf.ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise UserError(f"{path}: not a SentencePiece model ({error})") from None
    spec, kinds = model.normalizer_spec, {piece.type for piece in model.pieces}
    if (
        not (spec.add_dummy_prefix and spec.remove_extra_whitespaces and spec.escape_whitespaces)
        or model.trainer_spec.model_type != protobuf.TrainerSpec.UNIGRAM
        or model.trainer_spec.treat_whitespace_as_suffix
        or kinds - {_PIECE.NORMAL, _PIECE.CONTROL, _PIECE.UNKNOWN}
    ):
        raise UserError(f"{path}: a SentencePiece model of another kind than is trained here cannot be exported")
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=vocabulary.unk))
    steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    spaces = [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([*steps, *spaces])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    ids = vocabulary.special_ids
    special = [AddedToken(pieces[id][0], lstrip=id == vocabulary.mask, normalized=False, special=True) for id in ids]
    tokenizer.add_special_tokens(special)
    return TokenizerJson(path, json.loads(tokenizer.to_str()))
