"""Bits per byte of texts, from likelihoods of tokens."""

import itertools
import math
import re

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from ds_minimodel.artifacts.adaptation import plug
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.mini import tensors_of
from ds_minimodel.artifacts.models import load_body
from ds_minimodel.common.vocabulary import IGNORED, Vocabulary
from ds_minimodel.evaluation import KINDS
from ds_minimodel.evaluation.batches import inference_batches, outputs
from ds_minimodel.evaluation.likelihood import (
    Documents,
    HiddenConfig,
    TextConfig,
)
from ds_minimodel.evaluation.packs import open_pack
from ds_minimodel.models.trainable import TokenLikelihoods, load_into
from tests.helpers.foreign_models import BEGIN, save_llama
from tests.helpers.refusals import refuses

from ..hf.conftest import ODD_TEXTS, TEXTS, write_text
from ..hf.refusing import change

TEXT = KINDS["bits-per-byte"]
HIDDEN = KINDS["pseudo-likelihood"]
SETTINGS = TextConfig(kind="bits-per-byte", test={"de": "de"})


class Letters:
    """A vocabulary of letters, in which each is as likely as its id says."""

    def __init__(self, **special):
        self.vocabulary = Vocabulary(200, **special)
        self.scored_after = self.vocabulary.start

    def encode(self, texts):
        return [[ord(letter) % 100 for letter in text] for text in texts]

    def unknown(self, text, ids):
        return [(index, 1) for index, letter in enumerate(text) if letter == "?"]


def logits(encoded):
    """The likelihood of a token is e^-(id/10); what must not be counted is NaN."""
    for index, batch in inference_batches(encoded.examples, 64):
        found = -batch["tokens"] / 10
        found[:, 0] = np.nan
        found[np.arange(found.shape[1]) >= batch["lengths"][:, None]] = np.nan
        yield index, found


@pytest.mark.parametrize(
    "special, start", [({"bos": 150, "eos": 151}, [150]), ({"eos": 151}, [151]), ({}, [])]
)
def test_every_token_is_counted_once_whatever_the_length(special, start, tmp_path):
    (tmp_path / "de").write_text("ab\ncdefgh\n\nij\n\n\nk")
    records = TEXT.read(str(tmp_path / "de"), SETTINGS, language="de", labels=None)
    tokenizer = Letters(**special)
    assert records.texts == ["ab\ncdefgh", "ij", "k"]
    ids = [id for text in tokenizer.encode(records.texts) for id in text[0 if start else 1 :]]
    for max_length in (3, 4, 64):
        encoded = TEXT.encode(tokenizer, records, SETTINGS, max_length=max_length)
        assert encoded.examples.lengths.max() <= max_length
        begins = {int(batch["tokens"][0, 0]) for _, batch in inference_batches(encoded.examples, 1)}
        assert begins == {150} if special.get("bos") else len(begins) > 1 or max_length == 64
        score = TEXT.score(SETTINGS, "de", records=records, encoded=encoded, logits=logits(encoded))
        assert score["bits_per_byte"] == pytest.approx(sum(ids) / 10 / math.log(2) / 12)
        assert score["score"] == pytest.approx(100 / score["bits_per_byte"])


class Parts:
    """A vocabulary whose pieces are `size` letters of a word, the first with the space before
    it.
    """

    def __init__(self, size):
        self.vocabulary = Vocabulary(200, bos=190, eos=191, mask=192)
        self.size = size
        self.pieces = []

    def unknown(self, text, ids):
        return [(match.start(), 2) for match in re.finditer("ü", text)]

    def encode_with_offsets(self, text):
        spans = []
        for word in re.finditer(r"\S+", text):
            for start in range(word.start(), word.end(), self.size):
                spans.append((start, min(start + self.size, word.end())))
        self.pieces += dict.fromkeys(
            text[start:end] for start, end in spans if text[start:end] not in self.pieces
        )
        return [self.pieces.index(text[start:end]) for start, end in spans], spans


def test_the_same_words_are_hidden_from_every_vocabulary_and_asked_for_from_left_to_right(tmp_path):
    words = [f"{'abcdefgh'[: index % 8 + 1]}ü{index}" for index in range(90)]
    (tmp_path / "de").write_text("\n".join(words))
    task = HiddenConfig(kind="pseudo-likelihood", test={"de": "de"}, context_bytes=150)
    records = HIDDEN.read(str(tmp_path / "de"), task, language="de", labels=None)
    assert " ".join(records.texts).split() == words
    assert max(len(text.encode()) for text in records.texts) <= 150
    hidden = [
        word
        for text, are_hidden in zip(records.texts, records.hidden, strict=True)
        for word, is_hidden in zip(text.split(), are_hidden, strict=True)
        if is_hidden
    ]
    assert 5 < len(hidden) < 25
    assert records.num_bytes == sum(len(word.encode()) + 1 for word in hidden)
    for size in (2, 3, 99):
        tokenizer = Parts(size)
        encoded = HIDDEN.encode(tokenizer, records, task, max_length=task.min_length)
        examples = encoded.examples
        asked = []
        for first, end in itertools.pairwise(examples.bounds):
            tokens = examples.tokens[first:end]
            targets = examples.targets[first:end]
            assert tokens[0] == 190
            assert tokens[-1] == 191
            assert (tokens[targets != IGNORED] == 192).all()
            asked += [tokenizer.pieces[id] for id in targets[targets != IGNORED]]
        parts = [
            word[start : start + size] for word in hidden for start in range(0, len(word), size)
        ]
        assert sorted(asked) == sorted(parts), "each token once"
        found = (
            (index, np.where(batch["targets"] == IGNORED, 0, -1.0))
            for index, batch in inference_batches(examples, 500)
        )
        score = HIDDEN.score(task, "de", records=records, encoded=encoded, logits=found)
        bits = len(parts) / math.log(2) + 8 * 2 * len(hidden)  # each with an ü, which is unknown
        assert score["bits_per_hidden_byte"] == pytest.approx(bits / records.num_bytes)


def test_unknown_text_is_charged_as_if_it_were_spelt_out(tmp_path):
    """8 bits per byte beside its token's."""
    (tmp_path / "de").write_text("a?\nb?\n\nc")
    records = TEXT.read(str(tmp_path / "de"), SETTINGS, language="de", labels=None)
    encoded = TEXT.encode(Letters(eos=151), records, SETTINGS, max_length=64)
    assert encoded.unknown == [2, 0]
    score = TEXT.score(SETTINGS, "de", records=records, encoded=encoded, logits=logits(encoded))
    tokens = sum(ord(letter) % 100 for letter in "a?\nb?c") / 10 / math.log(2)
    assert score["bits_per_byte"] == pytest.approx((tokens + 2 * 8) / 6)


# What the tokenizer says of itself: how it puts a text, and what of its content is changed.
@pytest.mark.parametrize(
    "single, named, prepends",
    [
        (f"{BEGIN} $A", True, False),
        ("$A", True, False),  # SmolLM2-Instruct's
        ("$A", False, False),  # Qwen's
        ("$A", True, True),  # Llama 2's puts a space before a text
    ],
)
def test_scores_are_those_of_lm_evaluation_harness(single, named, prepends, tmp_path):
    """Of texts that fit, after the token called bos or else eos, once (`add_bos_token`). A special
    token's name in a text is none here.
    """
    llama = save_llama(write_text(tmp_path / "text"), tmp_path / "llama", single)
    if not named:
        change(llama / "tokenizer_config.json", bos_token=None)
    if prepends:
        change(llama / "tokenizer.json", normalizer={"type": "Prepend", "prepend": " "})
    refer(llama, tmp_path / "model", "en")
    body = load_body(tmp_path / "model")
    pack, tokenizer = open_pack(tmp_path / "model", body, tmp_path / "model")
    module = TokenLikelihoods(body.config, len(pack.embeddings["tokens"])).eval()
    load_into(module, tensors_of(body, module.body), "body.")
    plug(module, pack, body)

    def likelihoods(kind, records):
        encoded = kind.encode(tokenizer, records, SETTINGS, max_length=64)
        return -encoded.nats(outputs(module, encoded.examples))

    def of_harness(ask, texts, **options):
        # The first token comes beside these 63.
        harness = HFLM(str(llama), device="cpu", dtype="float32", max_length=63, **options)
        instances = [Instance("", {}, text, idx=index) for index, text in enumerate(texts)]
        return ask(harness, instances, disable_tqdm=True)

    texts = [*(text[:40] for text in [*TEXTS, *ODD_TEXTS] if text.strip()), "a", "\n"]
    expected = of_harness(
        HFLM.loglikelihood_rolling, [(text,) for text in texts], add_bos_token=False
    )
    assert likelihoods(TEXT, Documents(texts)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "kind, text, said",
    [
        (TEXT, "\n \n", "de: holds no text"),
        (HIDDEN, "a", "de: too short for words to be hidden"),
    ],
)
def test_files_that_are_none_are_refused(kind, text, said, tmp_path):
    path = tmp_path / said.partition(":")[0]
    path.write_text(text)
    with refuses(said):
        kind.read(
            str(path), kind.config(kind=kind.name, test={"de": "de"}), language="de", labels=None
        )
