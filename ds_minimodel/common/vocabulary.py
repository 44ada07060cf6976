"""The special tokens of every vocabulary: their ids, in fairseq's order, and their spellings.

Ids 0 to 3 are <s> <pad> </s> <unk>, the pieces of text follow, and <mask> has the last id.
"""

BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # spellings of the ids above
NUM_SPECIAL = len(SPECIAL)  # also the first id of a piece of text
MASK = "<mask>"

# Target that gives no loss: of a position that is not predicted, or of a whole example. csrc/arguments.h: kIgnored.
IGNORED = -100

UNKNOWN_LANGUAGE = "und"  # ISO 639-2: undetermined


def mask_id(vocab_size: int) -> int:
    """Id of <mask> in a vocabulary of `vocab_size` ids."""
    return vocab_size - 1


def special_ids(vocab_size: int) -> list[int]:
    """Ids of the five special tokens in a vocabulary of `vocab_size` ids."""
    return [*range(NUM_SPECIAL), mask_id(vocab_size)]
