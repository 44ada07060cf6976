"""A model with two heads, task models over it and two languages, with random weights."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.models import BodyArtifact, save_body, save_model
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.evaluation import KINDS
from ds_minimodel.models.body import LanguagePack
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer
from tests.small_models import roberta

from ..data.conftest import corpus, text_file, tokenizer, tokenizer_folder  # noqa: F401

CONFIG = roberta(num_layers=3, hidden_size=16, num_heads=2, ffn_size=32, max_positions=48)
DEPTHS = (1, 3)
LABELS = ["no", "perhaps", "yes"]
# (language, text, size of the vocabulary)
TEXT = [
    ("en", "the small dog runs quickly over the green meadow and barks loudly", 28),
    ("de", "der kleine Hund läuft schnell über die grüne Wiese und bellt laut", 33),
    ("zh", "小狗在绿色的草地上跑得很快 今天的天气很好 我们去公园玩", 30),
]


@dataclass
class Family:
    """Folders of what descends from one body."""

    root: Path
    space: str

    def __getattr__(self, name):
        return self.root / name


def random(module, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.empty_like(tensor).normal_(
            1.0 if name.endswith("norm.weight") else 0.0, 0.4, generator=generator
        )
        for name, tensor in module.state_dict().items()
    }


def make_family(root, space):
    """model, whose language is en; task models classification and qa; languages de and zh, with
    positions.
    """
    found = {}
    for seed, (language, text, size) in enumerate(TEXT, 3):
        (root / f"{language}.txt").write_text((text + "\n") * 50)
        train_tokenizer(
            [root / f"{language}.txt"],
            root / f"{language}.tok",
            vocab_size=size,
            character_coverage=1.0,
            input_sentences=1000,
        )
        rows = open_tokenizer(root / f"{language}.tok").vocabulary.size
        found[language] = random(LanguagePack(rows, CONFIG), seed)
    body = BodyArtifact(CONFIG, DEPTHS, random(CONFIG.make_body(DEPTHS), 1), space)
    save_model(root / "model", body, body.adaptation("en", found.pop("en")), root / "en.tok")
    for kind in ("classification", "qa"):
        labels = None if kind == "qa" else LABELS
        tensors = random(KINDS[kind].module(CONFIG, 2, labels), 2)
        tensors = {name: value for name, value in tensors.items() if not name.startswith("pack.")}
        task = {"name": kind, "kind": kind, "labels": labels}
        task_model = BodyArtifact(CONFIG, (), tensors=tensors, space=space, task=task)
        save_body(root / kind, task_model, "task-model", root / "model")
    for language, rows in found.items():
        update = {"positions": torch.randn(50, 16, generator=torch.Generator().manual_seed(9))}
        learned = body.adaptation(
            language, rows, steps=7, eflops=0.5, update=update if language == "zh" else {}
        )
        save_adaptation(
            root / language, learned, root / f"{language}.tok", CONFIG, initialisation="overlap"
        )
    return Family(root, space)


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    return make_family(tmp_path_factory.mktemp("family"), "0123456789abcdef")


@pytest.fixture(scope="session")
def other_family(tmp_path_factory):
    return make_family(tmp_path_factory.mktemp("other"), "fedcba9876543210")


MULTINLI = (
    "gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 "
    "sentence2 promptID pairID genre label1 label2 label3 label4 label5"
).split()
XNLI = ["language", *MULTINLI, "sentence1_tokenized", "sentence2_tokenized", "match"]


def tsv(path, header, *rows):
    """Write rows, dicts or lists, of a tab-separated file; columns that a dict lacks are empty."""
    rows = [
        [row.get(name, "") for name in header] if isinstance(row, dict) else row for row in rows
    ]
    path.write_bytes("".join("\t".join(row) + "\n" for row in [header, *rows]).encode())
    return path


def nli(label, first, second, language=None):
    row = dict(
        gold_label=label,
        sentence1=first,
        sentence2=second,
        sentence1_parse="(ROOT (S))",
        promptID="1",
    )
    row |= dict(pairID="1n", genre="facetoface", label1="entailment")
    return (
        row
        if language is None
        else dict(language=language, **row, sentence1_tokenized="not this", match="True")
    )


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


class Letters:
    """A vocabulary of letters."""

    vocabulary = Vocabulary(200, bos=1, eos=2)

    def encode(self, texts):
        return [[ord(letter) for letter in text] for text in texts]
