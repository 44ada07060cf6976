"""Bodies against Hugging Face's own classes: logits, gradients, configurations both ways,
refusals.
"""

import sys

import pytest
import torch
import transformers
from torch.testing import assert_close
from transformers.models.modernbert.modeling_modernbert import (
    ModernBertRotaryEmbedding,
    apply_rotary_pos_emb,
)

from ds_minimodel import ops
from ds_minimodel.artifacts import base
from ds_minimodel.common.files import write_json
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.hf.lazy import LazyTensors, lazy_entries
from ds_minimodel.hf.names import ARCHITECTURES
from ds_minimodel.models.kind import keys_seen
from ds_minimodel.models.modern import Rotation
from ds_minimodel.models.modern.model import waves
from ds_minimodel.models.trainable import LanguageModel, encode
from tests.helpers.architectures import (
    LINEAR,
    LLAMA3,
    SHAPES,
    THETA,
    config_of,
)
from tests.helpers.refusals import refuses


def ours_of(config):
    """Our architecture, our configuration of theirs, and the count of ids."""
    firsts = (first for first, *_ in ARCHITECTURES.values())
    architecture = next(first for first in firsts if first.model_type == config.model_type)
    return architecture, architecture.config(config), config.vocab_size


def twins(shape):
    """Hugging Face's model with weights that hide nothing, ours with the same, and the names of
    both.
    """
    torch.manual_seed(0)
    theirs_config = config_of(shape)
    architecture, config, vocab_size = ours_of(theirs_config)
    auto = transformers.AutoModelForCausalLM if config.causal else transformers.AutoModelForMaskedLM
    theirs = auto.from_config(theirs_config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    ours = LanguageModel(config, vocab_size, (config.num_layers,)).eval()
    tensors = architecture.from_hf(lazy_entries(theirs.state_dict()), config, [*ours.state_dict()])
    ours.load_state_dict(LazyTensors(tensors))
    return theirs, ours, architecture


def batch_of():
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 90, (3, 40), generator=draw)
    lengths = torch.tensor([40, 25, 11], dtype=torch.int32)
    real = torch.arange(40) < lengths[:, None]
    tokens[~real] = 0
    read = torch.tensor([[1, 5, 39], [0, 3, 24], [2, 3, 10]])
    targets = torch.randint(3, 90, (3, 3), generator=draw)
    return {"tokens": tokens, "lengths": lengths, "loss_positions": read, "targets": targets}, real


@pytest.mark.parametrize("way", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_are_theirs(shape, way, monkeypatch):
    """By the operators of the CPU, and by those that GPUs take, run on the CPU."""
    for module in ("ops", "ops.window", "ops.attention"):
        monkeypatch.setattr(sys.modules[f"ds_minimodel.{module}"], "device_type", lambda _: way)
    theirs, ours, architecture = twins(shape)
    batch, real = batch_of()
    labels = torch.full(real.shape, IGNORED).scatter(1, batch["loss_positions"], batch["targets"])
    expected = theirs(input_ids=batch["tokens"], attention_mask=real.long())
    loss = torch.nn.functional.cross_entropy(
        expected.logits.flatten(0, 1), labels.flatten(), reduction="sum"
    )
    everywhere = {name: batch[name] for name in ("tokens", "lengths")}
    for form in (everywhere, {**everywhere, "token_index": real.flatten().nonzero()[:, 0]}):
        (x_BSH,), table = encode(ours.pack, ours.body, form)
        (head,) = ours.body.heads.values()
        logits = ours.pack.logits(head(x_BSH), table)
        # Seven layers by products of either library (ops/cpu.py), which tests before this one may
        # have chosen.
        assert_close(logits[real], expected.logits[real], atol=2e-5, rtol=0)
    loss.backward()
    our_loss = ours(batch)
    assert_close(our_loss[0], loss)
    our_loss.sum().backward()
    # to_hf takes 1 from shifted weights, which gradients do not have.
    shift = 1 if getattr(architecture, "shifted_norms", False) else 0
    gradients = {
        name: parameter.grad + (shift if "norm" in name else 0)
        for name, parameter in ours.named_parameters()
    }
    head = architecture.language_model_head(len(ours.body.layers))
    found = LazyTensors(architecture.to_hf(lazy_entries(gradients), ours.body.config, head))
    for name, parameter in theirs.named_parameters():
        # Ours adds the vector of the token type to the positions.
        if "token_type" in name:
            continue
        assert_close(
            found[name],
            parameter.grad,
            atol=1e-4,
            rtol=1e-4,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("shape", ["modernbert as published", "qwen3"])
def test_dropout_does_not_depend_on_padding_nor_on_what_is_computed(shape):
    _, ours, _ = twins(shape)
    ours.body.config = ours.body.config.model_copy(
        update={"dropout": 0.2, "attention_dropout": 0.3}
    )
    batch, real = batch_of()
    keys = {"sample_keys": torch.tensor([5, 6, 7], dtype=torch.int32)}
    ours.train()
    with torch.no_grad():
        losses = ours({**batch, **keys})
        packed = ours({**batch, **keys, "token_index": real.flatten().nonzero()[:, 0]})
        rows = [
            ours({name: value[row : row + 1] for name, value in {**batch, **keys}.items()})
            for row in range(3)
        ]
    assert_close(packed, losses)
    assert_close(sum(rows), losses)


def test_a_position_is_counted_the_keys_that_it_sees():
    for window in ((None, None), (None, 0), (3, 0), (2, 2), (40, 1)):
        before, after = (10 if reach is None else reach for reach in window)
        seen = sum(-before <= key - query <= after for query in range(10) for key in range(10))
        assert keys_seen(window, 10) * 10 == pytest.approx(seen)


def test_rotary_positions_are_theirs_to_the_longest_sequence():
    rotary = ModernBertRotaryEmbedding(
        config_of("modernbert as published", hidden_size=128, num_attention_heads=2)
    )
    x_BSH = torch.randn(1, 8192, 128)
    positions = torch.arange(8192)
    heads = x_BSH.unflatten(-1, (2, 64)).transpose(1, 2)
    for kind, wave in (("full_attention", 160_000.0), ("sliding_attention", 10_000.0)):
        expected, _ = apply_rotary_pos_emb(heads, heads, *rotary(x_BSH, positions[None], kind))
        table = ops.rotary_table(waves(Rotation(wave), 64, x_BSH.device), 8192)
        assert_close(
            ops.rotary(x_BSH, 2, table), expected.transpose(1, 2).flatten(2), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_configuration_survives_both_ways(shape):
    architecture, config, vocab_size = ours_of(config_of(shape))
    for body in (config, config.with_layers(2)):
        theirs = transformers.AutoConfig.for_model(**architecture.config_json(body, vocab_size))
        assert architecture.config(theirs) == body
        assert theirs.vocab_size == vocab_size


FULL = ["full_attention"]
SLIDING = ["sliding_attention"]
YARN = {**THETA, "rope_type": "yarn", "factor": 4.0}
QUANTISED = {"quant_method": "fp8"}


@pytest.mark.parametrize(
    "shape, key, value, said",
    [
        ("modernbert as published", "layer_types", FULL + 2 * SLIDING + 4 * FULL, "layer_types"),
        (
            "modernbert as published",
            "hidden_size",
            36,
            "a head is 9 wide .head_size, or hidden_size / num_heads",
        ),
        ("qwen3", "head_dim", 7, "an even rotary dimension"),
        ("llama, untied", "rope_parameters", YARN, "rope_type 'yarn' is not served"),
        (
            "modernbert as published",
            "rope_parameters",
            {FULL[0]: LINEAR, SLIDING[0]: THETA},
            "rope_type linear is not",
        ),
        ("gemma3", "hidden_activation", "gelu", "'gelu' is not served; there is gelu_pytorch_tanh"),
        (
            "llama, untied",
            "rope_parameters",
            {**LLAMA3, "low_freq_factor": 8.0},
            "rotary_scaling: .*low is not above high",
        ),
        ("qwen2", "use_sliding_window", True, "layer_types"),
        (
            "eurobert",
            "quantization_config",
            QUANTISED,
            "quantization_config: quantised weights are not taken",
        ),
    ],
)
def test_what_is_not_served_of_a_configuration_is_named(shape, key, value, said, tmp_path):
    """The rest shows in the logits (tests/hf)."""
    values = config_of(shape).to_dict()
    if key == "use_sliding_window":
        values |= {"sliding_window": 8, "max_window_layers": 1, "layer_types": None}
    write_json(tmp_path / "config.json", {**values, key: value})
    with refuses(said):
        base.config_of(tmp_path)
