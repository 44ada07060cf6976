"""Models, adaptations and mini-models on disk: round trips, what transformers reads, another one,
damage.
"""

import shutil
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from ds_minimodel.artifacts.adaptation import (
    check_fit,
    load_adaptation,
    plug,
    save_adaptation,
    whole,
)
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.mini import prefix
from ds_minimodel.artifacts.models import (
    BodyArtifact,
    load_body,
    load_model,
    model_below,
    save_body,
    save_model,
    space_of,
)
from ds_minimodel.common.files import read_manifest, write_manifest
from ds_minimodel.export.folder import export_adapter
from ds_minimodel.hf.names import architecture_of
from ds_minimodel.models import BODIES
from ds_minimodel.models.low_rank import add_low_rank, is_low_rank, updated
from ds_minimodel.models.trainable import LanguageModel, encode
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.files import read_json, write_json
from tests.helpers.refusals import refuses
from tests.small_models import roberta

from ..models.model_cases import mlm_batch, randomise

ROWS = 600  # of the vocabulary of the tests of data
SIZES = dict(num_layers=3, hidden_size=16, num_heads=2, ffn_size=24, max_positions=62)
ROBERTA = roberta(*SIZES.values())


def config_of(kind, **more):
    return BODIES[kind](**SIZES, **more)


def made(config, *depths, seed=0):
    """(a module with heads at these depths, its body and its language as artifacts)"""
    depths = depths or (config.num_layers,)
    module = randomise(LanguageModel(config, ROWS, depths), seed).eval()
    model_type = architecture_of(config.kind).model_type
    body = BodyArtifact(
        config,
        depths,
        module.body.state_dict(),
        "space-1",
        objective=config.objective,
        model_type=model_type,
    )
    language = body.adaptation("de", module.pack.state_dict(), steps=5, eflops=0.5)
    return module, body, language


@pytest.fixture
def saved(tmp_path, tokenizer_folder):
    """A folder with a model, a mini-model of it and a language over it."""
    _, body, language = made(ROBERTA, 2, 3)
    save_model(tmp_path / "model", body, language, tokenizer_folder)
    save_body(tmp_path / "mini", prefix(body, 2), "mini-model", tmp_path / "model", steps=7)
    save_adaptation(tmp_path / "pack", language, tokenizer_folder)
    (tmp_path / "theirs").mkdir()
    return tmp_path


def assert_equal(got, expected, atol=0.0):
    assert_close(dict(got), dict(expected), rtol=0, atol=atol)


@pytest.mark.parametrize(
    "config, depths",
    [
        (ROBERTA, (2, 3)),
        (config_of("modernbert", window=4, global_every=2), (3,)),
        (config_of("llama", num_kv_heads=1, tie_output=True), (3,)),
        (config_of("qwen3", num_kv_heads=1, tie_output=False), (1, 3)),
        (config_of("gemma3", num_kv_heads=1, window=8, global_every=2), (3,)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_model_is_what_from_pretrained_reads(config, depths, tokenizer_folder, tmp_path):
    module, body, language = made(config, *depths)
    save_model(tmp_path / "model", body, language, tokenizer_folder)
    found, pack = load_model(tmp_path / "model")
    assert replace(found, tensors={}) == replace(body, tensors={})
    assert replace(pack, embeddings={}) == replace(language, embeddings={})
    # Where 1 + w is stored as w, its last bits are lost.
    shift = 1e-6 if getattr(body.architecture, "shifted_norms", False) else 0
    assert_equal(found.tensors, body.tensors, shift)
    assert_equal(pack.embeddings, language.embeddings)
    others = tmp_path / "model/heads.safetensors"
    depth = max(depths)
    expected = {
        f"body.{name}"
        for name in body.tensors
        if name.startswith("heads.") and f".{depth}." not in name
    }
    assert (load_file(others).keys() if others.exists() else set()) == expected

    auto = transformers.AutoModelForCausalLM if config.causal else transformers.AutoModelForMaskedLM
    reread = auto.from_pretrained(tmp_path / "model").eval()
    tokens = torch.arange(4, 64).view(2, 30)
    with torch.no_grad():
        hidden, table = encode(module.pack, module.body, {"tokens": tokens})
        logits = module.pack.logits(module.body.heads[str(depth)](hidden[-1]), table)
        assert_close(reread(tokens).logits, logits, atol=1e-4, rtol=0)
    tokenizer = open_tokenizer(tmp_path / "model")
    (ids,) = tokenizer.encode(["αβγ und abc"])
    before, after = tokenizer.vocabulary.frame
    framed = [*before, *ids] if config.causal else [*before, *ids, *after]
    reread_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert reread_tokenizer("αβγ und abc")["input_ids"] == framed


def test_a_model_of_ours_is_a_base_with_all_of_its_configuration(tokenizer_folder, tmp_path):
    """Its dropout too, for which transformers' Llama has no key."""
    config = config_of(
        "llama", num_kv_heads=1, tie_output=True, dropout=0.25, attention_dropout=0.5
    )
    save_model(tmp_path / "model", *made(config)[1:], tokenizer_folder)
    refer(tmp_path / "model", tmp_path / "reference", "de")
    model, _ = load_model(tmp_path / "model")
    reference, _ = load_model(tmp_path / "reference")
    assert reference.config == model.config == config
    assert reference.space == model.space, "its adaptations go to both"


def test_a_mini_model_is_one_of_its_model(saved, tokenizer_folder):
    _, body, _ = made(ROBERTA, 2, 3)
    found = load_body(saved / "mini")
    expected = prefix(body, 2)
    assert replace(found, tensors={}, model_type="") == replace(expected, tensors={}, model_type="")
    assert_equal(found.tensors, expected.tensors)
    manifest = read_manifest(saved / "mini", verify=True)
    assert manifest["kind"] == "mini-model"
    assert manifest["space"] == "space-1"
    assert manifest["steps"] == 7
    moved = shutil.move(saved, saved.with_name("moved"))
    assert model_below(f"{moved}/mini").samefile(f"{moved}/model")
    shutil.rmtree(f"{moved}/model")
    save_model(f"{moved}/model", *made(ROBERTA, 2, 3, seed=1)[1:], tokenizer_folder)
    with refuses("was made of the model .*, which is not there; put it back beside it"):
        model_below(f"{moved}/mini")


def adaptation_of(num_base, update, **config):
    """(body of a Llama as it was, what was learned over it)"""
    module, body, language = made(config_of("llama", num_kv_heads=1, **config))
    new_rows = {name: rows[num_base:] for name, rows in language.embeddings.items()}
    learned = replace(language, language="tr", embeddings=new_rows, num_base=num_base)
    body.tensors = {name: tensor.clone() for name, tensor in body.tensors.items()}
    if update == "low-rank":
        add_low_rank(module.body, 3, 1)
    randomise(module.body, seed=2)
    changed = module.body.state_dict()
    names = {
        "none": [],
        "whole": ["layers.1.qkv.weight", "heads.3.final_norm.weight"],
        "low-rank": filter(is_low_rank, changed),
    }
    for name in names[update]:
        learned.update[name] = changed[name]
    return body, learned


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("update", ["none", "whole", "low-rank"])
@pytest.mark.parametrize("num_base", [0, 550])
def test_an_adaptation_comes_back(tokenizer_folder, tmp_path, num_base, update, tied):
    """Low-rank updates in PEFT's form, with new rows beside old ones."""
    body, learned = adaptation_of(num_base, update, tie_output=tied)
    save_adaptation(tmp_path / "pack", learned, tokenizer_folder, body.config, note="x")
    found = load_adaptation(tmp_path / "pack", "space-1", "tr", 5)
    assert replace(found, embeddings={}, update={}) == replace(learned, embeddings={}, update={})
    assert_equal(found.embeddings, learned.embeddings)
    assert_equal(found.update, learned.update)
    manifest = read_manifest(tmp_path / "pack", verify=True)
    facts = {
        "kind": "adaptation",
        "language": "tr",
        "space": "space-1",
        "steps": 5,
        "eflops": 0.5,
        "note": "x",
        "rows": ROWS - num_base,
        "num_base": num_base,
        "vocab_size": ROWS,
        "body_kind": "llama",
        "model_type": "llama",
    }
    assert facts.items() <= {"num_base": 0, **manifest}.items()
    files = {"tokenizer.model"}
    if update == "whole":
        files.add("body.safetensors")
    if update == "low-rank":
        files |= {"adapter_model.safetensors", "adapter_config.json"}
    if update != "low-rank" or not num_base:
        files.add("embeddings.safetensors")
    assert manifest["files"].keys() == files


def language_below(body, num_base):
    """Another language of the same body, of as many rows as the base has."""
    _, _, language = made(body.config, seed=4)
    rows = {name: rows[:num_base] for name, rows in language.embeddings.items()}
    return replace(language, embeddings=rows)


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_stand_behind_the_bases(tied):
    body, learned = adaptation_of(550, "none", tie_output=tied)
    below = language_below(body, 550)
    rows = whole(learned, below).embeddings["tokens"]
    assert rows.equal(torch.cat([below.embeddings["tokens"], learned.embeddings["tokens"]]))
    with refuses("tr extends a vocabulary of 550 tokens, the model has 600, so its tokens"):
        whole(learned, language_below(body, ROWS))


@pytest.mark.parametrize(
    "update, num_base, said",
    [
        ("none", 0, "has no LoRA of the body"),
        ("none", 550, "has no LoRA of the body"),
        ("whole", 0, "has no LoRA of the body"),
        ("whole", 550, "has no LoRA of the body"),
        ("low-rank", 0, "all of its token embeddings are new"),
    ],
)
def test_what_peft_has_no_form_for_is_refused(tokenizer_folder, tmp_path, update, num_base, said):
    body, learned = adaptation_of(num_base, update)
    _, _, language = made(body.config, seed=4)
    save_model(tmp_path / "model", body, language, tokenizer_folder)
    save_adaptation(tmp_path / "pack", learned, tokenizer_folder, body.config)
    with refuses(said):
        export_adapter(tmp_path / "model", tmp_path / "adapter", tmp_path / "pack")
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("num_base", [0, 550])
def test_a_low_rank_update_is_plugged_into_what_it_fits(num_base):
    body, learned = adaptation_of(num_base, "low-rank")
    pack = whole(learned, language_below(body, num_base or ROWS))
    _, wider, _ = made(config_of("llama", num_kv_heads=2))
    with refuses("changes layers.* which the body has not"):
        check_fit("pack", pack, wider)
    with refuses("a strength of 75; give one above 0, at most 1"):
        plug(made(body.config)[0], pack, body, 75)


@pytest.mark.parametrize("num_base", [0, 550])
def test_a_strength_is_written_into_the_low_rank_update(tokenizer_folder, tmp_path, num_base):
    body, learned = adaptation_of(num_base, "low-rank")
    save_adaptation(tmp_path / "half", learned, tokenizer_folder, body.config, strength=0.5)
    half = updated(body.tensors, load_adaptation(tmp_path / "half").update)
    assert_equal(half, updated(body.tensors, learned.update, 0.5), atol=1e-6)
    manifest = read_manifest(tmp_path / "half")
    del manifest["files"]
    # One matrix of another rank than the others.
    path = tmp_path / "half/adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if ".lora_B." in name)
    save_file(tensors | {name: tensors[name][:, :1].contiguous()}, path)
    write_manifest(tmp_path / "half", **manifest)
    with refuses("no LoRA of this model .*are not of one rank"):
        load_adaptation(tmp_path / "half")


@pytest.mark.parametrize(
    "load, name, of_body, said",
    [
        (
            load_adaptation,
            "pack",
            ["space-2"],
            "trained for embedding space space-1, the body has space-2; use what",
        ),
        (
            load_adaptation,
            "pack",
            ["space-1", "tr"],
            "the adaptation of language de in the place of that of tr",
        ),
        (
            load_adaptation,
            "pack",
            ["space-1", "de", 0],
            "the adaptation of step 5 in the place of that of 0",
        ),
        (load_adaptation, "mini", [], "is of kind mini-model, not an adaptation"),
        (load_model, "pack", [], "is of kind adaptation, not a model"),
        (load_body, "pack", [], "is of kind adaptation, not a mini-model or a model of a task"),
        (load_adaptation, "none", [], "no such folder"),
        (
            load_body,
            ".",
            [],
            "no such file, so .* is not a mini-model or a model of a task; give .*model or .*pack",
        ),
        (
            load_body,
            "theirs",
            [],
            "is not a mini-model or .*; a model of Hugging Face's is taken by `base:`",
        ),
    ],
)
def test_another_artifact_than_asked_for_is_refused(saved, load, name, of_body, said):
    with refuses(said) as refusal:
        load(saved / name, *of_body)
    assert str(saved / name) in str(refusal.value)


@pytest.mark.parametrize("name", ["model/manifest.json", "mini/config.json"])
@pytest.mark.parametrize(
    "change, key",
    [
        (
            {"num_layers": 10**9},
            "architecture: num_layers: Input should be less than or equal to 10000",
        ),
        ({"kind": "gpt"}, "architecture: kind 'gpt': there are roberta, bert"),
        ({"num_layers": 4}, r"layers?\.[23]\."),
        ({"head_depths": [9]}, "there are [23] layers"),
    ],
)
def test_sizes_that_the_weights_have_not_are_refused_before_anything_is_made(
    saved, name, change, key
):
    path = saved / name
    manifest = read_manifest(path.parent)
    content = read_json(path)
    body = content.get("body", content)
    (body if "head_depths" in change else body["architecture"]).update(change)
    write_json(path, content)
    if path.name == "config.json":
        del manifest["files"]
        write_manifest(path.parent, **manifest)
    with refuses(key) as refusal:
        load_body(path.parent)
    assert str(path.parent) in str(refusal.value)


def test_the_space_is_the_identity_of_the_weights():
    _, body, language = made(ROBERTA)
    space = space_of(body.tensors, language.embeddings)
    copies = {name: body.tensors[name].clone() for name in reversed(body.tensors)}
    assert space == space_of(copies, language.embeddings)
    name = "embedding_norm.weight"
    weight = body.tensors[name]
    one_bit = weight.clone()
    one_bit[3] = torch.nextafter(weight[3], torch.tensor(9.0))
    for other in (one_bit, weight.view(2, -1), weight.view(torch.int32)):
        assert space != space_of({**body.tensors, name: other}, language.embeddings)
    assert space != space_of(body.tensors)


def test_what_is_plugged_takes_the_place_of_the_models_own():
    model, body, language = made(ROBERTA)
    other = made(ROBERTA, seed=9)[0]
    language.update["positions"] = model.body.positions.detach() + 1
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    plug(other, language, body)
    after = other.state_dict()
    assert after["pack.tokens"].equal(model.pack.tokens)
    assert after["pack.bias"].equal(model.pack.bias)
    assert after["body.positions"].equal(model.body.positions + 1)
    for name in before.keys() - {"pack.tokens", "pack.bias", "body.positions"}:
        assert after[name].equal(before[name]), name
    assert other(mlm_batch()).isfinite().all()
    plug(other, language, body, strength=0.5)
    assert_close(other.body.positions, model.body.positions + 0.5)
