"""The task heads against transformers', padding too; their dropout; targets that count nothing."""

import model_cases
import pytest
import torch
from model_cases import VOCAB_SIZE, assert_same, losses_and_gradients, rows
from torch.nn.functional import cross_entropy
from transformers import RobertaForQuestionAnswering, RobertaForSequenceClassification

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.models.trainable import SequenceClassifier, SpanExtractor
from tests.small_models import PAD

NUM_LABELS = 3
# Our class, its settings, transformers' class, names of the head there, a batch.
SENTENCES = (
    SequenceClassifier,
    [NUM_LABELS],
    RobertaForSequenceClassification,
    {"dense": "classifier.dense", "out": "classifier.out_proj"},
    model_cases.classification_batch,
)
SPANS: tuple = (
    SpanExtractor,
    [],
    RobertaForQuestionAnswering,
    {"out": "qa_outputs"},
    model_cases.qa_batch,
)
every_head = pytest.mark.parametrize("task", [SENTENCES, SPANS], ids=["sentences", "spans"])


def make(kind, *settings, **dropout):
    model = kind(model_cases.body_config(**dropout), VOCAB_SIZE, *settings)
    return model_cases.randomise(model).double()


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@every_head
def test_scores_losses_and_gradients_are_robertas(task, padded):
    kind, settings, theirs, head, batch_of = task
    model = make(kind, *settings)
    batch = batch_of(padded=padded)
    theirs = model_cases.twin(theirs, model, head, num_labels=NUM_LABELS if settings else 2)
    output = theirs(batch["tokens"], model_cases.attention_mask(batch))
    if task is SPANS:
        scores = torch.stack((output.start_logits, output.end_logits), -1)
    else:
        scores = output.logits
    real = batch["tokens"] != PAD
    targets = batch["targets"]
    own_scores = model.logits(batch)
    if task is SENTENCES:
        real = torch.ones(4, dtype=torch.bool)
        classes_second = scores[..., None]
    else:
        classes_second = scores.masked_fill(~real[..., None], -torch.inf)
        assert (own_scores[~real] == -torch.inf).all()
    torch.testing.assert_close(own_scores[real].double(), scores[real], rtol=0, atol=1e-5)
    loss = cross_entropy(classes_second, targets, ignore_index=IGNORED, reduction="sum")
    if task is SPANS:
        loss = loss / 2
    model_cases.assert_same_as_theirs(model, batch, head, theirs, loss, tolerance=2e-6)


def test_the_classifiers_own_dropouts_are_two_more():
    """Before the dense layer and before the output, as in RoBERTa, each with bits of its own."""
    model = make(SequenceClassifier, NUM_LABELS, dropout=0.4)
    batch = model_cases.classification_batch()
    dropped = []
    for linear in (model.dense, model.out):
        linear.register_forward_pre_hook(lambda _, inputs: dropped.append(inputs[0][:, 0] == 0))
    model.logits(batch)
    for site, zeros in zip(model.body.config.dropout_sites.task_head, dropped, strict=True):
        row_keys = ops.row_keys(batch["sample_keys"], site, batch["loss_positions"])
        assert zeros.equal(ops.dropout(torch.ones(4, 1, 16), 0.4, row_keys)[:, 0] == 0)
    assert not dropped[0].equal(dropped[1])


@every_head
def test_an_ignored_target_adds_nothing(task):
    kind, settings, *_, batch_of = task
    model = make(kind, *settings)
    batch = batch_of()
    targets = batch["targets"].clone()
    targets[1] = IGNORED
    expected = losses_and_gradients(model, rows(batch, [0, 2, 3]))
    assert_same(losses_and_gradients(model, {**batch, "targets": targets}), expected, 1e-5)
