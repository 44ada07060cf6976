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

from ..forks import KILLED_AFTER, Fork, done, run
from ..pipeline.conftest import make_llama_world, refused


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """A finished call, whose model has a chat template."""
    folder = tmp_path_factory.mktemp("folder")
    theirs = make_llama_world(folder)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    (theirs / "chat_template.jinja").write_text(template)
    rows = [{"role": "user", "content": "boat?"}, {"role": "assistant", "content": "fish."}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": rows}) + "\n")
    call = ["extend", theirs, folder / "xx.txt", "--language", "xx", "--out", folder / "out"]
    done(*call, "--vocab-size", "20", "--tokens", "6k")
    return [*call, "--vocab-size", "20"]


def test_the_option_that_differs_is_named(call):
    folder = call[1].parent
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
        assert refused(*call, "--tokens", "6k", option, value) == said
    moved = call[1].rename(folder / "moved")
    said = refused(call[0], moved, *call[2:], "--tokens", "6k")
    assert said.startswith(f"ds-minimodel: --model: {out} was begun with {call[1]}; give that")
    moved.rename(call[1])


def test_paths_are_compared_as_what_they_name(call, monkeypatch):
    folder = call[1].parent
    monkeypatch.chdir(folder)
    (folder / "link").symlink_to("theirs")
    for model, text, out in (
        ("./theirs/", "./xx.txt", "out"),
        ("link", "x[x].txt", "./out/"),
        ("theirs", "../folder0/xx.txt".replace("folder0", folder.name), "out"),
    ):
        arguments = ["extend", model, text, "--language", "xx", "--out", out]
        err = done(*arguments, "--vocab-size", "20", "--tokens", "6k")
        assert "adapt lora" not in err, "all is there"


def test_what_is_finished_is_written_again_while_a_longer_training_is_begun(call, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(call[1].parent / "out", out)
    recipe = out / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(f"{call[1].parent}/out", str(out)))
    call = [*call[:5], "--out", out, *call[7:]]
    model = (out / "model/model.safetensors").read_bytes()
    longer = Fork(KILLED_AFTER, "recipe.yaml", [*map(str, call), "--tokens", "12k"])
    assert longer.wait() < 0
    shutil.rmtree(out / "model")
    err = done(*call, "--tokens", "6k")
    assert "these are the models of the training that has ended" in err
    assert "adapt lora" not in err
    assert (out / "model/model.safetensors").read_bytes() == model
    assert "a training of 11,776 tokens is begun; a shorter" in refused(*call, "--tokens", "5k")

    code, said, _ = run(f"status {out}")
    assert code == 0
    assert said.endswith("the same call of `ds-minimodel extend` goes on\n")
    assert "`ds-minimodel run`" not in said
    done(*call, "--tokens", "12k")
    assert (out / "model/model.safetensors").read_bytes() != model
    assert "goes on" not in run(f"status {out}")[1]


def test_another_strength_is_an_export_of_the_folder(call, tmp_path):
    out = call[1].parent / "out"
    again = done(*call, "--tokens", "6k")
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


def test_a_call_that_is_refused_before_it_trains_leaves_no_folder(call):
    folder = call[1].parent
    (folder / "short.txt").write_text("".join(f"boat {number}\n\n" for number in range(150)))
    (folder / "bad.jsonl").write_text('{"messages": 3}\n')
    new = folder / "new/out"
    begin = ["extend", call[1], "--language", "xx", "--out", new]
    refused(*begin[:2], folder / "short.txt", *begin[2:])
    assert not new.parent.exists()
    refused(*begin[:2], folder / "xx.txt", *begin[2:], "--chats", folder / "bad.jsonl")
    assert not new.parent.exists()
    new.mkdir(parents=True)
    (new / "mine.txt").write_text("mine")
    assert "was not begun by extend" in refused(*begin[:2], folder / "xx.txt", *begin[2:])
    assert [*new.iterdir()] == [new / "mine.txt"]
