"""What every vocabulary shares: the ids of the special tokens, in fairseq's order, and their spellings.

<mask> is the last id of a vocabulary; the pieces of text lie between.
"""

BOS, PAD, EOS, UNK = 0, 1, 2, 3  # <s> <pad> </s> <unk>
NUM_SPECIAL = 4  # the first id of a piece of text
MASK = "<mask>"

IGNORED = -100  # target of a place that is not read, and of a row that gives no loss

UNKNOWN_LANGUAGE = "und"  # ISO 639-2: undetermined
