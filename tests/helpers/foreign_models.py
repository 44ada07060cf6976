"""Tiny models of Hugging Face's classes, with tokenizers like published ones."""

import torch
import transformers
from tokenizers import (
    BertWordPieceTokenizer,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoConfig, AutoModelForMaskedLM, LlamaForCausalLM

from tests.helpers.files import write_json
from tests.hf.conftest import SIZES, randomise

BEGIN = "<|begin|>"
END = "<|end|>"


def save_llama(text_file, folder, single, *, tied=True, template=None):
    """A Llama with digits as SmolLM2's, whose tokenizer puts texts as `single` has them. template:
    of chats.
    """
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=[END, BEGIN], initial_alphabet=alphabet
    )
    tokenizer.train([str(text_file)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(END, 0), (BEGIN, 1)]
    )
    settings = dict(bos_token=BEGIN, eos_token=END, chat_template=template)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(
        folder
    )
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.LlamaConfig(
        vocab_size=330, max_position_embeddings=64, tie_word_embeddings=tied, **sizes
    )
    randomise(LlamaForCausalLM(config)).save_pretrained(folder)
    return folder


BERT_SIZES = {**SIZES, "type_vocab_size": 2, "layer_norm_eps": 1e-12}


def make_bert(text_file, folder, *, lowercase=True, vocab_txt=False, **saving):
    """A BERT with [PAD] at id 0 and [MASK] at 4, as Google's."""
    trained = BertWordPieceTokenizer(lowercase=lowercase)
    trained.train([str(text_file)], vocab_size=340, show_progress=False)
    folder.mkdir()
    trained.save_model(str(folder))
    if vocab_txt:
        write_json(folder / "tokenizer_config.json", {"do_lower_case": lowercase})
    else:
        transformers.BertTokenizer(
            str(folder / "vocab.txt"), do_lower_case=lowercase
        ).save_pretrained(folder)
    config = transformers.BertConfig(vocab_size=trained.get_vocab_size(), **BERT_SIZES)
    model = randomise(transformers.BertForMaskedLM(config))
    with torch.no_grad():
        model.bert.embeddings.token_type_embeddings.weight.normal_(0, 0.5)
    model.save_pretrained(folder, **saving)
    return folder


FAMILIES = {
    "modernbert": {"num_hidden_layers": 5, "local_attention": 12},
    "eurobert": {"num_hidden_layers": 2, "num_key_value_heads": 1},
}
SPECIAL = "[UNK] [CLS] [SEP] [PAD] [MASK]".split()


def save_modernbert(text_file, folder, family="modernbert"):
    """A model of the family with a tokenizer as the published one's, trained on a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    tokenizer.train([str(text_file)], trainers.BpeTrainer(vocab_size=330, **options))
    tokenizer.add_special_tokens(SPECIAL)
    save_model(folder, tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", SPECIAL, family)


def save_model(folder, tokenizer, single, pair, special, family="modernbert"):
    """A model with this tokenizer, in which a text and a pair stand so. special: unk, cls, sep,
    pad, mask.
    """
    ids = {token: tokenizer.token_to_id(token) for token in special}
    framing = [(token, ids[token]) for token in special[1:3]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=framing
    )
    named = dict(zip(("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), special))
    inputs = ["input_ids", "attention_mask"]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=inputs, **named
    )
    fast.save_pretrained(folder)
    roles = ("cls", "bos"), ("sep", "eos"), ("pad",), ("mask",)
    numbers = {
        f"{role}_token_id": ids[token] for both, token in zip(roles, special[1:]) for role in both
    }
    sizes = dict(
        hidden_size=16, intermediate_size=24, num_attention_heads=2, max_position_embeddings=64
    )
    of_family = FAMILIES[family] | {"vocab_size": tokenizer.get_vocab_size() + 7}
    config = AutoConfig.for_model(family, **sizes, **of_family, **numbers)
    randomise(AutoModelForMaskedLM.from_config(config)).save_pretrained(
        folder, max_shard_size="20KB"
    )
