"""Small RoBERTas, bare or under masked language modelling."""

from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.roberta import RobertaConfig
from ds_minimodel.models.trainable import LanguageModel

MASKED_LM = OBJECTIVES["masked-lm"]
# The id of <pad> in what is trained here, from which the positions of Hugging Face's RoBERTa count
PAD = 1


def roberta(
    num_layers, hidden_size, num_heads, ffn_size, max_positions, dropout=0.1, attention_dropout=0.1
):
    sizes = dict(
        num_layers=num_layers, hidden_size=hidden_size, num_heads=num_heads, ffn_size=ffn_size
    )
    rates = dict(dropout=dropout, attention_dropout=attention_dropout)
    return RobertaConfig(**sizes, **rates, max_positions=max_positions)


def masked_lm(config, vocab_size, *head_depths):
    """A LanguageModel of a configuration with heads after `head_depths` layers, by default after
    the last.
    """
    return LanguageModel(config, vocab_size, head_depths or (config.num_layers,))
