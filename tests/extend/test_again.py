"""`extend` called again, after a kill, a change of what it reads, or with another length: contents
decide.
"""

import os

import pytest
import yaml
from safetensors.torch import load_file, save

from ds_minimodel.data.store import TokenStore
from ds_minimodel.pipeline.layout import OWN_REPLAY
from tests.helpers.commands import refused

from ..forks import done, kill_after
from ..pipeline.conftest import make_llama_world


@pytest.fixture
def call(tmp_path):
    """A command over a Llama in `theirs` and its text, which are its own."""
    theirs = make_llama_world(tmp_path)
    (theirs / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return f"extend {theirs} {tmp_path}/xx.txt --language xx --out {tmp_path}/out --vocab-size 20"


@pytest.mark.long
def test_what_was_begun_goes_on_from_the_same_files_alone(call, tmp_path):
    """Contents decide, not that something is there, wherever a call is killed."""
    theirs = tmp_path / "theirs"
    out = tmp_path / "out"

    def refuse_other(path, content, option="model"):
        former = path.read_bytes()
        path.write_bytes(content)
        said = refused(f"{call} --tokens 30k")
        assert f"{path.name} (--{option}): another file than {out} was begun with" in said
        path.write_bytes(former)

    def replayed():
        return TokenStore(out / "run/tokens" / OWN_REPLAY).num_tokens

    kill_after(OWN_REPLAY, f"{call} --tokens 5k")
    short = replayed()
    weights = load_file(theirs / "model.safetensors")
    refuse_other(
        theirs / "model.safetensors", save({name: tensor + 1 for name, tensor in weights.items()})
    )
    refuse_other(theirs / "chat_template.jinja", b"{{ messages[1].content }}")
    refuse_other(tmp_path / "xx.txt", b"other " * 2**16, "text")
    kill_after("recipe.yaml", f"{call} --tokens 30k")
    recipe = out / "recipe.yaml"
    chosen = recipe.read_text()
    recipe.write_text(chosen.replace("- lora", "- lora\n- bl_base"))
    assert "recipe.yaml: systems" in refused(f"{call} --tokens 30k")
    recipe.write_text(chosen.replace("    text:", "    mine:"))
    err = done(f"{call} --tokens 30k")
    assert replayed() >= 3_000 > short, err
    weights = (out / "model/model.safetensors").read_bytes()
    for damage in (os.unlink, lambda path: path.write_bytes(b"nothing")):
        damage(out / "model/model.safetensors")
        err = done(call)
        assert "adapt lora" not in err, err
        assert (out / "model/model.safetensors").read_bytes() == weights, err
    mine = out / "model/mine.gguf"
    mine.write_bytes(b"GGUF")
    done(call)
    assert mine.exists()
    longer = f"{call} --tokens 60k"
    kill_after("recipe.yaml", longer)
    kill_after(OWN_REPLAY, longer)
    said = f"{mine}: not of extend, which is to write {out}/model anew; move it away"
    assert said in refused(call)
    mine.unlink()
    kill_after("model", longer)
    err = done(call)
    assert replayed() >= 6_000, err
    assert yaml.safe_load(recipe.read_text())["adapt"]["steps"] > 50, err
    assert (out / "model/model.safetensors").read_bytes() != weights


def test_hours_are_turned_into_steps_once(call, tmp_path):
    call += " --train embeddings --hours"
    kill_after("recipe.yaml", f"{call} 0.0003")
    found = []
    for _ in range(2):
        err = done(f"{call} 0.0003")
        assert ("tokens a second here" in err) == (not found), err
        found.append((tmp_path / "out/recipe.yaml").read_text())
    assert found[0] == found[1]
    assert "tokens is begun; a shorter one takes another --out" in refused(f"{call} 0.00001")
