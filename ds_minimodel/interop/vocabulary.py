"""Tokenizer files of a Hugging Face folder, read into a pack's and written out of it."""

import json

from tokenizers import Tokenizer, processors

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.common.vocabulary import BOS, EOS, MASK
from ds_minimodel.data.tokenizer import BYTE_LEVEL_FILE, UNIGRAM_FILE
from ds_minimodel.interop import byte_level, unigram
from ds_minimodel.interop.imported import Vocabulary

SENTENCEPIECE_FILE = "sentencepiece.bpe.model"


def read_vocabulary(folder):
    """The Vocabulary of a Hugging Face folder; UserError where it has none or one that is not supported."""
    path = folder / SENTENCEPIECE_FILE
    if path.is_file():
        return Vocabulary(UNIGRAM_FILE, *unigram.from_sentencepiece(path.read_bytes(), path))
    path = folder / BYTE_LEVEL_FILE
    if path.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises nothing narrower
            raise UserError(f"{path}: not a tokenizer ({error})") from None
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        tokenizer, path = byte_level.from_vocabulary(folder), folder / "vocab.json"
    else:
        raise UserError(
            f"{folder}: no tokenizer; it must hold {SENTENCEPIECE_FILE}, {BYTE_LEVEL_FILE}, or "
            "vocab.json and merges.txt"
        )
    content = json.loads(tokenizer.to_str())
    kind = content["model"]["type"]
    if kind == "Unigram":
        return Vocabulary(UNIGRAM_FILE, *unigram.from_tokenizer_json(content, path))
    if kind == "BPE":
        return Vocabulary(BYTE_LEVEL_FILE, *byte_level.in_our_order(content, path))
    raise UserError(f"{path}: a {kind} vocabulary; import-hf takes XLM-R's unigram and RoBERTa's byte-level BPE")


def tokenizer_of_pack(pack):
    """The vocabulary of a language pack as a `tokenizers.Tokenizer`, with <s> and </s> put around texts."""
    path = pack / BYTE_LEVEL_FILE
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
    else:
        path = pack / UNIGRAM_FILE
        tokenizer = unigram.to_hugging_face(path.read_bytes(), path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return tokenizer


def write_tokenizer(folder, tokenizer, max_positions):
    """Write what `AutoTokenizer` reads; texts are cut at `max_positions` ids where a user asks for it."""
    (folder / BYTE_LEVEL_FILE).write_text(tokenizer.to_str(), encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_positions,
            "bos_token": "<s>",
            "cls_token": "<s>",
            "eos_token": "</s>",
            "sep_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "mask_token": MASK,
            "model_input_names": ["input_ids", "attention_mask"],
        },
    )
