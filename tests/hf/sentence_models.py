"""Tiny models of sentence-transformers and tiny classifiers, made on the spot."""

import shutil

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from tests.helpers.foreign_models import make_bert, save_modernbert

from .conftest import SIZES, make_roberta, make_xlm_r, randomise


def save_sentence_model(source, folder, pooling="mean", dense=None, *, normalise=True, **settings):
    """Write a model over the encoder in `source` as sentence-transformers does.

    dense: outputs of a projection, tanh behind it. settings: of its Transformer.
    """
    transformer = modules.Transformer(str(source), **settings)
    parts = [transformer, modules.Pooling(SIZES["hidden_size"], pooling)]
    if dense is not None:
        torch.manual_seed(0)
        parts.append(modules.Dense(SIZES["hidden_size"], dense))
    if normalise:
        parts.append(modules.Normalize())
    SentenceTransformer(modules=parts).save(str(folder), create_model_card=False)
    return folder


CLASSES = {
    "bert-uncased": transformers.BertForSequenceClassification,
    "distilbert": transformers.DistilBertForSequenceClassification,
    "roberta": transformers.RobertaForSequenceClassification,
    "xlm-r": transformers.XLMRobertaForSequenceClassification,
    "modernbert": transformers.ModernBertForSequenceClassification,
}


def save_classifier(source, folder, family, labels=3, **settings):
    """Write a classifier of random weights over the encoder in `source`. settings: of its
    configuration.
    """
    weights = shutil.ignore_patterns("*.safetensors", "*.index.json", "pytorch_model.bin")
    shutil.copytree(source, folder, ignore=weights)
    config = transformers.AutoConfig.from_pretrained(source, num_labels=labels, **settings)
    model = randomise(CLASSES[family](config), seed=2)
    model.save_pretrained(folder)
    return folder


def make_encoder(family, text_file, unigram_folder, folder):
    """Write a tiny encoder with a masked head and a tokenizer."""
    match family:
        case "bert-uncased" | "bert-cased":
            make_bert(text_file, folder, lowercase=family == "bert-uncased")
        case "distilbert":
            make_bert(text_file, folder)
            vocab_size = transformers.BertConfig.from_pretrained(folder).vocab_size
            config = transformers.DistilBertConfig(
                vocab_size=vocab_size,
                max_position_embeddings=66,
                n_layers=3,
                n_heads=2,
                dim=16,
                hidden_dim=24,
            )
            randomise(transformers.DistilBertForMaskedLM(config)).save_pretrained(folder)
        case "roberta":
            folder.mkdir()
            make_roberta(text_file, folder)
        case "xlm-r":
            make_xlm_r(unigram_folder, folder)
        case "modernbert":
            save_modernbert(text_file, folder)
    return folder
