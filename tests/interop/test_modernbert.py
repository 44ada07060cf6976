"""ModernBERT: an import and its exports answer as Hugging Face's library does, with the base's own tokenizer."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForMaskedLM, AutoTokenizer, ModernBertConfig, ModernBertForMaskedLM

from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.interop.hugging_face import export_hf, import_hf
from ds_minimodel.model.artifacts import BodyArtifact, load_body, load_pack, save_body
from ds_minimodel.model.mini import tensors_of
from ds_minimodel.model.parameters import load_into
from ds_minimodel.serve.predictor import Predictor
from ds_minimodel.tasks import KINDS

from .conftest import ODD_TEXTS, TEXTS, randomise
from .test_hugging_face import varied_lines

SPECIAL = "[UNK] [CLS] [SEP] [PAD] [MASK]".split()


@pytest.fixture(scope="module")
def base(text_file, tmp_path_factory):
    """(Hugging Face's folder, ours): special tokens behind the pieces, and more rows than ids."""
    folder = tmp_path_factory.mktemp("modernbert")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(
        [str(text_file)], trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(SPECIAL)
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    named = dict(zip(("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), SPECIAL))
    inputs = ["input_ids", "attention_mask"]
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **named)
    fast.save_pretrained(folder / "theirs")
    numbers = {"pad_token_id": ids["[PAD]"], "cls_token_id": ids["[CLS]"], "sep_token_id": ids["[SEP]"]}
    config = ModernBertConfig(
        vocab_size=tokenizer.get_vocab_size() + 7,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=5,
        num_attention_heads=2,
        max_position_embeddings=64,
        local_attention=12,
        **numbers,
    )
    randomise(ModernBertForMaskedLM(config)).save_pretrained(folder / "theirs", max_shard_size="20KB")
    import_hf(folder / "theirs", folder / "ours", "en")
    return folder / "theirs", folder / "ours"


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits[batch["attention_mask"].bool()]


def test_what_is_exported_is_what_was_imported(base, tmp_path):
    theirs, ours = base
    export_hf(ours / "body", tmp_path / "out")
    before, after = (AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (theirs, tmp_path / "out"))
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (theirs, tmp_path / "out"))
    texts = [*TEXTS[:6], "the [MASK] sees", "a" * 100]
    batch, again = (
        each(texts, padding=True, truncation=True, max_length=60, return_tensors="pt") for each in (old, new)
    )
    assert batch["input_ids"].equal(again["input_ids"]) and type(after).__name__ == "ModernBertForMaskedLM"
    torch.testing.assert_close(logits(after, again), logits(before, batch), atol=0, rtol=0)


def test_its_own_tokenizer_is_kept(base):
    theirs, ours = base
    expected, tokenizer = AutoTokenizer.from_pretrained(theirs), open_tokenizer(ours / "pack")
    lines = [*TEXTS, *ODD_TEXTS, *varied_lines(200)]
    for line, ids in zip(lines, tokenizer.encode(lines), strict=True):
        assert ids == expected(line, add_special_tokens=False, split_special_tokens=True)["input_ids"], line
    vocabulary = tokenizer.vocabulary
    assert [vocabulary.bos, vocabulary.eos, vocabulary.pad, vocabulary.mask] == [
        expected.cls_token_id,
        expected.sep_token_id,
        expected.pad_token_id,
        expected.mask_token_id,
    ]


@pytest.mark.parametrize(
    "kind, labels, name",
    [
        ("pair", ["no", "yes"], "ModernBertForSequenceClassification"),
        ("tagging", ["O", "B-PER"], "ModernBertForTokenClassification"),
        ("qa", None, "ModernBertForQuestionAnswering"),
    ],
)
def test_task_models_are_theirs(base, tmp_path, kind, labels, name):
    """A task's scores are of what the body's own prediction head makes, as in Hugging Face's classes."""
    _, ours = base
    body, pack = load_body(ours / "body"), load_pack(ours / "pack")
    module = randomise(KINDS[kind].module(body.config, len(pack.tensors["tokens"]), labels), seed=5).eval()
    load_into(module, tensors_of(body, body.config), "body.")
    load_into(module, pack.tensors, "pack.")
    own = {key: tensor for key, tensor in module.state_dict().items() if not key.startswith("pack.")}
    task = {"name": "t", "kind": kind, "labels": labels}
    save_body(
        tmp_path / "model", BodyArtifact(body.config, module.body.head_depths, own, body.space, task), "task-model"
    )
    export_hf(tmp_path / "model", tmp_path / "out", ours / "pack")
    model = getattr(transformers, name).from_pretrained(tmp_path / "out").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")("the wind", "the small boat sees", return_tensors="pt")
    given = {"tokens": batch["input_ids"]} | ({"read": torch.zeros(1, 1, dtype=torch.int64)} if kind == "pair" else {})
    with torch.no_grad():
        found, expected = module.logits(given), model(**batch)
    if kind == "qa":
        expected.logits = torch.stack((expected.start_logits, expected.end_logits), -1)
    torch.testing.assert_close(found, expected.logits, atol=1e-5, rtol=0)


def test_masks_are_filled_as_theirs_are(base):
    theirs, ours = base
    fill = transformers.pipeline("fill-mask", model=str(theirs), top_k=3)
    (answer,) = Predictor(ours / "body", {"en": ours / "pack"}, top=3).predict([{"text": "the boat [MASK] the sea"}])
    expected = [row["score"] for row in fill("the boat [MASK] the sea")]
    assert [row["probability"] for row in answer["masks"][0]] == pytest.approx(expected, rel=1e-3)
