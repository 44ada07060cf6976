"""A packed batch gives what the padded one gives: outputs, losses and gradients, with the same
dropout.
"""

import pytest
import torch

from ds_minimodel import ops
from ds_minimodel.models.body import Unpadding
from ds_minimodel.models.trainable import SequenceClassifier, SpanExtractor
from tests.small_models import masked_lm

from . import model_cases
from .model_cases import (
    VOCAB_SIZE,
    assert_same,
    body_config,
    losses_and_gradients,
    mlm_batch,
    randomise,
)


def packed(batch):
    positions = torch.arange(batch["tokens"].shape[1])
    return {
        **batch,
        "token_index": (positions < batch["lengths"][:, None]).flatten().nonzero()[:, 0],
    }


CASES = {
    "mlm at several depths": (lambda config: masked_lm(config, VOCAB_SIZE, 1, 3), mlm_batch()),
    "mlm everywhere": (
        lambda config: masked_lm(config, VOCAB_SIZE, 1, 3),
        model_cases.read_everywhere(mlm_batch()),
    ),
    "classification": (
        lambda config: SequenceClassifier(config, VOCAB_SIZE, 3),
        model_cases.classification_batch(),
    ),
    "spans": (lambda config: SpanExtractor(config, VOCAB_SIZE), model_cases.qa_batch()),
}


@pytest.mark.parametrize("extra_rows", [0, 31])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_the_padded_batch(case, extra_rows, monkeypatch):
    monkeypatch.setattr(
        "ds_minimodel.ops.rows_for_few_shapes", lambda num_rows, _: num_rows + extra_rows
    )
    build, batch = CASES[case]
    model = randomise(build(body_config(dropout=0.3, attention_dropout=0.3))).double()
    assert_same(
        losses_and_gradients(model, packed(batch)), losses_and_gradients(model, batch), 1e-6
    )


def test_no_layer_sees_the_padding():
    """Every product but those of attention has one row for each real token, or position read."""
    model = randomise(SequenceClassifier(body_config(), VOCAB_SIZE, 3))
    batch = packed(model_cases.classification_batch())
    seen = []
    for layer in model.body.layers:
        layer.ffn_out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:2]))
    model(batch)
    assert seen == [(33, 1), (33, 1), (4, 1)]
    assert len(batch["token_index"]) == 33


@pytest.mark.parametrize("num_rows", [6, 9])
def test_pack_and_pad_are_each_others_inverse_and_gradient(num_rows):
    unpadding = Unpadding(torch.tensor([0, 1, 2, 4, 8, 9]), 3, 4, num_rows)
    x_T1H = torch.randn(num_rows, 1, 5, dtype=torch.double, requires_grad=True)
    padded = unpadding.pad(x_T1H)
    again = unpadding.unpad(padded)
    assert torch.equal(again[:6], x_T1H[:6])
    assert not again[6:].any()
    assert padded.shape == (3, 4, 5)
    assert not padded[0, 3].any()
    assert not padded[1, 1:].any()
    assert not padded[2, 2:].any()
    assert torch.autograd.gradcheck(unpadding.pad, x_T1H)
    x_BSH = torch.randn(3, 4, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(unpadding.unpad, x_BSH)


def test_shapes_are_few_where_each_is_compiled(monkeypatch):
    """The decision is by type and feature; what it costs is an eighth of the rows at most."""
    weight = torch.empty(0, dtype=torch.bfloat16)
    for has_products, expected in ((False, 500), (True, 8)):
        monkeypatch.setattr(
            "ds_minimodel.ops.matmul.has_bf16_products", lambda has=has_products: has
        )
        rows = {
            num_rows: ops.rows_for_few_shapes(num_rows, weight) for num_rows in range(1024, 1524)
        }
        assert len(set(rows.values())) <= expected
        assert all(num_rows <= rounded <= num_rows * 9 / 8 for num_rows, rounded in rows.items())
        assert ops.rows_for_few_shapes(1025, weight.float()) == 1025
