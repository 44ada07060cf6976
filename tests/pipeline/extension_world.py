"""A world whose English a Llama knows, and a recipe that extends its vocabulary."""

import pytest
from transformers import AutoTokenizer

from ds_minimodel.artifacts.base import refer
from tests.helpers.dialogues import TEMPLATES, write_dialogues
from tests.helpers.foreign_models import save_llama
from tests.pipeline.conftest import make_world

RECIPE = """
workdir: {folder}/run
systems: [bl_base, minipost]
base: {folder}/base
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocabulary: extend, vocab_size: 24}}
data: {{workers: 1, text: {{en: {folder}/en.txt, xx: {folder}/xx.txt}}}}
mini: {{depth: 1, new_layers: 1}}
build_mini: {{steps: 2, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 1}}
adapt: {{steps: 6, batch_size: 8, seq_length: 32, lr: 2e-2, warmup_steps: 1,
        snapshot_every: 3, new_token_penalty: 1}}
finetune: {{seeds: 1, max_length: 48, tasks: {{
  bits: {{kind: bits-per-byte, context_bytes: 48,
         test: {{en: {folder}/en.txt, xx: {folder}/xx.txt}}}}}}}}
engine: {{precision: fp32, micro_batch_size: 4}}
checkpoint: {{every: 2}}
"""


def make_recipe(folder, *, tied=True):
    """A world whose English a Llama knows; the recipe's path."""
    folder.mkdir(exist_ok=True)
    path = make_world(folder)
    refer(save_llama(folder / "en.txt", folder / "theirs", "$A", tied=tied), folder / "base", "en")
    path.write_text(RECIPE.format(folder=folder))
    return path


@pytest.fixture(scope="module")
def chat_world(tmp_path_factory):
    """The folder of a recipe whose base has a chat template, and of dialogues."""
    folder = tmp_path_factory.mktemp("chats")
    path = make_world(folder)
    theirs = save_llama(folder / "en.txt", folder / "theirs", "$A")
    tokenizer = AutoTokenizer.from_pretrained(theirs)
    tokenizer.chat_template = TEMPLATES["smollm2"]
    tokenizer.save_pretrained(theirs)
    refer(theirs, folder / "base", "en")
    path.write_text(RECIPE.format(folder=folder))
    write_dialogues(
        folder / "chats.jsonl",
        *([("user", f"{index} ?"), ("assistant", "xx xx")] for index in range(100)),
    )
    return folder
