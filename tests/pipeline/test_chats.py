"""A language whose model learns to answer: dialogues beside its text, by the base's chat
template.
"""

import json

import pytest
from transformers import AutoTokenizer, GenerationConfig

from ds_minimodel.artifacts.base import module_of, refer
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.retention import Decoder
from ds_minimodel.export.folder import export_adapter, export_hf

from ..forks import KILLED_AFTER, Fork, done
from ..hf.test_chats import TEMPLATES, write
from ..hf.test_decoders import END, save_llama
from .conftest import make_world, refused
from .test_extension import RECIPE

pytestmark = pytest.mark.slow

LORA = (
    "systems=[lora] adapt.new_token_penalty=0 adapt.rank=2 adapt.steps=30 adapt.seq_length=64"
).split()
LORA += ["data.held_out=0.1", "adapt.snapshot_every=10", "finetune.tasks={}"]
LORA += ["adapt.replay=0.2", "adapt.replay_from=base", "adapt.replay_kl=1"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder of a recipe whose base has a chat template, and of dialogues."""
    folder = tmp_path_factory.mktemp("chats")
    path = make_world(folder)
    theirs = save_llama(folder / "en.txt", folder / "theirs", "$A")
    tokenizer = AutoTokenizer.from_pretrained(theirs)
    tokenizer.chat_template = TEMPLATES["smollm2"]
    tokenizer.save_pretrained(theirs)
    refer(theirs, folder / "base", "en")
    path.write_text(RECIPE.format(folder=folder))
    write(
        folder / "chats.jsonl",
        *([("user", f"{index} ?"), ("assistant", "xx xx")] for index in range(100)),
    )
    return folder


def test_answers_are_learned_of_dialogues(world):
    """Those that are held out become likelier, beside the text and what is replayed."""
    arguments = "run", world / "recipe.yaml", *LORA, f"data.chats.xx={world}/chats.jsonl"
    done(*arguments)
    page = (world / "run/report/report.md").read_text()
    assert (
        "\n- LoRA, xx, loss on held-out text: " in page and "Fewer bits are better" not in page
    ), "no task"
    store = TokenStore(world / "run/tokens/the-chats-of-xx")
    assert (
        store.masked
        and store.num_documents + TokenStore(store.folder / "held_out").num_documents == 100
    )
    rows = [
        json.loads(line)
        for line in (world / "run/adapt/lora/xx/run/metrics.jsonl").read_text().splitlines()
    ]
    scores = [
        row["held_out/chats_nats_per_token"]
        for row in rows
        if "held_out/chats_nats_per_token" in row
    ]
    assert scores[-1] < scores[0] - 0.5
    assert "chat_share" in refused(*arguments, "adapt.chat_share=0.5")
    pack = world / "run/adapt/lora/xx/pack"
    export_hf(world / "base", world / "exported", pack)
    export_adapter(world / "base", world / "adapter", pack)
    tokenizer = AutoTokenizer.from_pretrained(world / "exported")
    ends = [2, tokenizer.convert_tokens_to_ids(END)]  # config.json has the first
    for folder in (world / "exported", world / "adapter"):
        assert GenerationConfig.from_pretrained(folder).eos_token_id == ends
    assert tokenizer.eos_token == END
    looked_at = Decoder(module_of(world / "base"), pack)
    assert looked_at.module.generation_config.eos_token_id == ends


def test_refusals(world):
    recipe = world / "recipe.yaml"
    chats = f"{world}/chats.jsonl"
    assert "en is not among languages.targets" in refused("run", recipe, f"data.chats.en={chats}")
    replaces = "data.chats.xx=" + chats, "tokenizer.vocabulary=replace", "adapt.new_token_penalty=0"
    assert "data.chats: are of a decoder whose" in refused("run", recipe, *replaces)
    write(world / "bad.jsonl", [("assistant", "xx")])
    bad = *LORA, f"data.chats.xx={world}/bad.jsonl", f"workdir={world}/bad"
    assert "bad.jsonl:1: turn 1: of" in refused("run", recipe, *bad)
    extend = (
        "extend",
        world / "theirs",
        world / "xx.txt",
        "--language",
        "xx",
        "--tokens",
        "20k",
        "--out",
        world / "out",
    )
    assert "bad.jsonl:1: turn 1: of" in refused(*extend, "--chats", world / "bad.jsonl")
    assert not (world / "out/recipe.yaml").exists(), "a mended file may follow"
    begin = [*map(str, extend), "--chats", chats]
    Fork(KILLED_AFTER, "recipe.yaml", begin).wait()
    assert "chats.jsonl; give that again" in refused(*extend), "which it was begun with"
