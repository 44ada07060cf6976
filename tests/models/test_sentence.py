"""Models with a finished head: pooling, losses, and what does not change them."""

import pytest
import torch
from torch.nn import functional as F

from ds_minimodel.models.body import BASE_ROWS
from ds_minimodel.models.heads import LabelHead, Projection, SentenceHead
from ds_minimodel.models.modern import ModernBertConfig
from ds_minimodel.models.roberta import BertConfig
from ds_minimodel.models.sentence import SentenceEncoder
from ds_minimodel.models.trainable import train_only

from .model_cases import VOCAB_SIZE, assert_same, losses_and_gradients, mlm_batch, randomise, rows

HEADS = {
    "mean": SentenceHead(pooling="mean", max_length=14, normalises=True),
    "cls": SentenceHead(pooling="cls", max_length=14),
    "dense": SentenceHead(
        pooling="mean",
        max_length=14,
        projections=(Projection(outputs=6, activation="tanh"),),
    ),
    "labels": LabelHead(pooling="cls", max_length=14, labels=("a", "b", "c")),
    "each": LabelHead(pooling="mean", max_length=14, labels=("a", "b"), applies="each"),
    "number": LabelHead(pooling="cls", max_length=14, labels=("a",), applies="number"),
}
FAMILIES = {
    "bert": BertConfig(num_layers=3, hidden_size=16, num_heads=2, ffn_size=24, max_positions=14),
    "modernbert": ModernBertConfig(
        num_layers=3, hidden_size=16, num_heads=2, ffn_size=24, max_positions=14, window=4
    ),
}
NUM_BASE = 30  # first ids, of which no row trains


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture(params=HEADS)
def model(request, family):
    """A model in fp64 whose new rows train alone."""
    config = family.model_copy(update={"head": HEADS[request.param]})
    module = randomise(SentenceEncoder(config, VOCAB_SIZE, num_base=NUM_BASE)).double()
    train_only(module, lambda name: name == "pack.tokens")
    return module.eval()


def batch_of(model, *, padded=True):
    """Four lines with what the head shall give for each."""
    batch = mlm_batch(padded=padded)
    del batch["loss_positions"]
    head = model.body.config.head
    draw = torch.Generator().manual_seed(1)
    targets = torch.randn(4, head.outputs(16), generator=draw, dtype=torch.float64)
    if isinstance(head, SentenceHead) and head.normalises:
        targets = F.normalize(targets)
    return {**batch, "targets": targets}


def unpadded(batch):
    positions = torch.arange(batch["tokens"].shape[1])
    real = (positions < batch["lengths"][:, None]).flatten()
    return {**batch, "token_index": real.nonzero()[:, 0]}


def expected_losses(model, outputs, targets):
    """The loss of each line, written as its definition says."""
    head = model.body.config.head
    match head:
        case SentenceHead(normalises=True):
            return 1 - F.cosine_similarity(outputs, targets)
        case LabelHead(applies="one"):
            shown = targets.softmax(-1)
            return (shown * (shown / outputs.softmax(-1)).log()).sum(-1)
        case LabelHead(applies="each"):
            losses = 0
            for sign in (1, -1):
                shown = (sign * targets).sigmoid()
                losses = losses + (shown * (shown / (sign * outputs).sigmoid()).log()).sum(-1)
            return losses
    return ((outputs - targets) ** 2).mean(-1)


def test_the_loss_is_a_sum_over_lines(model):
    batch = batch_of(model)
    outputs = model({name: part for name, part in batch.items() if name != "targets"})
    losses = expected_losses(model, outputs, batch["targets"])
    assert torch.allclose(model(batch), losses.sum())
    assert (losses > 0).all()


def test_what_a_head_gives_of_its_own_outputs_is_no_loss(model):
    batch = batch_of(model)
    batch["targets"] = model.logits(batch).detach()
    assert model(batch).abs() < 1e-6


def test_micro_batches_and_padding_change_nothing(model):
    batch = batch_of(model)
    whole = losses_and_gradients(model, batch)
    # In fp32, where the head begins
    assert_same(losses_and_gradients(model, unpadded(batch)), whole, 1e-5)
    alone = [rows(batch, slice(row, row + 1)) for row in range(4)]
    assert_same(losses_and_gradients(model, *alone), whole, 1e-5)
    halves = [rows(batch, slice(0, 2)), rows(batch, slice(2, 4))]
    assert_same(losses_and_gradients(model, *map(unpadded, halves)), whole, 1e-5)


def test_new_rows_alone_train(model):
    _, gradients = losses_and_gradients(model, batch_of(model))
    assert gradients.keys() == {"pack.tokens"}
    assert {name for name, _ in model.pack.named_parameters()} == {
        "tokens",
        f"{BASE_ROWS}tokens",
    }
