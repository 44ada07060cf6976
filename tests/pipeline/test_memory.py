"""Memory of a step by the formula, and how an adaptation is computed by the memory there is."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from ds_minimodel.config.base import read_base
from ds_minimodel.config.reading import recipe_of_values
from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.extend.config import ExtendConfig
from ds_minimodel.extend.recipe import batch_of, first_values, set_sizes
from ds_minimodel.models.trainable import materialise, to_tensors
from ds_minimodel.pipeline.memory import Device, activations_of
from ds_minimodel.pipeline.plan import fit, planner_of, setup_of
from ds_minimodel.pipeline.training import text_steps

from ..saved import saved_bytes

pytestmark = pytest.mark.slow

LLAMA = {
    "num_hidden_layers": 4,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
}
LLAMA |= {"num_key_value_heads": 8, "vocab_size": 32_000}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    LlamaConfig(**LLAMA, tie_word_embeddings=True).save_pretrained(folder)  # of 620 MB in bf16
    return folder


@pytest.mark.parametrize(
    "device, gigabytes, ranks, stage, tokens, again",
    [
        ("cpu", 24, 1, 0, 1024, False),
        ("cpu", 24, 3, 0, 512, False),
        ("cuda", 80, 1, 1, 16_384, False),
        ("cuda", 1.6, 1, 1, 2048, True),
        ("cuda", 0.6, 1, 1, 128, True),
        ("cuda", 0.6, 8, 3, 512, True),
    ],
)
def test_memory_decides(base, device, gigabytes, ranks, stage, tokens, again):
    assert [batch_of(8, ranks), batch_of(32, ranks)] == {1: [8, 32], 3: [9, 36], 8: [8, 32]}[ranks]
    values = {
        "workdir": "run",
        "systems": ["lora"],
        "base": str(base),
        "data": {"text": {"xx": ["xx.txt"]}},
    }
    values |= {"languages": {"source": "en", "targets": ["xx"]}, "engine": {"precision": "bf16"}}
    values |= {"tokenizer": {"vocabulary": "extend", "vocab_size": 100}}
    values["adapt"] = {
        "steps": 10,
        "batch_size": batch_of(128, ranks),
        "seq_length": 128,
        "lr": 1e-3,
    }
    recipe = recipe_of_values(values, "a recipe")
    found = fit(recipe, ranks, Device("some", device, int(gigabytes * 1e9), ("bf16",)))
    assert found.zero_stage == stage
    assert found.micro_batch_size * 128 == tokens
    assert found.recompute_layers == again


@pytest.mark.parametrize("tokens, rank", [(1_000_000, 16), (8_000_000, 32), (1 << 40, 256)])
def test_more_text_takes_a_larger_rank(base, tokens, rank):
    """Of 151,552 numbers a rank."""
    of_base = read_base(str(base))
    config = ExtendConfig(model=base, text="xx.txt", language="xx", out=base)
    values = first_values(config, of_base, tokens=1 << 41)
    set_sizes(values, of_base, tokens=1 << 41, text_tokens=tokens, seq_length=128, is_timed=False)
    assert values["adapt"]["rank"] == rank


@pytest.mark.parametrize("ranks, words", [(1, []), (2, []), (3, ["a batch of 9, which 3 ranks"])])
def test_ranks_that_change_the_batch_are_said(base, ranks, words):
    of_base = read_base(str(base))
    config = ExtendConfig(model=base, text="xx.txt", language="xx", out=base)
    values = first_values(config, of_base, tokens=9000)
    said = set_sizes(
        values, of_base, tokens=9000, text_tokens=9000, seq_length=128, is_timed=False, ranks=ranks
    )
    assert [line[: len("a batch of 9, which 3 ranks")] for line in said if "batch" in line] == words


SIZES = {"num_layers": 4, "hidden_size": 128, "num_heads": 2, "ffn_size": 512, "dropout": 0.0}
SIZES |= {"attention_dropout": 0.0, "max_positions": 128}
TEXT = {"steps": 4, "batch_size": 8, "seq_length": 64, "lr": 1e-3, "warmup_steps": 1}
CPU = Device("some", "cpu", 2**34)


def planned(kind, system, step):
    """The Planner of a step of a small model, its Setup and its section of the recipe."""
    values = {
        "workdir": "run",
        "systems": [system],
        "languages": {"source": "en", "targets": ["xx"]},
        "data": {"text": {"en": ["en.txt"], "xx": ["xx.txt"]}},
        "tokenizer": {"vocab_size": 500},
        "model": {"kind": kind, **SIZES, **({"num_kv_heads": 1} if kind == "llama" else {})},
        "engine": {"precision": "fp32", "micro_batch_size": 4},
        **dict.fromkeys(("pretrain", "build_mini", "adapt"), TEXT),
    }
    recipe = recipe_of_values(values, "a recipe")
    section = text_steps(recipe, [SYSTEMS[system]])[step]
    setup = setup_of(recipe, section, ranks=1, device=CPU)
    return planner_of(recipe, SYSTEMS[system], step, CPU), setup, recipe.trained_by, section


@pytest.mark.parametrize("kind", ["roberta", "modernbert", "llama"])
@pytest.mark.parametrize(
    "system, step", [("bl_base", "pretrain"), ("bl_base", "adapt"), ("lora", "adapt")]
)
def test_activations_are_about_those_that_autograd_keeps(kind, system, step):
    """The formula counts what the layer at work adds in the backward pass, too."""
    planner, setup, objective, section = planned(kind, system, step)
    materialise(planner.module, torch.float32, torch.device("cpu"))
    shapes = objective.shapes(section, section.seq_length)
    batch = {name: np.zeros((4, *shape), np.int64) for name, shape in shapes.items()}
    batch |= {"sample_keys": np.zeros(4, np.int32), "lengths": np.full(4, 64, np.int32)}
    kept = saved_bytes(planner.module, to_tensors(batch))
    assert kept <= 1.1 * activations_of(planner.load, setup, CPU) <= 1.6 * kept


def test_what_fits_is_found():
    planner, setup, _, _ = planned("roberta", "bl_base", "pretrain")
    setup = setup._replace(ranks=2, batch_size=16, micro_batch_size=8, precision="bf16")
    whole = planner.memory(setup).total
    exact = setup._replace(device_memory=whole)
    less = setup._replace(device_memory=whole - 1)
    tiny = setup._replace(device_memory=1)
    assert planner.smallest_stage(exact) == 0
    assert planner.smallest_stage(less) > 0
    assert planner.largest_micro_batch(exact) == 8
    assert planner.largest_micro_batch(less) in (1, 2, 4)
    assert planner.largest_micro_batch(tiny) is None
    assert planner.smallest_stage(tiny) is None
