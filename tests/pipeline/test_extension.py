"""A language that is added to a base's vocabulary: the base's rows stay, in training, on disk and
in transformers.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer

from ds_minimodel.artifacts.models import load_body, load_model
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.models.body import BASE_ROWS, LanguagePack
from ds_minimodel.models.trainable import NewTokenPenalty
from tests.helpers.commands import refused
from tests.helpers.files import read_json
from tests.pipeline.extension_world import make_recipe

from ..forks import done, run
from .conftest import make_world, read_in, run_two_ranks

pytestmark = pytest.mark.slow

NEW = 24
ROWS = 330


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    """Of a run to its end."""
    folder = tmp_path_factory.mktemp("extended")
    done("run", make_recipe(folder, tied=request.param))
    return folder


def test_a_pack_has_new_rows_alone_and_they_learn(folder):
    pack = load_file(folder / "run/adapt/bl_base/xx/pack/embeddings.safetensors")
    first = load_file(
        folder / "run/adapt/bl_base/xx/snapshots/step-00000000/embeddings.safetensors"
    )
    for name, rows in pack.items():
        assert len(rows) == NEW
        assert not torch.equal(rows, first[name])
    for system in ("bl_base", "minipost"):
        scores = read_json(folder / f"run/evaluate/{system}/xx/bits/seed-1/scores.json")
        assert scores[-1]["bits_per_byte"] < scores[0]["bits_per_byte"]


def test_new_rows_begin_as_the_mean_of_their_parts(folder):
    first = load_file(
        folder / "run/adapt/bl_base/xx/snapshots/step-00000000/embeddings.safetensors"
    )["tokens"]
    old = load_model(folder / "base")[1].embeddings["tokens"]
    theirs = AutoTokenizer.from_pretrained(folder / "theirs")
    new = AutoTokenizer.from_pretrained(folder / "run/tokenizer/xx")
    for id in range(ROWS, ROWS + NEW):
        parts = theirs(new.decode([id]), add_special_tokens=False)["input_ids"]
        assert_close(first[id - ROWS], old[parts].mean(0))


def test_transformers_has_the_base_in_the_export_and_the_new_language_beside_it(folder, tmp_path):
    body = folder / "run/pretrain/bl_base/model"
    pack = folder / "run/adapt/bl_base/xx/pack"
    out = tmp_path / "hf"
    done(f"export-hf {body} {out} --pack {pack}")
    before = AutoTokenizer.from_pretrained(folder / "theirs")
    after = AutoTokenizer.from_pretrained(out)
    old = AutoModelForCausalLM.from_pretrained(folder / "theirs").eval()
    new = AutoModelForCausalLM.from_pretrained(out).eval()
    english = (folder / "en.txt").read_text()[:600]
    added = (folder / "xx.txt").read_text()[:600]
    ids = before(english, return_tensors="pt")["input_ids"][:, :64]
    assert after(english, return_tensors="pt")["input_ids"][:, :64].equal(ids)
    with torch.inference_mode():
        assert new(ids).logits[..., :ROWS].equal(old(ids).logits)
    ids_after = after(added)["input_ids"]
    ids_before = before(added)["input_ids"]
    assert len(ids_after) < len(ids_before)
    assert after.decode(ids_after) == added
    assert after.special_tokens_map == before.special_tokens_map
    options = dict(max_new_tokens=9, do_sample=False)
    new.generation_config.suppress_tokens = [*range(ROWS, ROWS + NEW)]
    assert new.generate(ids, **options).equal(old.generate(ids, **options))


def test_bits_compare_packs_at_equal_bytes_of_context(folder, tmp_path):
    """Of the base's own language: what it had, and what new rows take of it."""
    packs = [
        f"--pack={name}={folder / place}"
        for name, place in (("old", "base"), ("new", "run/adapt/bl_base/xx/pack"))
    ]
    for language in ("en", "xx"):
        documents = (folder / f"{language}.txt").read_text().split("\n\n")[:3]
        (tmp_path / f"{language}.txt").write_text("\n\n".join(documents))
    code, out, err = run(
        f"bits {folder}/base",
        *packs,
        "--context-bytes",
        40,
        "--json",
        tmp_path / "en.txt",
        tmp_path / "xx.txt",
    )
    assert code == 0, err
    code, answer, err = run(f"bits {folder}/theirs --context-bytes 40 --json {tmp_path}/en.txt")
    assert code == 0, err
    (row,) = json.loads(answer)
    unequal = refused(f"bits {folder}/base", *packs, "--context-bytes", 64, tmp_path / "en.txt")
    assert f"{folder}/base: has 64 positions" in unequal
    assert unequal.endswith("give --context-bytes 63 or fewer")
    rows = {(Path(row["text"]).stem, row["pack"]): row for row in json.loads(out)}
    assert row == rows["en", "old"] | {"pack": "theirs"}, "as transformers has it"
    assert rows["en", "new"]["bits_per_byte"] >= rows["en", "old"]["bits_per_byte"]
    assert rows["en", "new"]["bytes_per_token"] == rows["en", "old"]["bytes_per_token"]
    assert rows["xx", "new"]["bytes_per_token"] > rows["xx", "old"]["bytes_per_token"]
    model = AutoModelForCausalLM.from_pretrained(folder / "theirs")
    tokenizer = AutoTokenizer.from_pretrained(folder / "theirs")
    nats = 0.0
    for document in (tmp_path / "en.txt").read_text().split("\n\n"):
        part = [tokenizer.bos_token_id]
        rest = tokenizer(document, add_special_tokens=False)["input_ids"]
        while rest:
            sizes = [len(token) for token in tokenizer.convert_ids_to_tokens(rest)]
            number = 1
            while number < len(rest) and sum(sizes[: number + 1]) <= 40:
                number += 1
            ids = torch.tensor([[*part, *rest[:number]]])
            with torch.inference_mode():
                nats += model(ids, labels=ids).loss.item() * number
            part = [rest[number - 1]]
            rest = rest[number:]
    num_bytes = len((tmp_path / "en.txt").read_text().replace("\n\n", ""))
    assert rows["en", "old"]["bits_per_byte"] == pytest.approx(
        nats / math.log(2) / num_bytes, rel=1e-4
    )


def test_the_guard_is_what_the_source_loses_by_the_new_pieces(folder):
    config = load_body(folder / "base").config
    torch.manual_seed(0)
    pack = LanguagePack(ROWS + NEW, config, ROWS)
    for name in config.language_tensors:
        for rows in (getattr(pack, BASE_ROWS + name), getattr(pack, name)):
            torch.nn.init.normal_(rows)
    table = pack.table(config.language_tensors[-1])
    states = torch.randn(64, config.hidden_size)
    targets = torch.randint(ROWS, (64,))
    before = torch.nn.functional.cross_entropy(states @ table.base.T, targets, reduction="sum")
    new_token_penalty = NewTokenPenalty(
        states, (states @ table.base.T).logsumexp(-1), 3.0, width=16
    )
    keys = torch.tensor([0, 16, -32, -80], dtype=torch.int32)
    rows = {"targets": torch.zeros(4, 40, dtype=torch.long), "sample_keys": keys}
    after = pack.cross_entropy(states, table, targets)
    loss = new_token_penalty.loss(pack, table, rows)
    assert_close(loss, 3.0 * (after - before) / 64 * 4 * 40, rtol=1e-4, atol=1e-4)

    rows["targets"][1:, 7:] = IGNORED  # a micro-batch of these alone is 7 wide
    parts = [{"targets": rows["targets"][:1], "sample_keys": keys[:1]}]
    parts += [{"targets": rows["targets"][1:, :7], "sample_keys": keys[1:]}]
    assert_close(
        sum(new_token_penalty.loss(pack, table, part) for part in parts),
        new_token_penalty.loss(pack, table, rows),
    )


@pytest.mark.parametrize(
    "folder",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["tied", "untied"],
    indirect=True,
)
def test_two_ranks_train_the_same_rows(folder, tmp_path):
    """An output matrix of its own at ZeRO 3; one that is the input's split over the ranks."""
    tied = "output" not in load_rows(folder)
    layout = "engine.tensor_parallel=2" if tied else "engine.zero_stage=3"
    more = [
        "finetune.tasks={}",
        "systems=[bl_base]",
        layout,
        f"workdir={read_in(folder, tmp_path)}",
    ]
    run_two_ranks(folder / "recipe.yaml", *more)
    for name, rows in load_rows(tmp_path).items():
        assert_close(rows, load_rows(folder)[name], rtol=1e-3, atol=1e-4)


def load_rows(folder):
    return load_file(folder / "run/adapt/bl_base/xx/pack/embeddings.safetensors")


def test_what_cannot_be_extended_is_refused(tmp_path):
    recipe = make_world(tmp_path)
    assert "there is no base whose vocabulary is extended" in refused(
        f"run {recipe} tokenizer.vocabulary=extend"
    )
    other = make_recipe(tmp_path / "other")
    other.write_text(other.read_text().replace(", vocab_size: 24", ""))
    assert "tokenizer.vocab_size: say how many tokens are added" in refused(f"run {other}")
    assert "adapt.new_token_penalty: a vocabulary of its own" in refused(
        f"run {other}", "tokenizer={vocab_size: 300}"
    )
    extended = "tokenizer={vocabulary: extend, vocab_size: 24}"
    assert "adapt.new_token_penalty: lora trains the body" in refused(
        f"run {other}", extended, "systems=[lora]"
    )
