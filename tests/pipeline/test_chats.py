"""A language whose model learns to answer: dialogues beside its text, by the base's chat
template.
"""

import pytest
from transformers import AutoTokenizer, GenerationConfig

from ds_minimodel.artifacts.base import module_of
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.retention import Decoder
from ds_minimodel.export.folder import export_adapter, export_hf
from tests.helpers.commands import refused
from tests.helpers.dialogues import write_dialogues
from tests.helpers.files import read_json_lines
from tests.helpers.foreign_models import END

from ..forks import done, kill_after
from .extension_world import chat_world  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

LORA = (
    "systems=[lora] adapt.new_token_penalty=0 adapt.rank=8 adapt.steps=30 adapt.seq_length=64"
).split()
LORA += ["data.held_out=0.1", "adapt.snapshot_every=10", "finetune.tasks={}"]
LORA += ["adapt.replay=0.2", "adapt.replay_from=base", "adapt.replay_kl=1"]


def test_answers_are_learned_of_dialogues(chat_world):  # noqa: F811
    """Those that are held out become likelier, beside the text and what is replayed."""
    arguments = "run", chat_world / "recipe.yaml", *LORA, f"data.chats.xx={chat_world}/chats.jsonl"
    done(*arguments)
    page = (chat_world / "run/report/report.md").read_text()
    assert "\n- LoRA, xx, loss on held-out text: " in page
    assert "Fewer bits are better" not in page, "no task"
    store = TokenStore(chat_world / "run/tokens/chats-xx")
    assert store.masked
    assert store.num_documents + TokenStore(store.folder / "held_out").num_documents == 100
    rows = read_json_lines(chat_world / "run/adapt/lora/xx/run/metrics.jsonl")
    scores = [
        row["held_out/chats_nats_per_token"]
        for row in rows
        if "held_out/chats_nats_per_token" in row
    ]
    assert scores[-1] < scores[0] - 0.5
    assert "chat_share" in refused(*arguments, "adapt.chat_share=0.5")
    pack = chat_world / "run/adapt/lora/xx/pack"
    export_hf(chat_world / "base", chat_world / "exported", pack)
    export_adapter(chat_world / "base", chat_world / "adapter", pack)
    tokenizer = AutoTokenizer.from_pretrained(chat_world / "exported")
    ends = [2, tokenizer.convert_tokens_to_ids(END)]  # config.json has the first
    for folder in (chat_world / "exported", chat_world / "adapter"):
        assert GenerationConfig.from_pretrained(folder).eos_token_id == ends
    assert tokenizer.eos_token == END
    looked_at = Decoder(module_of(chat_world / "base"), pack)
    assert looked_at.module.generation_config.eos_token_id == ends


def test_refusals(chat_world):  # noqa: F811
    recipe = chat_world / "recipe.yaml"
    chats = f"{chat_world}/chats.jsonl"
    assert "en is not among languages.targets" in refused(f"run {recipe}", f"data.chats.en={chats}")
    replaces = "data.chats.xx=" + chats, "tokenizer.vocabulary=replace", "adapt.new_token_penalty=0"
    assert "data.chats: are of a decoder whose" in refused(f"run {recipe}", *replaces)
    write_dialogues(chat_world / "bad.jsonl", [("assistant", "xx")])
    bad = *LORA, f"data.chats.xx={chat_world}/bad.jsonl", f"workdir={chat_world}/bad"
    assert "bad.jsonl:1: turn 1: of" in refused(f"run {recipe}", *bad)
    extend = f"extend {chat_world}/theirs {chat_world}/xx.txt --language xx --tokens 20k"
    extend += f" --out {chat_world}/out"
    assert "bad.jsonl:1: turn 1: of" in refused(f"{extend} --chats {chat_world}/bad.jsonl")
    assert not (chat_world / "out/recipe.yaml").exists(), "a mended file may follow"
    kill_after("recipe.yaml", f"{extend} --chats {chats}")
    assert "chats.jsonl; give that again" in refused(extend), "which it was begun with"
