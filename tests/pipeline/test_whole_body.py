"""Systems that train the body itself, as users would without this package: all its weights, or low-rank updates."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ds_minimodel.costs.plans import plans
from ds_minimodel.data.store import TokenStore
from ds_minimodel.hf.convert import export_hf
from ds_minimodel.recipe.flops import recipe_costs
from ds_minimodel.recipe.reading import load_recipe

from ..forks import run
from .conftest import prepare, refused, run_two_ranks
from .test_extension import make_recipe

SETTINGS = ["systems=[bl_base, full, lora]", "adapt.rank=2", "adapt.guard=0", "adapt.rates={full: 1e-3, lora: 5e-3}"]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    code, _, err = run("run", make_recipe(folder, request.param), *SETTINGS)
    assert code == 0, err
    assert err.count("bits a byte before") >= 3 and "LoRA, xx: " in err
    return folder


def rows_of(folder, system, part="pack"):
    return load_file(folder / f"run/adapt/{system}/xx/{part}/embeddings.safetensors")


@pytest.mark.parametrize("system", ["full", "lora"])
def test_the_body_that_comes_out_is_another_one_and_better(folder, tmp_path, system):
    base = load_file(folder / "base/body/model.safetensors")
    first, last = rows_of(folder, system, "snapshots/step-00000000"), rows_of(folder, system)
    changed = {name for name in last if not torch.equal(first[name], last[name])}
    of_body = {f"body.{name}" for name in base}
    updated = {name for name in of_body if ".qkv.w" in name or "_out.w" in name or "_in.w" in name}
    assert (
        changed & of_body == (of_body if system == "full" else updated) and changed - of_body == last.keys() - of_body
    )
    assert all(torch.equal(first[name], base[name.removeprefix("body.")]) for name in first.keys() & of_body)
    scores = json.loads((folder / f"run/evaluate/{system}/xx/bits/seed-1/scores.json").read_text())
    assert scores[-1]["bits_per_byte"] < scores[0]["bits_per_byte"]
    assert scores[-1]["on_source_bits_per_byte"] != scores[0]["source_pack_bits_per_byte"]

    body, pack = folder / "run/pretrain/bl_base/body", folder / f"run/adapt/{system}/xx/pack"
    code, _, err = run("export-hf", body, tmp_path / "hf", "--pack", pack, "--dtype", "bf16")
    assert code == 0, err
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert theirs.dtype == torch.bfloat16
    torch.testing.assert_close(
        theirs.model.layers[1].mlp.down_proj.weight, last["body.layers.1.ffn_out.weight"].bfloat16()
    )


@pytest.mark.parametrize("folder", [True], indirect=True, ids=["tied"])
def test_a_strength_takes_a_part_of_the_body_back(folder, tmp_path):
    """Rows of pieces stay as they were trained, and so does the training."""
    recipe, settings = make_recipe(tmp_path, True), [*SETTINGS, "systems=[full, lora]", "finetune.tasks={}"]
    code, _, err = run("run", recipe, *settings, "adapt.strength=0.25")
    assert code == 0, err
    base = load_file(folder / "base/body/model.safetensors")
    for system in ("full", "lora"):
        whole, weaker = rows_of(folder, system), rows_of(tmp_path, system)
        for name in whole.keys() & {f"body.{name}" for name in base}:
            whole[name] = torch.lerp(base[name.removeprefix("body.")], whole[name], 0.25)
        torch.testing.assert_close(weaker, whole)
    assert "strength" in refused("adapt", recipe, *settings)
    assert "leave strength out" in refused("adapt", recipe, *settings, "adapt.strength=0.5", "adapt.keep=best")


def test_two_ranks_train_the_same_body(folder, tmp_path):
    recipe = prepare(make_recipe(tmp_path, "output" not in rows_of(folder, "full")), *SETTINGS)
    run_two_ranks(recipe, *SETTINGS, "systems=[full, lora]", "finetune.tasks={}", "engine.zero_stage=3")
    for system in ("full", "lora"):
        for name, tensor in rows_of(tmp_path, system).items():
            torch.testing.assert_close(tensor, rows_of(folder, system)[name], rtol=2e-3, atol=2e-4)


def test_source_text_in_between_keeps_more_of_the_source(folder, tmp_path):
    recipe = make_recipe(tmp_path, "output" not in rows_of(folder, "full"))
    code, _, err = run("run", recipe, *SETTINGS, "systems=[full]", "adapt.rates={full: 1e-3}", "adapt.replay=0.5")
    assert code == 0, err
    name = "run/evaluate/full/xx/bits/seed-1/scores.json"
    forgets, keeps = (json.loads((place / name).read_text())[-1] for place in (folder, tmp_path))
    assert keeps["on_source_bits_per_byte"] < forgets["on_source_bits_per_byte"]
    refusal = refused("run", folder / "recipe.yaml", "adapt.replay=0.5", "tokenizer.vocabulary=replace")
    assert "no ids for source text" in refusal


@pytest.mark.parametrize("folder", [True], indirect=True, ids=["tied"])
def test_a_base_rehearses_what_it_writes(folder, tmp_path):
    """It stays nearer to what it was, with no text of the source; a table is not left in the base's folder."""
    base, recipe = folder / "base", folder / "recipe.yaml"
    more = ["systems=[lora]", "adapt.rates={lora: 5e-3}", "adapt.replay=0.5", "adapt.replay_from=base"]
    more = [*SETTINGS, *more, f"workdir={tmp_path}"]
    assert f"rehearse {base}" in refused("run", recipe, *more)
    code, _, err = run("rehearse", base, "--tokens", "9k")
    assert code == 0, err
    code, _, err = run("run", recipe, *more)
    assert code == 0, err
    store, losses = TokenStore(base / "rehearsal"), {}
    ids = torch.tensor(store.read(0, store.num_tokens // 60 * 60).astype("int64")).view(-1, 60)
    for name, place in (("forgets", folder / "run"), ("keeps", tmp_path)):
        export_hf(base / "body", tmp_path / name, place / "adapt/lora/xx/pack")
        with torch.inference_mode():
            losses[name] = AutoModelForCausalLM.from_pretrained(tmp_path / name)(ids, labels=ids).loss
    assert losses["keeps"] < losses["forgets"]
    assert {path.name for path in base.iterdir()} == {"body", "pack", "rehearsal"}
    assert not (tmp_path / "tokens/en").exists()
    (base / "rehearsal").rename(tmp_path / "former")
    for command in ("run", "adapt"):
        assert f"rehearse {base}" in refused(command, recipe, *more)
    manifest = json.loads((tmp_path / "former/manifest.json").read_text())
    (tmp_path / "former/manifest.json").write_text(json.dumps(manifest | {"body": "another"}))
    (tmp_path / "former").rename(base / "rehearsal")
    assert "was not written by the model in" in refused("run", recipe, *more)
    assert "nothing is replayed" in refused("run", recipe, *more, "adapt.replay=0")


def test_costs_and_refusals(folder):
    recipe = load_recipe(folder / "recipe.yaml", SETTINGS)
    spent = {row["system"]: row["executed_eflops"] for row in recipe_costs(recipe)}
    assert spent["bl_base"] < spent["lora"] < spent["full"] < 1.5 * spent["bl_base"]
    lora = "run", folder / "recipe.yaml", "adapt.guard=0", "systems=[lora]"
    assert "adapt.rates: minipost is not among" in refused(*lora, "adapt.rates={minipost: 1.0}")
    assert "updates of lora are not cut" in refused(*lora, "engine.tensor_parallel=2")


def test_the_plan_counts_what_trains(folder):
    rows = {row["system"]: row for row in plans(load_recipe(folder / "recipe.yaml", SETTINGS), 1, "cpu")}
    taken = {name: row["memory"]["optimizer"] + row["memory"]["activations"] for name, row in rows.items()}
    assert taken["bl_base"] < taken["lora"] < taken["full"]
