"""A language for an embedding model by one command: aligned at once, then trained in place."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from ds_minimodel.extend.config import read_config
from ds_minimodel.extend.run import extend
from tests.extend.encoders import call, found, vectors_of
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses

from ..pipeline.sentence_world import (
    WORDS,
    make_sentence_world,
    pairs_of,
    save_sentence_model,
    translated,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    make_sentence_world(folder)
    return folder


@pytest.fixture(scope="module")
def aligned(folder):
    """What was said, and the folder's files, of an alignment alone."""
    said = call(folder, "xx", tokens=0, test_pairs=[folder / "other.tsv"])
    model = folder / "xx/model"
    files = {path.name: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    return said, files, found(model)


def test_the_aligned_model_can_be_used_and_says_what_it_finds(folder, aligned):
    said, _, share = aligned
    (line,) = (line for line in said if line.startswith("aligned: "))
    assert line.startswith("aligned: 40 of 40 found in other, ")
    assert line.endswith("xx/model")
    assert found(folder / "base") < 0.3 < 0.9 < share
    page = (folder / "xx/run/report/report.md").read_text()
    assert "**other, BL_BASE**" in page
    assert "aligned" in page
    assert "untouched" in page
    assert "are split into the same tokens, and their vectors are equal to the bit" in page
    assert page.count("(right)") >= 4


def test_new_tokens_are_shown_beside_what_they_translate(folder, aligned):
    path = folder / "xx/run/changes/bl_base/xx.json"
    tokens = {row["token"].strip("▁"): row["nearest"] for row in read_json(path)["tokens"]}
    words = {translated(word): word for word in WORDS}
    known = {token: words[token] for token in tokens if token in words}
    assert len(known) >= 5
    right = [word in [near.strip("▁") for near in tokens[token]] for token, word in known.items()]
    assert sum(right) >= len(right) - 1


def test_training_improves_it_in_place_and_leaves_old_rows_and_body(folder, aligned):
    _, before, _ = aligned
    call(folder, "xx", tokens=20_000, test_pairs=[folder / "other.tsv"])
    model = folder / "xx/model"
    assert before["model.safetensors"] != (model / "model.safetensors").read_bytes()
    assert before["tokenizer.json"] == (model / "tokenizer.json").read_bytes()
    assert found(model) > 0.9
    old = load_file(folder / "base/model.safetensors")
    new = load_file(model / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    rows = len(old[name])
    assert len(new[name]) > rows
    assert torch.equal(new[name][:rows], old[name])
    assert {key for key in old if key != name and not torch.equal(new[key], old[key])} == set()
    scores = read_json(folder / "xx/run/evaluate/bl_base/xx/other/seed-1/scores.json")
    assert len(scores) == 2
    assert scores[0]["step"] == 0 < scores[1]["step"]


def test_the_same_call_does_nothing_and_a_shorter_one_is_refused(folder, aligned):
    others = {"test_pairs": [folder / "other.tsv"]}
    call(folder, "xx", tokens=20_000, **others)
    path = folder / "xx/model/model.safetensors"
    written = path.stat().st_mtime_ns
    call(folder, "xx", tokens=20_000, **others)
    assert path.stat().st_mtime_ns == written
    with refuses("a shorter one takes another --out"):
        call(folder, "xx", tokens=0, **others)
    with refuses(r"--test-pairs: .* was begun with"):
        call(folder, "xx", tokens=20_000)


def test_english_vectors_are_equal_to_the_bit(folder, aligned):
    lines = [source for source, _ in pairs_of(40, seed=7)]
    before = vectors_of(folder / "base", lines)
    after = vectors_of(folder / "xx/model", lines)
    assert (before == after).all()


@pytest.mark.parametrize(
    "options, said",
    [
        ({"pairs": []}, "give TEXT in the new language, or --pairs"),
        ({"pairs": ["none.tsv"]}, "none.tsv: no such file"),
        ({"mini": "3"}, "--mini 3"),
        ({"mini": "3+1", "train": "all"}, "--mini trains embeddings alone"),
        ({"mini": "3+1"}, "--mini 3.1: 3 layers and 1 are more than the model's 3"),
        ({"tokens": 5, "hours": 1}, "give --hours or --tokens"),
        ({"pooling": "mean"}, "names a pooling; leave --pooling out"),
        ({"pair_columns": ["a", "b"]}, "no columns"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_no_folder(options, said, folder):
    with refuses(said):
        call(folder, "refused", **options)
    assert not [path for path in (folder / "refused").glob("*") if path.name != ".lock"]


def test_a_model_of_vectors_asks_for_pairs(folder, tmp_path):
    (tmp_path / "text.txt").write_text("some words of it\n")
    with refuses(r"gives vectors for texts, and learns .* --pairs FILE"):
        call(folder, "refused", pairs=[], text=[tmp_path / "text.txt"])


@pytest.mark.parametrize(
    "language, lack",
    [("en", "wordfreq is not installed: "), ("xx", "wordfreq has no words of xx: ")],
)
def test_what_guards_english_is_said_where_no_list_does(folder, monkeypatch, language, lack):
    if language == "en":
        monkeypatch.setitem(sys.modules, "wordfreq", None)
    values = {"model": folder / "base", "pairs": [folder / "help.tsv"], "language": "yy"}
    values |= {"pair_columns": ["a", "b"], "source": language, "out": folder / "unguarded"}
    said = []
    with refuses("no columns"):
        extend(read_config(values), said.append)
    assert [line for line in said if line.startswith(lack)]


def test_a_bare_encoder_takes_a_pooling(folder):
    save_sentence_model(folder / "bare/base")
    for name in ("modules.json", "sentence_bert_config.json"):
        (folder / "bare/base" / name).unlink()
    call(folder, "bare/xx", model=folder / "bare/base", pooling="mean", tokens=0)
    assert found(folder / "bare/xx/model") > 0.9
