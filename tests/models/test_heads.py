"""The task heads against Hugging Face's, padding too; their dropout; targets that count nothing."""

import hugging_face
import pytest
import torch
from model_cases import (
    LENGTHS,
    VOCAB_SIZE,
    assert_same,
    body_config,
    classification_batch,
    losses_and_gradients,
    qa_batch,
    randomise,
    rows,
    tagging_batch,
)
from transformers import RobertaForQuestionAnswering, RobertaForSequenceClassification, RobertaForTokenClassification

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.models.trainable import SequenceClassifier, SpanExtractor, TokenClassifier
from tests.small_models import PAD

NUM_LABELS = 3
CLASSIFIER_HEAD = (("dense", "classifier.dense"), ("out", "classifier.out_proj"))
QA_HEAD = (("out", "qa_outputs"),)
TAGGING_HEAD = (("out", "classifier"),)


HEADS = [
    (SequenceClassifier, [NUM_LABELS], classification_batch()),
    (SpanExtractor, [], qa_batch()),
    (TokenClassifier, [NUM_LABELS], tagging_batch()),
]
HEAD_NAMES = ["classifier", "span extractor", "token classifier"]


def make(kind, *settings, **dropout):
    return randomise(kind(body_config(**dropout), VOCAB_SIZE, *settings)).double()


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@pytest.mark.parametrize(
    "kind, theirs, head, batch_of",
    [
        (SequenceClassifier, RobertaForSequenceClassification, CLASSIFIER_HEAD, classification_batch),
        (TokenClassifier, RobertaForTokenClassification, TAGGING_HEAD, tagging_batch),
    ],
    ids=["sentences", "tokens"],
)
def test_classifiers_equal_robertas(kind, theirs, head, batch_of, padded):
    model, batch, found = make(kind, NUM_LABELS), batch_of(padded), hugging_face.names(3, task=head)
    theirs = hugging_face.twin(theirs, model, found, num_labels=NUM_LABELS)
    labels, real = batch["targets"], batch["tokens"] != PAD
    if kind is SequenceClassifier:
        labels, real = labels[:, 0], torch.full((4,), True)
    output = theirs(batch["tokens"], hugging_face.attention_mask(batch), labels=labels)
    loss = output.loss * (labels != IGNORED).sum()
    loss.backward()
    # The scores are made float32, of sentences for the loss alone.
    exact = 1e-10 if kind is SequenceClassifier else 1e-5
    torch.testing.assert_close(model.logits(batch)[real].double(), output.logits[real], rtol=0, atol=exact)
    assert_same(losses_and_gradients(model, batch), (loss.detach()[None], hugging_face.gradients(theirs, found)), 2e-6)


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
def test_span_extractor_equals_roberta(padded):
    model, batch = make(SpanExtractor), qa_batch(padded)
    found = hugging_face.names(3, task=QA_HEAD)
    theirs = hugging_face.twin(RobertaForQuestionAnswering, model, found)
    # Hugging Face's loss lets padding be an answer, so each example goes in without it.
    loss = 0
    for row, length in enumerate(LENGTHS if padded else [11] * 4):
        example = rows(batch, [row], width=length)
        output = theirs(
            example["tokens"], start_positions=example["targets"][:, 0], end_positions=example["targets"][:, 1]
        )
        loss += output.loss
        logits = torch.stack((output.start_logits, output.end_logits), -1)
        got = model.logits(batch)[row]
        torch.testing.assert_close(got[:length].double(), logits[0], rtol=0, atol=1e-5)
        assert (got[length:] == -torch.inf).all()
    loss.backward()
    assert_same(losses_and_gradients(model, batch), (loss.detach()[None], hugging_face.gradients(theirs, found)), 2e-6)


@pytest.mark.parametrize("kind, settings, batch", HEADS, ids=HEAD_NAMES)
def test_dropout_depends_on_the_examples_alone_and_is_off_in_evaluation(kind, settings, batch):
    model = make(kind, *settings, dropout=0.2, attention_dropout=0.3)
    expected = losses_and_gradients(model, batch)
    parts = rows(batch, [2], width=5), rows(batch, [3, 0, 1], width=13)
    assert_same(losses_and_gradients(model, *parts), expected, 1e-5)
    other = losses_and_gradients(model, {**batch, "sample_keys": batch["sample_keys"] + 1})
    assert (other[0] - expected[0]).abs() > 1e-3
    model.eval()
    torch.testing.assert_close(model.logits(batch), make(kind, *settings).logits(batch))


def test_the_classifiers_own_dropouts_are_two_more():
    """Before the dense layer and before the output, as in RoBERTa, each with bits of its own."""
    model, batch = make(SequenceClassifier, NUM_LABELS, dropout=0.4), classification_batch()
    dropped = []
    for linear in (model.dense, model.out):
        linear.register_forward_pre_hook(lambda _, inputs: dropped.append(inputs[0][:, 0] == 0))
    model.logits(batch)
    for site, zeros in zip(model.body.config.dropout_sites.task_head, dropped, strict=True):
        row_keys = ops.row_keys(batch["sample_keys"], site, batch["read"])
        assert zeros.equal(ops.dropout(torch.ones(4, 1, 16), 0.4, row_keys)[:, 0] == 0)
    assert not dropped[0].equal(dropped[1])


@pytest.mark.parametrize("kind, settings, batch", HEADS, ids=HEAD_NAMES)
def test_an_ignored_target_adds_nothing(kind, settings, batch):
    model = make(kind, *settings)
    targets = batch["targets"].clone()
    targets[1] = IGNORED
    expected = losses_and_gradients(model, rows(batch, [0, 2, 3]))
    assert_same(losses_and_gradients(model, {**batch, "targets": targets}), expected, 1e-5)


def test_the_token_classifiers_dropout_is_one_more():
    """Before the output, as in RoBERTa, with bits of its own at every position."""
    model, batch = make(TokenClassifier, NUM_LABELS, dropout=0.4), tagging_batch()
    model.body.register_forward_hook(lambda *_: (torch.ones(4, 11, 16, dtype=torch.float64),))
    row_keys = ops.row_keys(batch["sample_keys"], model.body.config.dropout_sites.task_head[0], torch.arange(11))
    dropped_BSH = ops.dropout(torch.ones(4, 11, 16, dtype=torch.float64), 0.4, row_keys)
    expected = dropped_BSH.float() @ model.out.weight.float().T + model.out.bias.float()
    torch.testing.assert_close(model.logits(batch), expected)
