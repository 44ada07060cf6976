"""Exports as transformers 4 reads them, which most servers run: the logits and ids are those of
this environment's.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ds_minimodel.artifacts.base import refer
from ds_minimodel.export.folder import export_hf
from tests.helpers.architectures import SHAPES, config_of
from tests.helpers.byte_pairs import bpe
from tests.helpers.files import read_json
from tests.helpers.foreign_models import make_bert, save_modernbert

from .conftest import ODD_TEXTS, TEXTS, make_roberta_json, make_xlm_r, randomise

pytestmark = pytest.mark.long

# huggingface_hub and tokenizers are those that it takes; all else is of this environment.
PACKAGES = "transformers==4.57.6", "tokenizers==0.22.1", "huggingface_hub==0.36.0"
READ = """
import json, sys, torch, transformers
texts, found = json.loads(sys.argv[2]), {}
for folder in sys.argv[3:]:
    with open(f"{folder}/config.json") as file:
        model_class = getattr(transformers, json.load(file)["architectures"][0])
    model = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.arange(5, 45)[None]).logits[0]
    asked = [{"role": "user", "content": "a"}]
    chat = tokenizer.apply_chat_template(asked, tokenize=False) if tokenizer.chat_template else ""
    encoded = dict(tokenizer(texts))
    decoded = [tokenizer.decode(ids) for ids in encoded["input_ids"]]
    found[folder] = logits, encoded, decoded, chat, sorted(tokenizer.all_special_tokens)
torch.save((transformers.__version__, found), sys.argv[1])
"""
CHAT = "{% for one in messages %}<|user|>{{ one.content }}{% endfor %}"
ALL_TEXTS = [*TEXTS, *(text for text in ODD_TEXTS if text.strip()), "a<|user|>b <mask> 12345"]
BY_BYTES = ["<|endoftext|>", "<|user|>"]
CLASSES = {
    "llama, untied": transformers.LlamaTokenizer,
    "gemma3": transformers.GemmaTokenizer,
    "qwen2": transformers.Qwen2Tokenizer,
    "olmo2": transformers.GPT2Tokenizer,
}
DECODERS = [
    shape
    for shape in SHAPES
    if shape.split(",")[0] in ("llama", "qwen2", "qwen3", "olmo2", "gemma3")
]
ENCODERS = [shape for shape in SHAPES if shape.startswith("modernbert")]
NAMES = ["bert", "roberta", "xlm-r", *ENCODERS, *DECODERS]


def tokenizer_of(shape, text_file):
    """One of the class that published ones have, with a special token that has no role, and a chat
    template.
    """
    kind = CLASSES.get(shape, transformers.PreTrainedTokenizerFast)
    lines = text_file.read_text().split("\n")
    options = {"extra_special_tokens": ["<|user|>"], "chat_template": CHAT}
    if kind in (transformers.LlamaTokenizer, transformers.GemmaTokenizer):
        names = {
            role: f"<{role.removesuffix('_token')}>"
            for role in ("pad_token", "eos_token", "bos_token", "unk_token")
        }
        model = json.loads(bpe(lines).to_str())["model"]
        named = [*names.values(), "<mask>", "<|user|>"]
        pieces = [
            *named,
            *(piece for piece in model["vocab"] if piece not in ("<s>", "</s>", *named)),
        ]
        merges = [tuple(pair) for pair in model["merges"]]
        vocab = {piece: id for id, piece in enumerate(pieces)}
        return kind(vocab=vocab, merges=merges, **names, mask_token="<mask>", **options)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=330, special_tokens=BY_BYTES, initial_alphabet=alphabet, show_progress=False
        ),
    )
    names = dict.fromkeys(("pad_token", "eos_token", "bos_token", "unk_token"), BY_BYTES[0])
    if kind is transformers.PreTrainedTokenizerFast:
        return kind(tokenizer_object=made, **names, **options)
    model = json.loads(made.to_str())["model"]
    return kind(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], **names, **options
    )


def save(name, text_file, unigram_folder, folder):
    """A model of this kind as transformers 5 saves it."""
    if name in DECODERS:
        tokenizer = tokenizer_of(name, text_file)
        tokenizer.save_pretrained(folder)
        ids = {
            f"{role}_token_id": getattr(tokenizer, f"{role}_token_id")
            for role in ("pad", "bos", "eos")
        }
        config = config_of(name, vocab_size=len(tokenizer), **ids)
        randomise(transformers.AutoModelForCausalLM.from_config(config)).save_pretrained(folder)
    elif name in ENCODERS:
        save_modernbert(text_file, folder)
        size = read_json(folder / "config.json")["vocab_size"]
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
        ids = {f"{role}_token_id": None for role in ("mask", "cls", "sep", "pad", "bos", "eos")}
        randomise(
            transformers.AutoModelForMaskedLM.from_config(config_of(name, vocab_size=size, **ids))
        ).save_pretrained(folder)
    else:
        make = {"bert": make_bert, "roberta": make_roberta_json, "xlm-r": make_xlm_r}[name]
        make(unigram_folder if name == "xlm-r" else text_file, folder)


@pytest.fixture(scope="module")
def read(text_file, unigram_folder, made_once, tmp_path_factory):
    """{4 or 5, transformers' version: {name: (logits, what it makes of texts, …)}}"""

    def install(folder):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            folder,
            *PACKAGES,
        ]
        subprocess.run(pip, check=True, timeout=600)

    folder = tmp_path_factory.mktemp("transformers-4")
    found = {}
    (folder / "theirs").mkdir()
    for name in NAMES:
        save(name, text_file, unigram_folder, folder / "theirs" / name)
        refer(folder / "theirs" / name, folder / "in" / name, "en")
        export_hf(folder / "in" / name, folder / "out" / name)
    for path in (str(made_once("transformers-4.57", install)), ""):
        command = [
            sys.executable,
            "-c",
            READ,
            str(folder / "found.pt"),
            json.dumps(ALL_TEXTS),
            *NAMES,
        ]
        environment = {**os.environ, "PYTHONPATH": path}
        subprocess.run(command, check=True, timeout=600, cwd=folder / "out", env=environment)
        version, values = torch.load(folder / "found.pt")
        found[int(version[0])] = values
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_what_this_environments_reads(read, name):
    (old_logits, *old) = read[4][name]
    (logits, *new) = read[5][name]
    torch.testing.assert_close(old_logits, logits, atol=1e-5 * float(logits.abs().max()), rtol=0)
    assert old == new
    assert name not in DECODERS or "<|user|>" in old[-1]
