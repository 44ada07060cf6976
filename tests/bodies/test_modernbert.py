"""ModernBERT's body against Hugging Face's: logits with windows, padding and without it, gradients, and both ways."""

from pathlib import Path

import pytest
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding, apply_rotary_pos_emb

from ds_minimodel import ops
from ds_minimodel.bodies.modernbert import ModernBertConfig as OurConfig
from ds_minimodel.bodies.modernbert.hugging_face import MODERNBERT
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.costs import Work, step_flops
from ds_minimodel.model.models import LanguageModel, encode
from tests.small_models import MASKED_LM

(ARCHITECTURE,) = MODERNBERT
SHAPES = {
    "as published": dict(num_hidden_layers=7, local_attention=16),
    "all layers global": dict(num_hidden_layers=2, global_attn_every_n_layers=1, local_attention=4),
    "other bases": dict(
        num_hidden_layers=4,
        local_attention=6,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 5e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
    ),
}


def config_of(**changes):
    ids = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    sizes = dict(vocab_size=90, hidden_size=32, intermediate_size=40, num_attention_heads=4, max_position_embeddings=64)
    return ModernBertConfig(**{**ids, **sizes, **changes}, attn_implementation="eager")


def twins(shape):
    """(Hugging Face's model with weights that hide nothing, ours with the same)."""
    torch.manual_seed(0)
    theirs = ModernBertForMaskedLM(config_of(**SHAPES[shape])).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    file = ARCHITECTURE.config_file.model_validate(theirs.config.to_dict())
    config, vocab_size = ARCHITECTURE.config(file, Path("config.json"))
    ours = LanguageModel(config, vocab_size, (config.num_layers,), MASKED_LM).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()}
    ours.load_state_dict(ARCHITECTURE.from_theirs(theirs.state_dict(), config, shapes, Path("model.safetensors")))
    return theirs, ours


def batch_of():
    draw = torch.Generator().manual_seed(1)
    tokens, lengths = torch.randint(3, 90, (3, 40), generator=draw), torch.tensor([40, 25, 11], dtype=torch.int32)
    real = torch.arange(40) < lengths[:, None]
    tokens[~real] = 0
    read = torch.tensor([[1, 5, 39], [0, 3, 24], [2, 3, 10]])
    targets = torch.randint(3, 90, (3, 3), generator=draw)
    return {"tokens": tokens, "lengths": lengths, "read": read, "targets": targets}, real


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_are_theirs(shape):
    theirs, ours = twins(shape)
    batch, real = batch_of()
    labels = torch.full(real.shape, IGNORED).scatter(1, batch["read"], batch["targets"])
    expected = theirs(input_ids=batch["tokens"], attention_mask=real.long(), labels=labels)
    everywhere = {name: batch[name] for name in ("tokens", "lengths")}
    for form in (everywhere, {**everywhere, "real": real.flatten().nonzero()[:, 0]}):
        (x_BSH,), table = encode(ours.pack, ours.body, form)
        (head,) = ours.body.heads.values()
        torch.testing.assert_close(
            (head(x_BSH) @ table.T + ours.pack.bias)[real], expected.logits[real], atol=1e-5, rtol=0
        )
    (expected.loss * 9).backward()
    loss = ours(batch)
    torch.testing.assert_close(loss[0], expected.loss * 9)
    loss.sum().backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    found = ARCHITECTURE.to_theirs(gradients, ours.body.config, ARCHITECTURE.language_model_head(len(ours.body.layers)))
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(
            found[name], parameter.grad, atol=1e-4, rtol=1e-4, msg=lambda text, at=name: f"{at}: {text}"
        )


def test_dropout_does_not_depend_on_padding_nor_on_what_is_computed():
    _, ours = twins("as published")
    ours.body.config = ours.body.config.model_copy(update={"dropout": 0.2, "attention_dropout": 0.3})
    batch, real = batch_of()
    keys = {"sample_keys": torch.tensor([5, 6, 7], dtype=torch.int32)}
    ours.train()
    with torch.no_grad():
        losses = ours({**batch, **keys})
        packed = ours({**batch, **keys, "real": real.flatten().nonzero()[:, 0]})
        rows = [ours({name: value[row : row + 1] for name, value in {**batch, **keys}.items()}) for row in range(3)]
    torch.testing.assert_close(packed, losses)
    torch.testing.assert_close(sum(rows), losses)


def test_a_window_costs_what_it_sees():
    _, ours = twins("as published")
    config = ours.body.config
    long, whole = (
        step_flops("adapt", Work(body, 90, 64, 0.3), (7,)).executed
        for body in (config, config.model_copy(update={"global_every": 1}))
    )
    assert long < whole


def test_rotary_positions_are_theirs_to_the_longest_sequence():
    rotary = ModernBertRotaryEmbedding(config_of(hidden_size=128, num_attention_heads=2))
    x_BSH, positions = torch.randn(1, 8192, 128), torch.arange(8192)
    heads = x_BSH.unflatten(-1, (2, 64)).transpose(1, 2)
    for kind, base in (("full_attention", 160_000.0), ("sliding_attention", 10_000.0)):
        expected, _ = apply_rotary_pos_emb(heads, heads, *rotary(x_BSH, positions[None], kind))
        waves = 1.0 / base ** (torch.arange(0, 64, 2).float() / 64)
        found = ops.rotary(x_BSH, 2, ops.rotary_table(waves, 8192), positions)
        torch.testing.assert_close(found, expected.transpose(1, 2).flatten(2), atol=1e-5, rtol=0)


def test_a_mini_keeps_how_often_layers_see_all():
    config = OurConfig(num_layers=2, hidden_size=32, num_heads=4, ffn_size=40)
    file = ARCHITECTURE.config_file.model_validate(ARCHITECTURE.config_json(config, 90))
    assert ARCHITECTURE.config(file, Path("config.json")) == (config, 90)


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("hidden_activation", "relu", "hidden_activation: Input should be 'gelu'"),
        ("norm_bias", True, "norm_bias"),
        ("layer_types", ["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"] * 4, "layer_types"),
        ("layer_types", [], "layer_types"),
        ("rope_scaling", {"factor": 2}, "rope_scaling"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}, "rope_parameters.rope_t"),
        (
            "rope_parameters",
            {"full_attention": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}},
            "rope_parameters.full_attention.partial_rotary_factor",
        ),
        ("hidden_size", 36, "hidden_size 36 / num_attention_heads 4 must be even"),
        ("tie_word_embeddings", False, "tie_word_embeddings"),
    ],
)
def test_a_part_that_is_not_here_is_named(key, value, said, tmp_path):
    from ds_minimodel.common.files import write_json
    from ds_minimodel.interop.hugging_face import read_config

    values = config_of(**SHAPES["as published"]).to_dict()
    write_json(tmp_path / "config.json", {**values, "model_type": "modernbert", key: value})
    with pytest.raises(UserError, match=said) as refusal:
        read_config(tmp_path)
    assert "\n" not in str(refusal.value)
