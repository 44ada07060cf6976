"""What of a language is damaged, mixed up or of another body is refused in one
line.
"""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.artifacts.models import load_body
from ds_minimodel.common.files import MANIFEST, read_json, read_manifest, write_json, write_manifest
from ds_minimodel.evaluation import task_of
from ds_minimodel.evaluation.packs import open_pack, plugged_module, save_plugged
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer
from tests.helpers.refusals import refuses


@pytest.fixture
def pack(family, tmp_path):
    """A copy of the German pack, to be damaged."""
    return shutil.copytree(family.de, tmp_path / "pack")


def opened(pack, body):
    """A pack for a body, both checked as export_hf and save_plugged do."""
    artifact = load_body(body)
    if artifact.task:
        task_of(body, artifact)
    return open_pack(pack, artifact)


def test_a_vocabulary_of_another_pack(family, pack):
    """Its manifest is in order again, as if made by hand."""
    train_tokenizer(
        [family.root / "de.txt"],
        pack.parent / "tok",
        vocab_size=31,
        character_coverage=1.0,
        input_sentences=1000,
    )
    shutil.copyfile(pack.parent / "tok/tokenizer.model", pack / "tokenizer.model")
    sealed(pack)
    with refuses("tokenizer.model: has 31 ids, where manifest.json says 33"):
        opened(pack, family.model)


def test_a_language_is_declared_to_be_of_another_body(family, other_family, tmp_path):
    save_plugged(family.classification, other_family.zh, tmp_path / "out")
    opened(tmp_path / "out", family.classification)
    before = read_manifest(other_family.zh)
    after = read_manifest(tmp_path / "out")
    assert after["trained_over"] == before["space"] != after["space"] == family.space
    same = ("language", "vocab_size", "steps", "eflops", "initialisation", "files")
    assert all(after[key] == before[key] for key in same)
    for pack, out, words in (
        (
            family.de,
            "new",
            "is over this body already; `ds-minimodel export-hf` writes both as one model",
        ),
        (other_family.de, "out", "out: exists"),
        (shutil.copytree(other_family.de, tmp_path / "de"), "de/in", "de/in: lies in .*de"),
    ):
        with refuses(words):
            save_plugged(family.classification, pack, tmp_path / out)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "de"}
    with refuses("embedding space"):
        opened(other_family.de, family.classification)


def sealed(folder, changed=(), file=None, **changes):
    """Change an artifact under a manifest that agrees, as a stranger would. changed: tensors of one
    file of its, None for one that it has not. changes: of its facts.
    """
    facts = {**read_json(folder / MANIFEST), **changes}
    del facts["files"]
    path = folder / file if file else next(folder.glob("*.safetensors"))
    tensors = (load_file(path) if path.exists() else {}) | dict(changed)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    (folder / MANIFEST).unlink()
    write_manifest(folder, **facts)


@pytest.mark.parametrize(
    "changed, file, words",
    [
        ({"bias": torch.zeros(33) / 0}, None, "'bias' holds NaN or infinite numbers"),
        ({"bias": torch.zeros(32)}, None, "are not those of 33 tokens"),
        ({"bias": None}, None, "languages of this body have bias, tokens"),
        ({"more": torch.zeros(1)}, None, r"'more': .1,."),
        (
            {"positions": torch.zeros(3, 16)},
            "body.safetensors",
            "changes positions of .*, which the body has not",
        ),
        (
            {"layers.9.qkv.weight": torch.zeros(48, 16)},
            "body.safetensors",
            "changes layers.9.qkv.weight of shape ",
        ),
    ],
)
def test_tensors_that_no_language_has(family, pack, changed, file, words):
    sealed(pack, changed, file)
    with refuses(words):
        opened(pack, family.model)


def test_a_body_that_was_trained_takes_no_tasks(family, pack):
    sealed(pack, load_body(family.model).tensors, "body.safetensors")
    opened(pack, family.model)
    with refuses("not the one that the task was finetuned on"):
        opened(pack, family.classification)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"out.bias": torch.zeros(3).int()}, "'out.bias' is of type I32"),
        ({"out.bias": None}, "out.bias is of shape"),
    ],
)
def test_tensors_that_no_task_model_has(family, pack, tmp_path, changed, words):
    model = shutil.copytree(family.classification, tmp_path / "model")
    sealed(model, changed)
    with refuses(words):
        opened(pack, model)
        dict(load_body(model).tensors)


@pytest.mark.parametrize(
    "task, words",
    [
        ({"kind": "poetry"}, "task.kind: 'poetry' is none of classification, sentence-pair, qa"),
        ({"labels": None}, "task.labels: classification takes names"),
        ({"kind": "qa"}, "task.labels: qa takes none"),
    ],
)
def test_tasks_that_a_model_is_not_of(family, pack, tmp_path, task, words):
    model = shutil.copytree(family.classification, tmp_path / "model")
    config = read_json(model / "config.json")
    write_json(model / "config.json", {**config, "task": {**config["task"], **task}})
    sealed(model)
    with refuses(words):
        opened(pack, model)


def test_a_model_in_a_packs_place_and_the_other_way_round(family, tmp_path):
    with refuses("it is not a tokenizer or a language pack"):
        opened(family.classification, family.model)
    opened(family.model, family.qa)
    body = shutil.copytree(family.qa, tmp_path / "body")
    sealed(body, kind="mini-model")
    with refuses("say another space or kind"):
        opened(family.de, body)


def test_a_plugged_module_is_the_body_with_the_language(family, other_family):
    body = load_body(family.model)
    language = load_adaptation(family.zh)
    model = plugged_module(body, language)
    assert not model.training
    assert model.body.positions.equal(language.update["positions"])
    # The body itself stays as it is.
    assert not torch.equal(body.tensors["positions"], model.body.positions)
    with refuses("the language de: this was trained for embedding space fedc"):
        plugged_module(body, load_adaptation(other_family.de))
    with refuses("has only its new tokens; give `whole`"):
        plugged_module(body, replace(language, num_base=5))
    with refuses("a task model has a head of its own"):
        plugged_module(load_body(family.qa), language)
