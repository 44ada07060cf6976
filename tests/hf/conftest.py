"""Small Hugging Face checkpoints made on the spot, and vocabularies trained on text in several
scripts.
"""

import json
import random

import pytest
import torch
import transformers
from sentencepiece import sentencepiece_model_pb2 as protobuf
from tokenizers import ByteLevelBPETokenizer

from ds_minimodel.artifacts.models import BodyArtifact, load_model, save_body
from ds_minimodel.evaluation import KINDS
from ds_minimodel.models.trainable import load_into
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer
from tests.helpers.files import write_json

TEXTS = [
    "The small boat sees the great harbour, and the wind is new.",
    "Straße, Größe und Übermut: schöne Wörter! Él dijo «sí» mañana.",
    "Tiếng Việt có nhiều dấu thanh khác nhau.",
    "Маленькая лодка видит большую гавань; ветер свежий?",
    "Το μικρό καράβι βλέπει το μεγάλο λιμάνι.",
    "东京和北京都是很大的城市。小船看见大港口，风很新。",
    "小さな船は大きな港を見る。カタカナとｶﾀｶﾅ。",
    "작은 배가 큰 항구를 봅니다.",
    "القارب الصغير يرى الميناء الكبير، السَّلامُ عَلَيْكُمْ",
    "छोटी नाव बड़े बंदरगाह को देखती है।",
    "เรือเล็กเห็นท่าเรือใหญ่",
    "סירה קטנה רואה נמל גדול",
]
# What a normaliser may stumble over; the rest is unknown to the vocabularies.
ODD_TEXTS = [
    "",
    "   ",
    " a  b ",
    "tab\there\r\nand\u2028there",
    "ﬁne ½ ① ㎏ ™ ａｂｃ\u3000ｄ",
    "zero\u200bwidth",
]
ODD_TEXTS += ["a\u0085 b\u0085", "cafe\u0301 e\u0301", "😀 👨‍👩‍👧 ⚠️", "▁under▁", "ꙮ☃☃ ꙮ"]

VOCAB_SIZE = 260


def write_text(path):
    """Lines of the words of TEXTS in random order."""
    draw = random.Random(0)
    lines = []
    for text in TEXTS:
        words = text.split()
        lines += [" ".join(draw.choices(words, k=len(words))) for _ in range(40)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="session")
def unigram_folder(text_file, tmp_path_factory):
    return make_unigram(text_file, tmp_path_factory.mktemp("tokenizer") / "tokenizer")


def make_unigram(text_file, folder):
    """A tokenizer of ours."""
    train_tokenizer([text_file], folder, VOCAB_SIZE, character_coverage=1.0, input_sentences=5000)
    return folder


def randomise(model, seed=0):
    """Weights as large as trained ones, biases and norms too; token types 0, as fairseq's RoBERTa
    leaves them.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = name.endswith(("LayerNorm.weight", "layer_norm.weight", "norm.weight"))
            parameter.normal_(1.0 if norm else 0.0, 0.2, generator=generator)
            if "token_type" in name:
                parameter.zero_()
    return model.eval()


SIZES: dict = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24)
SIZES |= dict(max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5)


def _write_model(folder, theirs, config, vocab_size, **settings):
    model = randomise(theirs(config(vocab_size=vocab_size, **SIZES, **settings)))
    model.save_pretrained(folder)
    return folder


def make_xlm_r(unigram_folder, folder):
    """An XLM-R checkpoint with its sentencepiece.bpe.model."""
    ours = protobuf.ModelProto.FromString((unigram_folder / "tokenizer.model").read_bytes())
    theirs = protobuf.ModelProto(
        trainer_spec=ours.trainer_spec, normalizer_spec=ours.normalizer_spec
    )
    for id in (
        3,
        0,
        2,
        *range(4, len(ours.pieces) - 1),
    ):  # <unk> <s> </s>, and neither <pad> nor <mask>
        theirs.pieces.add().CopyFrom(ours.pieces[id])
    _write_model(
        folder, transformers.XLMRobertaForMaskedLM, transformers.XLMRobertaConfig, len(ours.pieces)
    )
    (folder / "sentencepiece.bpe.model").write_bytes(theirs.SerializeToString())
    return folder


def make_xlm_r_json(xlm_r, folder):
    """The same with the tokenizer.json that transformers writes, and the weights as a pickle."""
    model = transformers.XLMRobertaForMaskedLM.from_pretrained(xlm_r)
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    transformers.XLMRobertaTokenizer.from_pretrained(xlm_r).save_pretrained(folder)
    return folder


def _byte_level(text_file, special_tokens):
    trained = ByteLevelBPETokenizer()
    trained.train(
        [str(text_file)], vocab_size=400, special_tokens=special_tokens, show_progress=False
    )
    trained.add_special_tokens(["<mask>"])
    return trained


def make_roberta(text_file, folder):
    """A RoBERTa checkpoint with vocab.json and merges.txt in fairseq's order."""
    tokenizer = _byte_level(text_file, ["<s>", "<pad>", "</s>", "<unk>"])
    _write_model(
        folder,
        transformers.RobertaForMaskedLM,
        transformers.RobertaConfig,
        tokenizer.get_vocab_size(),
    )
    tokenizer.save_model(str(folder))
    write_json(folder / "vocab.json", tokenizer.get_vocab())
    return folder


def make_roberta_json(text_file, folder):
    """A RoBERTa checkpoint as people train them with Hugging Face: tokenizer.json with <mask> at id
    4.
    """
    tokenizer = _byte_level(text_file, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    _write_model(
        folder,
        transformers.RobertaForMaskedLM,
        transformers.RobertaConfig,
        tokenizer.get_vocab_size(),
    )
    merges = [tuple(pair) for pair in json.loads(tokenizer._tokenizer.to_str())["model"]["merges"]]
    transformers.RobertaTokenizer(tokenizer.get_vocab(), merges).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def xlm_r(unigram_folder, tmp_path_factory):
    return make_xlm_r(unigram_folder, tmp_path_factory.mktemp("hf") / "xlm-r")


@pytest.fixture(scope="session")
def xlm_r_json(xlm_r, tmp_path_factory):
    return make_xlm_r_json(xlm_r, tmp_path_factory.mktemp("hf") / "xlm-r-json")


@pytest.fixture(scope="session")
def roberta(text_file, tmp_path_factory):
    return make_roberta(text_file, tmp_path_factory.mktemp("hf") / "roberta")


@pytest.fixture(scope="session")
def roberta_json(text_file, tmp_path_factory):
    return make_roberta_json(text_file, tmp_path_factory.mktemp("hf") / "roberta-json")


def save_task_model(ours, kind, labels, folder, config=None, name="t"):
    """Write a task model of random weights over the model `ours` -> its module, with that model's
    language.
    """
    body, pack = load_model(ours)
    module = randomise(
        KINDS[kind].module(config or body.config, len(pack.embeddings["tokens"]), labels), seed=5
    )
    tensors = {
        name: tensor for name, tensor in module.state_dict().items() if not name.startswith("pack.")
    }
    task = {"name": name, "kind": kind, "labels": labels}
    artifact = BodyArtifact(module.body.config, module.body.head_depths, tensors, body.space, task)
    save_body(folder, artifact, "task-model", ours)
    load_into(module, pack.embeddings, "pack.")
    return module


def varied_lines(number):
    """Lines of words in several scripts, with white space, punctuation and digits of all kinds
    between them.
    """
    draw = random.Random(5)
    words = " ".join(TEXTS).split()
    between = [
        " ",
        "  ",
        "\t",
        "\u00a0",
        "\u3000",
        "-",
        "…",
        "(",
        "12,5",
        "'s",
        "…",
        "I'll",
        "....",
        "aaaa",
    ]
    return [
        "".join(draw.choice(words) + draw.choice(between) for _ in range(draw.randint(1, 12)))
        for _ in range(number)
    ]
