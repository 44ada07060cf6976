"""A pack shows what it is; what is damaged, mixed up or of another body is refused in one line."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.artifacts.models import load_body
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, read_json, write_json, write_manifest
from ds_minimodel.serve.packs import check_pack, facts_of, plugged_module, save_plugged


@pytest.fixture
def pack(family, tmp_path):
    """A copy of the German pack, to be damaged."""
    return shutil.copytree(family.de, tmp_path / "pack")


def test_facts(family):
    facts = facts_of(family.zh)
    assert (facts["language"], facts["space"], facts["steps"], facts["eflops"]) == ("zh", family.space, 7, 0.5)
    assert facts["vocab_size"] == 30 and facts["initialisation"] == "overlap"
    assert facts["files"]["embeddings.safetensors"] == (family.zh / "embeddings.safetensors").stat().st_size


def test_a_vocabulary_of_another_pack(family, pack):
    """Its manifest is in order again, as if made by hand."""
    from ds_minimodel.data.tokenizer_training import train_tokenizer

    train_tokenizer([family.root / "de.txt"], pack.parent / "tok", 31, 1.0, 1000)
    shutil.copyfile(pack.parent / "tok/tokenizer.model", pack / "tokenizer.model")
    sealed(pack)
    with pytest.raises(UserError, match="tokenizer.model: has 31 ids, where manifest.json says 33"):
        check_pack(pack, family.body)


def test_plugged_together_they_are_whole_and_nothing_is_overwritten(family, other_family, tmp_path):
    save_plugged(family.pair, family.de, tmp_path / "out")
    check_pack(tmp_path / "out/pack", tmp_path / "out/body")
    with pytest.raises(UserError, match="out: exists"):
        save_plugged(family.pair, family.zh, tmp_path / "out")
    with pytest.raises(UserError, match="embedding space"):
        save_plugged(family.pair, other_family.de, tmp_path / "new")
    with pytest.raises(UserError, match="out/pack/in: lies in .*out/pack"):
        save_plugged(family.pair, tmp_path / "out/pack", tmp_path / "out/pack/in")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_pack_is_put_beside_another_body_of_its_space_by_declaration(family, other_family, tmp_path):
    save_plugged(family.pair, other_family.de, tmp_path / "out", onto=True)
    check_pack(tmp_path / "out/pack", tmp_path / "out/body")
    before, after = facts_of(other_family.de), facts_of(tmp_path / "out/pack")
    assert after["trained_over"] == before["space"] != after["space"]
    assert all(after[key] == before[key] for key in ("language", "vocab_size", "steps", "eflops"))
    with pytest.raises(UserError, match="leave out --onto"):
        save_plugged(family.pair, family.de, tmp_path / "new", onto=True)
    assert not (tmp_path / "new").exists()


def sealed(folder, change=lambda tensors: None, **changes):
    """Change the tensors of an artifact under a manifest that agrees, as a stranger would. changes: of its facts."""
    facts = {**read_json(folder / MANIFEST), **changes}
    del facts["files"]
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    (folder / MANIFEST).unlink()
    write_manifest(folder, **facts)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda tensors: tensors["bias"].fill_(float("nan")), "'bias' holds NaN or infinite numbers"),
        (lambda tensors: tensors.update(bias=tensors["bias"].int()), "'bias' is of type torch.int32"),
        (lambda tensors: tensors.update(bias=tensors["bias"][:-1]), "are not those of 33 rows"),
        (lambda tensors: tensors.pop("bias"), "languages of this body have bias, tokens"),
        (lambda tensors: tensors.update(more=torch.zeros(1)), r"'more': .1,."),
        (lambda tensors: tensors.update({"body.positions": torch.zeros(3, 16)}), "replaces body.positions of shape"),
    ],
)
def test_tensors_that_no_pack_has(family, pack, change, words):
    sealed(pack, change)
    with pytest.raises(UserError, match=words):
        check_pack(pack, family.body)


def test_a_body_that_was_trained_takes_no_tasks(family, pack):
    layers = {f"body.{name}": rows for name, rows in load_file(family.body / "model.safetensors").items()}
    sealed(pack, lambda tensors: tensors.update(layers))
    check_pack(pack, family.body)
    with pytest.raises(UserError, match="not the one that the task was finetuned on"):
        check_pack(pack, family.classification)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda tensors: tensors["out.bias"].fill_(float("nan")), "'out.bias' holds NaN"),
        (lambda tensors: tensors.pop("out.bias"), "out.bias is of shape"),
        (lambda tensors: tensors.update({"more.bias": torch.zeros(2)}), "more.bias is of shape none by config.json"),
        (lambda tensors: tensors.pop("body.positions"), "body.positions is of shape"),
    ],
)
def test_tensors_that_no_task_model_has(family, pack, tmp_path, change, words):
    model = shutil.copytree(family.classification, tmp_path / "model")
    sealed(model, change)
    with pytest.raises(UserError, match=words):
        check_pack(pack, model)


@pytest.mark.parametrize(
    "task, words",
    [
        ({"kind": "poetry"}, "task.kind: 'poetry' is none of classification, pair, qa"),
        ({"labels": None}, "task.labels: classification takes names"),
        ({"labels": ["a", "a", "b"]}, "each once"),
        ({"labels": ["a", "b"]}, "out.bias is of shape"),
        ({"kind": "qa"}, "task.labels: qa takes none"),
    ],
)
def test_tasks_that_a_model_is_not_of(family, pack, tmp_path, task, words):
    model = shutil.copytree(family.classification, tmp_path / "model")
    config = read_json(model / "config.json")
    write_json(model / "config.json", {**config, "task": {**config["task"], **task}})
    sealed(model)
    with pytest.raises(UserError, match=words):
        check_pack(pack, model)


def test_a_model_in_a_packs_place_and_the_other_way_round(family, tmp_path):
    for model, pack, words in (
        (family.de, family.de, "a language-pack, not a body"),
        (family.body, family.classification, "a task-model, not a language pack"),
    ):
        with pytest.raises(UserError, match=words):
            check_pack(pack, model)
    body = shutil.copytree(family.body, tmp_path / "body")
    sealed(body, kind="task-model")
    with pytest.raises(UserError, match="say another space or kind"):
        check_pack(family.de, body)


def test_a_plugged_module_is_the_body_with_the_pack(family, other_family):
    body, pack = load_body(family.body), load_adaptation(family.zh)
    model = plugged_module(body, pack)
    expected = {f"body.{name}": tensor for name, tensor in body.tensors.items()}
    for name, tensor in pack.tensors.items():
        expected[name if name.startswith("body.") else f"pack.{name}"] = tensor
    state = model.state_dict()
    assert not model.training and state.keys() == expected.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in expected.items())
    assert not torch.equal(body.tensors["positions"], model.body.positions)  # the body itself stays as it is
    with pytest.raises(UserError, match="the pack of de: this pack was trained for embedding space fedc"):
        plugged_module(body, load_adaptation(other_family.de))
    with pytest.raises(UserError, match="a task model has a head of its own"):
        plugged_module(load_body(family.qa), pack)
