"""RoBERTa, XLM-R, CamemBERT, BERT, added tokens, weights in parts: equal ids and logits, in and
out.
"""

import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from torch.testing import assert_close
from transformers import AutoModelForMaskedLM, AutoTokenizer

from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.evaluation import KINDS
from ds_minimodel.evaluation.batches import join, outputs
from ds_minimodel.evaluation.classification import encode_table
from ds_minimodel.evaluation.qa import Question, encode_questions
from ds_minimodel.evaluation.tables import Records
from ds_minimodel.export.folder import export_hf
from ds_minimodel.models.trainable import load_into, to_tensors
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.files import read_json, write_json
from tests.helpers.foreign_models import make_bert
from tests.hf.conftest import varied_lines

from .conftest import ODD_TEXTS, SIZES, TEXTS, randomise, save_task_model
from .refusing import refused

ATOL = 1e-5
# Found before the vocabulary is asked: as it is written, in any case, alone or within a word, with
# the space before it.
ADDED = [
    "Straße",
    AddedToken("boat", single_word=True, normalized=False),
    AddedToken("Größe", normalized=True),
    AddedToken("<e>", lstrip=True, special=True),
    AddedToken("of sea", rstrip=True, normalized=False),
]
WITH_ADDED = [
    "Die Straße ist straße, Straßenbahn; GRÖSSE Größe größe",
    "boat boats, a boat. steamboat",
    "a <e> b<e>c<e><e> of sea  of seals",
    " Straße",
    "<e>",
]


def make_camembert(xlm_r, folder):
    """CamemBERT's folder: the SentencePiece model as it is, whose ids its tokenizer shifts."""
    folder.mkdir()
    shutil.copyfile(xlm_r / "sentencepiece.bpe.model", folder / "sentencepiece.bpe.model")
    vocab_size = len(transformers.CamembertTokenizer.from_pretrained(folder))
    config = transformers.CamembertConfig(
        vocab_size=vocab_size, bos_token_id=5, eos_token_id=6, **SIZES
    )
    randomise(transformers.CamembertForMaskedLM(config)).save_pretrained(folder)
    return folder


def make_camembert_json(xlm_r, folder):
    make_camembert(xlm_r, folder)
    transformers.CamembertTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    return folder


def with_added(source, folder):
    """The same model with ADDED in its tokenizer and rows for them."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForMaskedLM.from_pretrained(source)
    tokenizer.add_tokens(ADDED)
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.save_pretrained(folder)
    randomise(model, seed=3).save_pretrained(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        *(
            "xlm_r",
            "xlm_r_json",
            "roberta",
            "roberta_json",
            "camembert",
            "camembert_json",
            "bert_cased",
        ),
        *("bert_uncased_in_parts", "camembert_added", "xlm_r_added", "roberta_added", "bert_added"),
    ],
)
def base(request, tmp_path_factory):
    """(Hugging Face's folder, ours, what we export of it)."""
    folder = tmp_path_factory.mktemp("bases")
    source = folder / "source"
    get = request.getfixturevalue
    made = {
        "camembert": lambda: make_camembert(get("xlm_r"), source),
        "camembert_json": lambda: make_camembert_json(get("xlm_r"), source),
        "bert_cased": lambda: make_bert(get("text_file"), source, lowercase=False, vocab_txt=True),
        "bert_uncased_in_parts": lambda: make_bert(get("text_file"), source, max_shard_size="20KB"),
        "camembert_added": lambda: with_added(
            make_camembert(get("xlm_r"), source), folder / "added"
        ),
        "xlm_r_added": lambda: with_added(get("xlm_r_json"), folder / "added"),
        "roberta_added": lambda: with_added(get("roberta_json"), folder / "added"),
        "bert_added": lambda: with_added(make_bert(get("text_file"), source), folder / "added"),
    }
    theirs = made[request.param]() if request.param in made else get(request.param)
    refer(theirs, folder / "ours", "fr")
    export_hf(folder / "ours", folder / "exported")
    return theirs, folder / "ours", folder / "exported"


def test_ids_and_token_types(base):
    """Both read the file that is kept, in which no text becomes a special id: not "<e>" either."""
    theirs, ours, exported = base
    old = AutoTokenizer.from_pretrained(theirs, split_special_tokens=True)
    new = AutoTokenizer.from_pretrained(exported, split_special_tokens=True)
    kept = open_tokenizer(ours)
    roles = {"bos": "cls", "eos": "sep", "pad": "pad", "unk": "unk", "mask": "mask"}
    assert kept.vocabulary.special == {
        ours: getattr(old, f"{role}_token_id") for ours, role in roles.items()
    }
    assert old.get_vocab() == new.get_vocab()
    assert len(set(kept.pieces())) == kept.vocabulary.size == len(old)
    (bos,), (eos,) = kept.vocabulary.frame
    lines = [*TEXTS, *ODD_TEXTS, *WITH_ADDED, *varied_lines(2000)]
    for line, ids in zip(lines, kept.encode(lines), strict=True):
        assert [bos, *ids, eos] == old(line)["input_ids"] == new(line)["input_ids"], line
        assert kept.encode_with_offsets(line)[0] == ids
    pair = old("a boat", "sees Straße")
    again = new("a boat", "sees Straße")
    assert pair["input_ids"] == again["input_ids"]
    assert pair.get("token_type_ids") == again.get("token_type_ids")


def test_logits(base):
    """Of padded pairs, with both token types where there are two."""
    theirs, _, exported = base
    tokenizer = AutoTokenizer.from_pretrained(theirs)
    again = AutoTokenizer.from_pretrained(exported)
    masked = f"a {tokenizer.mask_token} b{tokenizer.mask_token}, c</s>"
    assert tokenizer(masked)["input_ids"] == again(masked)["input_ids"]
    before = AutoModelForMaskedLM.from_pretrained(theirs).eval()
    after = AutoModelForMaskedLM.from_pretrained(exported).eval()
    texts = (
        [TEXTS[0][:20], TEXTS[1], "a", TEXTS[3][:9]],
        ["the wind", "b", TEXTS[0][:30], "Straße boat"],
    )
    batch = tokenizer(*texts, return_tensors="pt", padding=True, truncation=True, max_length=60)
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        assert_close(after(**batch).logits[mask], before(**batch).logits[mask], atol=ATOL, rtol=0)


@pytest.fixture(scope="module")
def bert(text_file, tmp_path_factory):
    """(Hugging Face's folder of a BERT, ours)."""
    folder = tmp_path_factory.mktemp("bert")
    refer(make_bert(text_file, folder / "theirs", max_shard_size="20KB"), folder / "ours", "de")
    return folder / "theirs", folder / "ours"


def test_pairs_and_questions_have_both_token_types(bert, tmp_path):
    """The exported model asked with its tokenizer, as people do, answers as ours does."""
    _, ours = bert
    module = save_task_model(ours, "sentence-pair", ["no", "yes"], tmp_path / "pair")
    export_hf(tmp_path / "pair", tmp_path / "pair.hf", ours)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "pair.hf"
    ).eval()
    assert type(model).__name__ == "BertForSequenceClassification"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "pair.hf")
    pairs = list(zip(TEXTS[:4], TEXTS[4:8])) + [
        ("boat " * 40, "the wind"),
        ("a", "the great harbour " * 30),
    ]
    firsts = [pair[0] for pair in pairs]
    seconds = [pair[1] for pair in pairs]
    texts = firsts, seconds
    batch = tokenizer(
        firsts,
        seconds,
        return_tensors="pt",
        padding=True,
        truncation="longest_first",
        max_length=66,
    )
    assert batch["token_type_ids"].sum(1).gt(1).all()
    examples = encode_table(
        open_tokenizer(ours), Records(texts, np.zeros(len(pairs)), ()), 66, separators=1
    )
    with torch.no_grad():
        expected = model(**batch).logits
    for index, logits in outputs(module, examples):
        assert_close(torch.from_numpy(logits), expected[index], atol=ATOL, rtol=0)

    module = save_task_model(ours, "qa", None, tmp_path / "qa")
    export_hf(tmp_path / "qa", tmp_path / "qa.hf", ours)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "qa.hf").eval()
    batch = tokenizer("the wind", "the small boat sees", return_tensors="pt")
    windows = encode_questions(
        open_tokenizer(ours), [Question("1", "the wind", "the small boat sees", ("",), (0,))]
    )
    assert windows.prefix.tolist() == batch["token_type_ids"].argmax(1).tolist()
    with torch.no_grad():
        expected = model(**batch)
    ((_, (logits,)),) = outputs(module, windows.examples)
    expected = torch.stack((expected.start_logits[0], expected.end_logits[0]), -1)
    assert_close(torch.from_numpy(logits), expected, atol=ATOL, rtol=0)


def test_finetuning_trains_both_token_types(bert):
    """With the padding left out and with it: the same gradients, and none where a text stands
    alone.
    """
    body, pack = load_model(bert[1])
    module = (
        KINDS["sentence-pair"]
        .module(body.config, len(pack.embeddings["tokens"]), ["no", "yes"])
        .eval()
    )
    load_into(
        module,
        {key: body.tensors[key] for key in body.tensors if not key.startswith("heads.")},
        "body.",
    )
    load_into(module, pack.embeddings, "pack.")
    rows = [np.array([0, 7, 8, 2, 9, 2]), np.array([0, 7, 2, *range(20, 40), 2])]

    def gradient(second, packed):
        batch = to_tensors(
            join(rows, [0, 1], reads_start=True, second=second).batch(np.arange(2), [1, 2])
        )
        module.zero_grad()
        module(
            {key: value for key, value in batch.items() if packed or key != "token_index"}
        ).sum().backward()
        return module.body.types.grad.clone()

    both = gradient([4, 3], packed=True)
    assert both.abs().sum(1).gt(0).all()
    assert_close(gradient([4, 3], packed=False), both)
    assert gradient(None, packed=True)[1].eq(0).all()
    assert gradient(None, packed=True)[0].ne(0).any()


@pytest.mark.parametrize(
    "name, prefix", [("pytorch_model.bin", "bert."), ("model.safetensors", "")]
)
def test_the_names_that_the_first_berts_have(bert, tmp_path, name, prefix):
    """LayerNorm.gamma and .beta, positions, the head of sentence pairs, the pooler: of bert-base's
    own files.
    """
    theirs, ours = bert
    folder = shutil.copytree(
        theirs, tmp_path / "hf", ignore=shutil.ignore_patterns("*.safetensors*")
    )
    tensors = {
        name: tensor
        for path in theirs.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    tensors |= {
        "bert.embeddings.position_ids": torch.arange(66)[None],
        "bert.pooler.LayerNorm.gamma": torch.zeros(16),
    }
    old = {"cls.seq_relationship.weight": torch.zeros(2, 16)}
    for known, tensor in tensors.items():
        known = known.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )
        old[known.replace("bert.", prefix, 1)] = tensor
    stem, _, suffix = name.partition(".")
    halves = {f"{stem}-{number}.{suffix}": dict([*old.items()][number::2]) for number in (0, 1)}
    for part, half in halves.items():
        (torch.save if suffix == "bin" else save_file)(half, folder / part)
    weight_map = {known: part for part, half in halves.items() for known in half}
    write_json(folder / f"{name}.index.json", {"metadata": {}, "weight_map": weight_map})
    refer(folder, tmp_path / "ours")
    for one, other in zip(load_model(tmp_path / "ours"), load_model(ours)):
        one = dict(getattr(one, "tensors", None) or one.embeddings)
        other = dict(getattr(other, "tensors", None) or other.embeddings)
        assert_close(one, other, atol=0, rtol=0)


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "what, words",
    [
        ("outside", "no name below the folder"),
        ("missing", "no such file"),
        ("long", "no name below the folder"),
        ("nothing", "weight_map"),
    ],
)
def test_damaged_parts(bert, tmp_path, what, words):
    folder = shutil.copytree(bert[0], tmp_path / "hf")
    index = read_json(folder / INDEX)
    name, part = next(iter(index["weight_map"].items()))
    (folder / part).rename(tmp_path / "x")
    if what == "outside":
        index["weight_map"][name] = "../x"
    elif what == "long":
        index["weight_map"][name] = "x" * 5000
    elif what == "nothing":
        index["weight_map"] = {}
    write_json(folder / INDEX, index)
    refused(folder, tmp_path / "out", words)


def test_two_token_types_of_a_roberta(roberta, tmp_path):
    """transformers' default; its tokenizers give no type but the first, whose vector goes into the
    positions.
    """
    config = transformers.RobertaConfig.from_pretrained(roberta, type_vocab_size=2)
    model = randomise(transformers.RobertaForMaskedLM(config))
    with torch.no_grad():
        model.roberta.embeddings.token_type_embeddings.weight.normal_()
    folder = shutil.copytree(roberta, tmp_path / "hf")
    model.save_pretrained(folder)
    refer(folder, tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "out")
    after = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    tokens = torch.arange(4, 40)[None]
    with torch.no_grad():
        assert_close(after(tokens).logits, model(tokens).logits, atol=1e-4, rtol=0)
