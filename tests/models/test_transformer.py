"""Dropout that sits where transformers' RoBERTa has it and depends on the samples alone; what
freezing saves.
"""

import model_cases
import pytest
import torch
from model_cases import VOCAB_SIZE, assert_same, body_config, losses_and_gradients, mlm_batch, rows
from transformers import RobertaForMaskedLM

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.hf.names.roberta import ROBERTA
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.models.roberta.model import FIRST_POSITION
from ds_minimodel.models.trainable import train_only
from tests.saved import saving_to
from tests.small_models import masked_lm


def make_model(config, *head_depths):
    return model_cases.randomise(masked_lm(config, VOCAB_SIZE, *head_depths)).double()


def test_dropout_sits_where_roberta_has_it(monkeypatch):
    """Hugging Face's dropout modules, given our bits, make the same losses and gradients as
    ours.
    """
    batch = mlm_batch()
    model = make_model(body_config(dropout=0.2, attention_dropout=0.3))
    head = ROBERTA[0].language_model_head(3)
    theirs = model_cases.twin(RobertaForMaskedLM, model, head)
    dropout = model.body.dropout(batch["sample_keys"])
    sites = model.body.config.dropout_sites
    positions = torch.arange(11)

    def drop_rows(site):
        return lambda module, inputs, output: ops.dropout(
            inputs[0], 0.2, dropout.row_keys(site, positions)
        )

    theirs.roberta.embeddings.dropout.register_forward_hook(drop_rows(sites.embeddings))
    attention_rows = []
    for index, layer in enumerate(theirs.roberta.encoder.layer):
        heads, attention_out, ffn_out = sites.layer(index)
        attention_rows.append(dropout.row_keys(heads, positions))
        layer.attention.output.dropout.register_forward_hook(drop_rows(attention_out))
        layer.output.dropout.register_forward_hook(drop_rows(ffn_out))
    plain = torch.nn.functional.dropout

    def drop_probabilities(x, p, training, inplace=False):
        if x.dim() == 4:
            return ops.dropout(x, p, attention_rows.pop(0))
        return plain(x, p, training, inplace)

    monkeypatch.setattr(torch.nn.functional, "dropout", drop_probabilities)
    labels = model_cases.read_everywhere(batch)["targets"]
    output = theirs(batch["tokens"], model_cases.attention_mask(batch), labels=labels)
    loss = output.loss * (labels != IGNORED).sum()
    assert not attention_rows
    model_cases.assert_same_as_theirs(model, batch, head, theirs, loss)


@pytest.fixture
def noisy():
    return make_model(body_config(dropout=0.2, attention_dropout=0.3), 2, 3)


def test_dropout_does_not_depend_on_the_split_of_a_batch_nor_on_its_padding(noisy):
    batch = mlm_batch()
    expected = losses_and_gradients(noisy, batch)
    assert_same(losses_and_gradients(noisy, *(rows(batch, [row]) for row in range(4))), expected)
    assert_same(losses_and_gradients(noisy, rows(batch, [3, 1, 0, 2])), expected)
    parts = [rows(batch, [1, 2], width=8), rows(batch, [3, 0], width=14)]
    assert_same(losses_and_gradients(noisy, *parts), expected)


def test_dropout_does_not_depend_on_which_positions_are_computed(noisy):
    batch = mlm_batch()
    assert_same(
        losses_and_gradients(noisy, batch),
        losses_and_gradients(noisy, model_cases.read_everywhere(batch)),
    )


@pytest.mark.parametrize("dropout, attention_dropout", [(0.2, 0.0), (0.0, 0.3)])
def test_dropout_is_a_function_of_the_keys_and_off_in_evaluation(dropout, attention_dropout):
    model = make_model(body_config(dropout=dropout, attention_dropout=attention_dropout))
    batch = mlm_batch()
    plain = losses_and_gradients(make_model(body_config()), batch)
    first = losses_and_gradients(model, batch)
    again = losses_and_gradients(model, batch)
    other = losses_and_gradients(model, {**batch, "sample_keys": batch["sample_keys"] + 1})
    assert_same(first, again, 0)
    for different in (plain, other):
        assert (first[0] - different[0]).abs() > 1e-3
        assert (first[1]["pack.tokens"] - different[1]["pack.tokens"]).abs().max() > 1e-3
    model.eval()
    assert_same(losses_and_gradients(model, batch), plain)
    del batch["sample_keys"]
    assert_same(losses_and_gradients(model, batch), plain)


def test_initialisation_is_fairseqs():
    torch.manual_seed(0)
    model = masked_lm(body_config(), 400)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert abs(parameter.std() / INIT_STD - 1) < 0.15, name
            assert abs(parameter.mean()) < INIT_STD / 5, name
    assert (model.body.positions[FIRST_POSITION - 1] == 0).all()
    assert len(model.body.positions) == 14 + FIRST_POSITION


def test_a_frozen_body_gets_no_gradients_and_lets_them_through():
    """Step 2: the gradients of the pack are those of a model in which all trains."""
    model = make_model(body_config(dropout=0.2, attention_dropout=0.3))
    batch = mlm_batch()
    losses, gradients = losses_and_gradients(model, batch)
    train_only(model, lambda name: name.startswith("pack."))
    pack_only = {name: gradient for name, gradient in gradients.items() if name.startswith("pack.")}
    assert_same(losses_and_gradients(model, batch), (losses, pack_only))
    assert all(parameter.grad is None for parameter in model.body.parameters())


def test_no_graph_is_built_below_the_lowest_layer_that_trains():
    """Step 1b: a frozen prefix costs its forward pass only, however deep it is."""
    batch = mlm_batch()
    kept = []
    for prefix in (0, 1, 4):
        model = make_model(body_config(prefix + 2, dropout=0.2, attention_dropout=0.3))
        train_only(
            model,
            lambda name: name.startswith("body.layers.") and int(name.split(".")[2]) >= prefix,
        )
        below = []
        model.body.layers[prefix].register_forward_pre_hook(
            lambda layer, inputs: below.append(inputs[0])
        )
        _, gradients = losses_and_gradients(model, batch)
        assert not below[0].requires_grad
        assert {name.split(".")[2] for name in gradients} == {str(prefix), str(prefix + 1)}
        with saving_to(saved := []):
            model(batch)
        kept.append(len(saved))
    assert kept[0] > 0
    assert len(set(kept)) == 1
