"""One language's vocabulary, whatever it is made of: the interface, and the reader of both kinds."""

from abc import ABC, abstractmethod
from pathlib import Path

from ds_minimodel import files
from ds_minimodel.errors import UserError

MASK = "<mask>"
UNIGRAM_FILE = "tokenizer.model"
BYTE_LEVEL_FILE = "tokenizer.json"


def open_tokenizer(folder):
    """The vocabulary in a folder (a tokenizer or a language pack); UserError where there is none."""
    held = files.read_manifest(folder)["files"]
    if UNIGRAM_FILE in held:
        from ds_minimodel.data.unigram import UnigramTokenizer
        return UnigramTokenizer(folder)
    if BYTE_LEVEL_FILE in held:
        from ds_minimodel.data.byte_level import ByteLevelTokenizer
        return ByteLevelTokenizer(folder)
    raise UserError(f"{folder}: holds neither {UNIGRAM_FILE} nor {BYTE_LEVEL_FILE}; it is not a tokenizer or "
                    "a language pack")


class Tokenizer(ABC):
    """A vocabulary: <s> 0, <pad> 1, </s> 2, <unk> 3, the pieces of text, <mask> last.

    vocab_size: the number of ids. mask_id: vocab_size - 1. sha256: of the vocabulary's file. No text can
    become a special id: "<s>" or "<mask>" in it are ordinary characters.
    """
    file_name: str
    vocab_size: int
    mask_id: int

    def __init__(self, folder):
        """UserError where the file in `folder` is not the one that its manifest names."""
        self.path = Path(folder) / self.file_name
        facts = files.read_manifest(folder)["files"].get(self.file_name)
        if facts is None:
            raise UserError(f"{self.path}: no such file; {folder} holds another kind of vocabulary or none")
        self.sha256 = files.sha256_of_file(self.path)
        if self.sha256 != facts["sha256"]:
            raise UserError(f"{self.path}: damaged (its SHA-256 is not the one in the manifest); "
                            "delete the folder and make it again")

    @abstractmethod
    def encode(self, texts):
        """Ids of each text, a list of lists; nothing is put before or after them."""

    @abstractmethod
    def encode_with_offsets(self, text):
        """Ids of one text and, for each, the (start, end) of its characters in `text` as given.

        White space before a word belongs to no piece; pieces that one character is made of share it.
        """

    @abstractmethod
    def decode(self, ids):
        """Text of ids; <s>, <pad>, </s> and <mask> are left out."""

    @abstractmethod
    def pieces(self):
        """The string of each id, vocab_size in all, each different: text, with ▁ for a space.

        Both kinds spell alike, so that the pieces that two vocabularies share are found by their strings.
        """
