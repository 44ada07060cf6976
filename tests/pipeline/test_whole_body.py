"""Systems that train the body itself, as users would without this package: all its weights, or
low-rank updates.
"""

import re
import shutil
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.data.store import TokenStore
from ds_minimodel.export.folder import export_hf
from ds_minimodel.models.low_rank import changed_name, updated
from ds_minimodel.pipeline.plan import plans
from tests.helpers.commands import refused
from tests.helpers.files import read_json
from tests.pipeline.extension_world import make_recipe

from ..forks import done
from .conftest import read_in, run_two_ranks

pytestmark = pytest.mark.slow

SETTINGS = [
    "systems=[bl_base, full, lora]",
    "adapt.rank=2",
    "adapt.new_token_penalty=0",
    "adapt.rates={full: 1e-3, lora: 5e-3}",
]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    err = done("run", make_recipe(folder, tied=request.param), *SETTINGS)
    assert err.count("bits per byte before") >= 3
    assert "LoRA, xx: " in err
    return folder


def learned(folder, system, part="pack"):
    return load_adaptation(folder / f"run/adapt/{system}/xx/{part}")


@pytest.mark.parametrize("system", ["full", "lora"])
def test_the_body_that_comes_out_is_another_one_and_better(folder, tmp_path, system):
    body, _ = load_model(folder / "base")
    first = learned(folder, system, "snapshots/step-00000000")
    last = learned(folder, system)
    changed = dict(updated(body.tensors, last.update))
    assert not first.update
    assert not any(tensor.equal(body.tensors[name]) for name, tensor in changed.items())
    linear = {
        name for name in body.tensors if ".qkv.w" in name or "_out.w" in name or "_in.w" in name
    }
    assert changed.keys() == (set(body.tensors) if system == "full" else linear)
    assert not any(rows.equal(first.embeddings[name]) for name, rows in last.embeddings.items())
    scores = read_json(folder / f"run/evaluate/{system}/xx/bits/seed-1/scores.json")
    assert scores[-1]["bits_per_byte"] < scores[0]["bits_per_byte"]
    assert scores[-1]["on_source_bits_per_byte"] != scores[0]["source_pack_bits_per_byte"]

    model = folder / "run/pretrain/bl_base/model"
    pack = folder / f"run/adapt/{system}/xx/pack"
    done(f"export-hf {model} {tmp_path}/hf --pack {pack} --dtype bf16")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert theirs.dtype == torch.bfloat16
    assert_close(
        theirs.model.layers[1].mlp.down_proj.weight, changed["layers.1.ffn_out.weight"].bfloat16()
    )


def test_peft_reads_the_adapter(folder, tmp_path):
    """New rows come from it, those of an untied output matrix too, and lora_alpha carries the
    strength.
    """
    model = folder / "run/pretrain/bl_base/model"
    pack = folder / "run/adapt/lora/xx/pack"
    for strength in ("1", "0.5"):
        written = ["--pack", pack, "--strength", strength]
        for out, more in (("whole", []), ("adapter", ["--adapter"])):
            done(f"export-hf {model}", tmp_path / out / strength, *written, *more)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / strength).eval()
        assert not (tmp_path / "whole" / strength / "adapter_config.json").exists()
        adapter = tmp_path / "adapter" / strength
        names = dict[str, Any]()
        settings = read_json(adapter / "adapter_config.json")
        assert settings["base_model_name_or_path"] == str(folder / "theirs")
        (code,) = re.findall("```python\n(.*)```", (adapter / "README.md").read_text(), re.DOTALL)
        exec(code.replace("FOLDER", str(adapter)), names)
        adapted = names["model"].eval()
        ids = torch.arange(whole.config.vocab_size)[-60:][None]
        with torch.inference_mode():
            assert_close(adapted(ids).logits, whole(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("folder", [True], indirect=True, ids=["tied"])
def test_a_strength_takes_a_part_of_the_body_back(folder, tmp_path):
    """It is one of scores and exports: another one needs no other training."""
    path = "run/evaluate/lora/xx/bits/seed-1/scores.json"
    scores = {}
    shutil.copytree(folder, tmp_path / "copy")
    recipe = tmp_path / "copy/recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(folder), str(tmp_path / "copy")))
    scores[1] = read_json(folder / path)[-1]
    done(f"evaluate {recipe}", *SETTINGS, "adapt.strength=0.25", "--rebuild")
    scores[0.25] = read_json(tmp_path / "copy" / path)[-1]
    assert scores[1]["bits_per_byte"] < scores[0.25]["bits_per_byte"]
    model = folder / "run/pretrain/bl_base/model"
    pack = folder / "run/adapt/lora/xx/pack"
    done(f"export-hf {model} {tmp_path}/hf --pack {pack} --strength 0.25")
    name = "layers.1.ffn_out.weight"
    body = load_model(model)[0]
    ((_, merged),) = updated(
        {name: body.tensors[name]},
        {
            key: tensor
            for key, tensor in learned(folder, "lora").update.items()
            if changed_name(key) == name
        },
    )
    theirs = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "hf").model.layers[1].mlp.down_proj.weight
    )
    assert_close(theirs.data, torch.lerp(body.tensors[name], merged, 0.25))


@pytest.mark.parametrize(
    "folder",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["tied", "untied"],
    indirect=True,
)
def test_two_ranks_train_the_same_body(folder, tmp_path):
    more = [
        "systems=[full, lora]",
        "finetune.tasks={}",
        "engine.zero_stage=3",
        f"workdir={read_in(folder, tmp_path)}",
    ]
    run_two_ranks(folder / "recipe.yaml", *SETTINGS, *more)
    for system in ("full", "lora"):
        found = learned(tmp_path, system)
        expected = learned(folder, system)
        for part in ("embeddings", "update"):
            for name, tensor in getattr(found, part).items():
                assert_close(tensor, getattr(expected, part)[name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("folder", [True], indirect=True, ids=["tied"])
def test_source_text_in_between_keeps_more_of_the_source(folder, tmp_path):
    more = [
        "systems=[full]",
        "adapt.rates={full: 1e-3}",
        "adapt.replay=0.5",
        f"workdir={read_in(folder, tmp_path)}",
    ]
    done(f"run {folder}/recipe.yaml", *SETTINGS, *more)
    name = "run/evaluate/full/xx/bits/seed-1/scores.json"
    forgets = read_json(folder / name)[-1]
    keeps = read_json(tmp_path / name)[-1]
    assert keeps["on_source_bits_per_byte"] < forgets["on_source_bits_per_byte"]
    refusal = refused(f"run {folder}/recipe.yaml adapt.replay=0.5 tokenizer.vocabulary=replace")
    assert "no ids for source text" in refusal


@pytest.mark.parametrize("folder", [True], indirect=True, ids=["tied"])
def test_a_base_replays_what_it_writes(folder, tmp_path):
    """It stays nearer to what it was, with no text of the source, and its own folder as it is."""
    base = folder / "base"
    recipe = folder / "recipe.yaml"
    before = {path.name for path in base.iterdir()}
    more = [
        "systems=[lora]",
        "adapt.rates={lora: 5e-3}",
        "adapt.replay=0.5",
        "adapt.replay_from=base",
    ]
    more = [*SETTINGS, *more, f"workdir={tmp_path}"]
    done(f"run {recipe}", *more)
    store = TokenStore(tmp_path / "tokens/self-replay")
    losses = {}
    ids = torch.tensor(store.read(0, store.num_tokens // 60 * 60).astype("int64")).view(-1, 60)
    for name, place in (("forgets", folder / "run"), ("keeps", tmp_path)):
        export_hf(base, tmp_path / name, place / "adapt/lora/xx/pack")
        with torch.inference_mode():
            losses[name] = AutoModelForCausalLM.from_pretrained(tmp_path / name)(
                ids, labels=ids
            ).loss
    assert losses["keeps"] < losses["forgets"]
    assert {path.name for path in base.iterdir()} == before
    assert not (tmp_path / "tokens/en").exists()
    assert "nothing is replayed" in refused(f"run {recipe}", *more, "adapt.replay=0")


def test_costs_and_refusals(folder):
    recipe = load_recipe(folder / "recipe.yaml", SETTINGS)
    spent = {row["system"]: row["executed_eflops"] for row in recipe_costs(recipe)}
    assert spent["bl_base"] < spent["lora"] < spent["full"] < 1.5 * spent["bl_base"]
    adapt = recipe.adapt.model_copy(update={"replay": 0.1, "replay_from": "base", "replay_kl": 9.0})
    held = {
        row["system"]: row["executed_eflops"]
        for row in recipe_costs(recipe.model_copy(update={"adapt": adapt}))
    }
    assert 1.03 < held["lora"] / spent["lora"] < 1.1
    assert held["full"] == spent["full"], "a pass and two of scores more"
    lora = "run", folder / "recipe.yaml", "adapt.new_token_penalty=0", "systems=[lora]"
    assert "adapt.rates: minipost is not among" in refused(*lora, "adapt.rates={minipost: 1.0}")
    assert "updates of lora are not cut" in refused(*lora, "engine.tensor_parallel=2")


def test_the_plan_counts_what_trains(folder):
    rows = {
        row["system"]: row for row in plans(load_recipe(folder / "recipe.yaml", SETTINGS), 1, "cpu")
    }
    taken = {
        name: row["memory"]["optimizer"] + row["memory"]["activations"]
        for name, row in rows.items()
    }
    assert taken["bl_base"] < taken["lora"] < taken["full"]
