"""RoBERTa's byte-level BPE: a pack's vocabulary in tokenizer.json, used like data.tokenizer.Tokenizer.

In such a vocabulary a piece is a string of stand-ins for bytes: one character for each of the 256 bytes.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ds_minimodel import files
from ds_minimodel.data import UNK
from ds_minimodel.data.tokenizer import MASK
from ds_minimodel.errors import UserError
from ds_minimodel.interop.special import FIRST, add_special_tokens, our_order

JSON_FILE = "tokenizer.json"


def _byte_of_character():
    """GPT-2's stand-ins: a printable Latin-1 character for its own byte, U+0100 … for the others in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {**{chr(byte): byte for byte in printable},
            **{chr(0x100 + number): byte for number, byte in enumerate(others)}}


_BYTE = _byte_of_character()


class ByteLevelTokenizer:
    """A byte-level BPE from a folder that holds tokenizer.json. No text can become a special id."""

    def __init__(self, folder):
        manifest = files.read_manifest(folder)
        path = Path(folder) / JSON_FILE
        if JSON_FILE not in manifest["files"]:
            raise UserError(f"{path}: no such file; {folder} is not a language pack with a "
                            "byte-level vocabulary")
        self.sha256 = files.sha256_of_file(path)
        if self.sha256 != manifest["files"][JSON_FILE]["sha256"]:
            raise UserError(f"{path}: damaged (its SHA-256 is not the one in the manifest); "
                            "import the checkpoint again")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = True        # "<s>" in text is three characters
        self.vocab_size = self._tokenizer.get_vocab_size()
        self.mask_id = self.vocab_size - 1

    def encode(self, texts):
        """Ids of each text, a list of lists; nothing is put before or after them."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text):
        """Ids of one text and, for each, the (start, end) of its characters in `text`.

        White space before a word belongs to no piece; pieces that one character is made of share it.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = []
        for start, end in encoding.offsets:
            while start < end and text[start].isspace():
                start += 1
            spans.append((start, end))
        return encoding.ids, spans

    def decode(self, ids):
        """Text of ids; <s>, <pad>, </s>, <unk> and <mask> are left out, halves of characters show as �."""
        return self._tokenizer.decode([int(id) for id in ids if UNK < id < self.mask_id])

    def pieces(self):
        """The string of each id, vocab_size in all, each different; spelt as SentencePiece spells them.

        Text, ▁ for a space; a piece that is no whole number of characters by its bytes: <0xE2><0x82>. So the
        pieces that a SentencePiece vocabulary shares are found by their strings.
        """
        strings = map(self._tokenizer.id_to_token, range(self.vocab_size))
        return [string if string in FIRST or string == MASK else _spell(string) for string in strings]


def _spell(piece):
    data = bytes(_BYTE[character] for character in piece)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or "▁" in text:
        return "".join(f"<0x{byte:02X}>" for byte in data)
    return text.replace(" ", "▁")


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
    except Exception as error:          # the Rust library raises nothing narrower
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
    for id in order[len(FIRST):-1]:
        if not _BYTE.keys() >= set(strings[id]):
            raise UserError(f"{where}: {strings[id]!r} is not a piece of a byte-level BPE")
    new = {**content, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None,
           "model": {**model, "vocab": {strings[id]: number for number, id in enumerate(order)}}}
    tokenizer = Tokenizer.from_str(json.dumps(new, ensure_ascii=False))
    tokenizer.decoder = decoders.ByteLevel()
    takes_space = {token["content"]: token["lstrip"] for token in content["added_tokens"]}
    return add_special_tokens(tokenizer, takes_space.get(MASK, True)).to_str().encode(), order
