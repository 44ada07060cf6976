"""The list of words that guards a vocabulary is a part of what the vocabulary is made from."""

import shutil

from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import is_pending, run_step
from ds_minimodel.tokenizers import guard
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses

from .sentence_world import make_sentence_world

WORDS = {"en": {"the": 0.05, "arch": 1e-6}}


def guard_with(monkeypatch, known):
    """Let a list know the words `known` of each language, or none."""
    monkeypatch.setattr(guard, "version", lambda _: "3.1.1")
    monkeypatch.setattr(guard, "word_frequencies", lambda language: known.get(language, {}))


def test_another_guard_makes_no_other_tokens_unsaid(tmp_path, monkeypatch):
    recipe = load_recipe(make_sentence_world(tmp_path))
    folder = tmp_path / "run/tokenizer/xx"
    record = folder.with_name("xx.job.json")
    step = STEPS["tokenizer"]
    guard_with(monkeypatch, WORDS)
    run_step(STEPS["corpus"], recipe)
    run_step(step, recipe)
    assert read_json(record)["inputs"]["guard"] == "wordfreq 3.1.1"
    made = record.read_bytes()

    # What is made stays valid where no list is installed.
    guard_with(monkeypatch, {})
    assert not is_pending(step, recipe)
    assert record.read_bytes() == made

    # Made again it would be another, which --rebuild alone does.
    shutil.rmtree(folder)
    with refuses(r"guard: wordfreq 3.1.1 -> None"):
        run_step(step, recipe)
    run_step(step, recipe, rebuild=True)
    assert "guard" not in read_json(record)["inputs"]


def test_what_is_made_again_for_other_text_is_guarded_by_what_is_here(tmp_path, monkeypatch):
    path = make_sentence_world(tmp_path)
    guard_with(monkeypatch, WORDS)
    size = "tokenizer.vocab_size=40"
    recipe = load_recipe(path, [size])
    run_step(STEPS["corpus"], recipe)
    run_step(STEPS["tokenizer"], recipe)
    guard_with(monkeypatch, {})
    other = load_recipe(path, [size, f"data.pairs.xx={tmp_path}/other.tsv", "data.test_pairs={}"])
    run_step(STEPS["corpus"], other, rebuild=True)
    with refuses("made from another recipe or other data"):
        run_step(STEPS["tokenizer"], other)
    run_step(STEPS["tokenizer"], other, rebuild=True)
    assert "guard" not in read_json(tmp_path / "run/tokenizer/xx.job.json")["inputs"]
    assert not is_pending(STEPS["tokenizer"], other)
