"""A body with two heads, task models over it and packs of two languages, with random weights."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact, save_body
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.data.tokenizer_training import train_tokenizer
from ds_minimodel.tasks import KINDS
from tests.small_models import masked_lm, roberta

CONFIG, DEPTHS = roberta(3, 16, 2, 32, 48), (1, 3)
LABELS = ["no", "perhaps", "yes"]
# (language, text, size of the vocabulary)
TEXT = [
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
        name: torch.empty_like(tensor).normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.4, generator=generator)
        for name, tensor in module.state_dict().items()
    }


def make_family(root, space):
    """body, classification, pair and qa task models, and packs de and zh; zh replaces the body's positions."""
    tensors = random(masked_lm(CONFIG, 2, *DEPTHS), 1)
    body = {name.removeprefix("body."): tensor for name, tensor in tensors.items() if name.startswith("body.")}
    save_body(root / "body", BodyArtifact(CONFIG, DEPTHS, body, space), "body")
    for kind in ("classification", "pair", "qa"):
        labels = None if kind == "qa" else LABELS
        own = {
            name: tensor
            for name, tensor in random(KINDS[kind].module(CONFIG, 2, labels), 2).items()
            if not name.startswith("pack.")
        }
        task = {"name": kind, "kind": kind, "labels": labels}
        save_body(root / kind, BodyArtifact(CONFIG, (), own, space, task), "task-model")
    for seed, (language, text, size) in enumerate(TEXT, 3):
        (root / f"{language}.txt").write_text((text + "\n") * 50, encoding="utf-8")
        train_tokenizer([root / f"{language}.txt"], root / f"{language}.tok", size, 1.0, 1000)
        rows = open_tokenizer(root / f"{language}.tok").vocabulary.size
        generator = torch.Generator().manual_seed(seed)
        tensors = {
            name: torch.randn(*shape, generator=generator)
            for name, shape in (("tokens", (rows, 16)), ("bias", (rows,)))
        }
        if language == "zh":
            tensors["body.positions"] = torch.randn(50, 16, generator=generator)
        save_adaptation(
            root / language,
            Adaptation(language, tensors, space, 7, 0.5),
            root / f"{language}.tok",
            initialisation="overlap",
        )
    return Family(root, space)


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    return make_family(tmp_path_factory.mktemp("family"), "0123456789abcdef")


@pytest.fixture(scope="session")
def other_family(tmp_path_factory):
    return make_family(tmp_path_factory.mktemp("other"), "fedcba9876543210")
