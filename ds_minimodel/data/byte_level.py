"""RoBERTa's byte-level BPE. In its file a piece is a string of stand-ins for bytes, one character each."""

import os

import tokenizers

from ds_minimodel.data import UNK
from ds_minimodel.data.tokenizer import BYTE_LEVEL_FILE, MASK, Tokenizer

_SPECIAL = {"<s>", "<pad>", "</s>", "<unk>", MASK}


def _byte_of_character():
    """GPT-2's stand-ins: a printable Latin-1 character for its own byte, U+0100 … for the others in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {**{chr(byte): byte for byte in printable},
            **{chr(0x100 + number): byte for number, byte in enumerate(others)}}


BYTE_OF_CHARACTER = _byte_of_character()


class ByteLevelTokenizer(Tokenizer):
    file_name = BYTE_LEVEL_FILE

    def __init__(self, folder):
        super().__init__(folder)
        # One thread, as SentencePiece's here: text is prepared by as many processes as there are cores.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(self.path))
        self._tokenizer.encode_special_tokens = True        # "<s>" in text is three characters
        self.vocab_size = self._tokenizer.get_vocab_size()
        self.mask_id = self.vocab_size - 1

    def encode(self, texts):
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text):
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = []
        for start, end in encoding.offsets:
            while start < end and text[start].isspace():
                start += 1
            spans.append((start, end))
        return encoding.ids, spans

    def decode(self, ids):
        # Halves of characters show as �.
        return self._tokenizer.decode([int(id) for id in ids if UNK < id < self.mask_id])

    def pieces(self):
        strings = map(self._tokenizer.id_to_token, range(self.vocab_size))
        return [string if string in _SPECIAL else _spell(string) for string in strings]


def _spell(piece):
    """Text of a piece; one that is no whole number of characters is spelt by its bytes: <0xE2><0x82>."""
    data = bytes(BYTE_OF_CHARACTER[character] for character in piece)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or "▁" in text:
        return "".join(f"<0x{byte:02X}>" for byte in data)
    return text.replace(" ", "▁")
