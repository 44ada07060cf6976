"""The five special tokens, which every vocabulary here has at fairseq's ids."""

from tokenizers import AddedToken

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import MASK

FIRST = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3; <mask> has the last


def our_order(ids, where):
    """Ids of a Hugging Face vocabulary in the order of ours: the first four, the pieces, <mask>.

    ids: {string: id}, all of it. Raises UserError where a special token is missing or ids are not 0 … n-1.
    """
    for token in (*FIRST, MASK):
        if token not in ids:
            raise UserError(f"{where}: no {token} in the vocabulary; it must have the tokens of RoBERTa")
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{where}: the ids are not 0 … {len(ids) - 1}, each once")
    special = {ids[token] for token in (*FIRST, MASK)}
    return [*(ids[token] for token in FIRST), *(id for id in range(len(ids)) if id not in special), ids[MASK]]


def add_special_tokens(tokenizer, mask_takes_space=True):
    """Let a Hugging Face tokenizer whose model has the special tokens find them in text.

    mask_takes_space: <mask> takes the white space before it, as in the published RoBERTa and XLM-R.
    """
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in FIRST])
    tokenizer.add_special_tokens([AddedToken(MASK, special=True, normalized=False, lstrip=mask_takes_space)])
    return tokenizer
