"""Text and task data: from raw files to batches.

The ids that every vocabulary shares, in fairseq's order. <mask> is the last id of a vocabulary.
"""

BOS, PAD, EOS, UNK = 0, 1, 2, 3      # <s> <pad> </s> <unk>
NUM_SPECIAL = 4                      # the first id of a piece of text

IGNORED = -100                       # target of a place that is not read, and of a row that gives no loss
