"""How an adaptation is computed, by the memory that there is."""

import pytest
from transformers import LlamaConfig

from ds_minimodel.config.base import read_base
from ds_minimodel.config.extension import batch_of, first_values, set_sizes
from ds_minimodel.config.reading import recipe_of_values
from ds_minimodel.costs.memory import Device
from ds_minimodel.costs.sizes import fit

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
        ("cuda", 1.6, 1, 1, 4096, True),
        ("cuda", 0.6, 1, 1, 128, True),
        ("cuda", 0.6, 8, 3, 256, True),
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
    assert (found.zero_stage, found.micro_batch_size * 128, found.recompute_layers) == (
        stage,
        tokens,
        again,
    )


@pytest.mark.parametrize("tokens, rank", [(1_000_000, 16), (8_000_000, 32), (1 << 40, 256)])
def test_more_text_takes_a_larger_rank(base, tokens, rank):
    """Of 151,552 numbers a rank."""
    own = read_base(str(base))
    values = first_values(str(base), own, base, ("en", "xx"), {"xx": ["xx.txt"]})
    set_sizes(values, own, 1 << 41, tokens, 128, timed=False)
    assert values["adapt"]["rank"] == rank
