"""RoBERTa's byte-level BPE as Hugging Face writes it, as data/byte_level.py reads it."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import MASK
from ds_minimodel.data.tokenizer import BYTE_OF_CHARACTER
from ds_minimodel.interop.special import FIRST, add_special_tokens, our_order


def from_vocabulary(folder):
    """The tokenizer of vocab.json and merges.txt, as RoBERTa's class builds it."""
    config = folder / "tokenizer_config.json"
    prefix = config.is_file() and files.read_json(config).get("add_prefix_space", False)
    return from_merges(files.read_json(folder / "vocab.json"), folder / "merges.txt", bool(prefix))


def from_merges(vocab, path, add_prefix_space=False):
    """The tokenizer of {string: id} and a file of merges, one pair a line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    except Exception as error:  # the Rust library raises nothing narrower
        raise UserError(f"{path}: missing, damaged or of another vocabulary ({error})") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    return tokenizer


def in_our_order(content, where):
    """(a byte-level BPE's tokenizer.json with our order of ids: bytes, the old ids in that order).

    Raises UserError where it is not as RoBERTa's: a normaliser, another splitter, pieces that are not bytes.
    """
    model, splitter = content["model"], content["pre_tokenizer"] or {}
    if content["normalizer"] or splitter.get("type") != "ByteLevel" or not splitter["use_regex"]:
        raise UserError(f"{where}: not a byte-level BPE like RoBERTa's")
    ids = model["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    order = our_order(ids, where)
    strings = {id: string for string, id in ids.items()}
    for id in order[len(FIRST) : -1]:
        if not BYTE_OF_CHARACTER.keys() >= set(strings[id]):
            raise UserError(f"{where}: {strings[id]!r} is not a piece of a byte-level BPE")
    new = {
        **content,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": {**model, "vocab": {strings[id]: number for number, id in enumerate(order)}},
    }
    tokenizer = Tokenizer.from_str(json.dumps(new, ensure_ascii=False))
    tokenizer.decoder = decoders.ByteLevel()
    takes_space = {token["content"]: token["lstrip"] for token in content["added_tokens"]}
    return add_special_tokens(tokenizer, takes_space.get(MASK, True)).to_str().encode(), order
