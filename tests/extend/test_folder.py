"""What a second call in the folder of `extend` may ask for, what it is refused, and what else reads
the folder.
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ds_minimodel import api
from tests.helpers.commands import refused

from ..forks import done, kill_after, run
from ..pipeline.conftest import make_llama_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a finished call, whose model has a chat template."""
    folder = tmp_path_factory.mktemp("folder")
    theirs = make_llama_world(folder)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    (theirs / "chat_template.jinja").write_text(template)
    rows = [{"role": "user", "content": "boat?"}, {"role": "assistant", "content": "fish."}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": rows}) + "\n")
    done(f"{call(folder, folder / 'out')} --tokens 6k")
    return folder


def call(folder, out, model="theirs"):
    return f"extend {folder}/{model} {folder}/xx.txt --language xx --out {out} --vocab-size 20"


def test_the_option_that_differs_is_named(folder):
    out = folder / "out"
    for option, value, begun in (
        ("--chats", folder / "chats.jsonl", "without it; leave it out"),
        ("--known-text", f"yy={folder / 'en.txt'}", "without it; leave it out"),
        ("--column", "body", "with text; give that again"),
        ("--vocab-size", "30", "with 20; give that again"),
        ("--source", "fr", "with en; give that again"),
    ):
        name = "--known-text yy" if option == "--known-text" else option
        said = f"ds-minimodel: {name}: {out} was begun {begun}, or give another --out"
        assert refused(f"{call(folder, out)} --tokens 6k {option} {value}") == said
    theirs = folder / "theirs"
    moved = theirs.rename(folder / "moved")
    said = refused(f"{call(folder, out, 'moved')} --tokens 6k")
    assert said.startswith(f"ds-minimodel: --model: {out} was begun with {theirs}; give that")
    moved.rename(theirs)


def test_paths_are_compared_as_what_they_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "link").symlink_to("theirs")
    for model, text, out in (
        ("./theirs/", "./xx.txt", "out"),
        ("link", "x[x].txt", "./out/"),
        ("theirs", f"../{folder.name}/xx.txt", "out"),
    ):
        command = f"extend {model} {text} --language xx --out {out} --vocab-size 20"
        err = done(f"{command} --tokens 6k")
        assert "adapt lora" not in err, "all is there"


def test_what_is_finished_is_written_again_while_a_longer_training_is_begun(folder, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    recipe = out / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(f"{folder}/out", str(out)))
    begin = f"{call(folder, out)} --tokens"
    model = (out / "model/model.safetensors").read_bytes()
    kill_after("recipe.yaml", f"{begin} 12k")
    shutil.rmtree(out / "model")
    err = done(f"{begin} 6k")
    assert "these are the models of the training that has ended" in err
    assert "adapt lora" not in err
    assert (out / "model/model.safetensors").read_bytes() == model
    assert "a training of 11,776 tokens is begun; a shorter" in refused(f"{begin} 5k")

    code, said, _ = run(f"status {out}")
    assert code == 0
    assert said.endswith("the same call of `ds-minimodel extend` resumes\n")
    assert "`ds-minimodel run`" not in said
    done(f"{begin} 12k")
    assert (out / "model/model.safetensors").read_bytes() != model
    assert "resumes" not in run(f"status {out}")[1]


def test_another_strength_is_an_export_of_the_folder(folder, tmp_path):
    out = folder / "out"
    again = done(f"{call(folder, out)} --tokens 6k")
    assert f"`ds-minimodel export-hf {out} OUT --strength 0.5` writes another strength" in again
    done(f"export-hf {out} {tmp_path}/half --strength 0.5")
    done(f"export-hf {out} {tmp_path}/whole --strength 1")
    done(f"export-hf {out} {tmp_path}/adapter --adapter")
    api.export_hf(out, tmp_path / "by-name", out / "run/adapt/lora/xx/pack", strength=0.5)
    half = load_file(tmp_path / "half/model.safetensors")
    whole = load_file(tmp_path / "whole/model.safetensors")
    written = load_file(out / "model/model.safetensors")
    named = load_file(tmp_path / "by-name/model.safetensors")
    for name, tensor in written.items():
        assert torch.equal(tensor, whole[name])
        assert torch.equal(half[name], named[name])
    assert any(not torch.equal(tensor, half[name]) for name, tensor in written.items())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == torch.float32
    assert (tmp_path / "adapter/adapter_model.safetensors").exists()


def test_a_call_that_is_refused_before_it_trains_leaves_no_folder(folder):
    (folder / "short.txt").write_text("".join(f"boat {number}\n\n" for number in range(150)))
    (folder / "bad.jsonl").write_text('{"messages": 3}\n')
    new = folder / "new/out"
    begin = f"extend {folder}/theirs --language xx --out {new}"
    refused(f"{begin} {folder}/short.txt")
    assert not new.parent.exists()
    refused(f"{begin} {folder}/xx.txt --chats {folder}/bad.jsonl")
    assert not new.parent.exists()
    new.mkdir(parents=True)
    (new / "mine.txt").write_text("mine")
    assert "was not begun by extend" in refused(f"{begin} {folder}/xx.txt")
    assert [*new.iterdir()] == [new / "mine.txt"]
