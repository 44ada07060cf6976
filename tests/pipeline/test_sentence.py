"""A language for an embedding model by a recipe: aligned, trained toward the untouched model's
vectors, and found.
"""

import numpy as np
import pytest

from ds_minimodel.artifacts.models import load_model
from ds_minimodel.evaluation.packs import plugged_module
from ds_minimodel.evaluation.sentences import encode_texts
from ds_minimodel.pipeline.lines import Targets
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.files import read_json, read_json_lines

from ..forks import done
from .sentence_world import make_sentence_world, pairs_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentence")
    recipe = make_sentence_world(folder)
    done(f"run {recipe}")
    return folder


def scores_in(folder, system="bl_base"):
    path = folder / f"run/evaluate/{system}/xx/found/seed-3/scores.json"
    return {row["step"]: row for row in read_json(path)}


def test_what_is_aligned_is_found_and_what_is_trained_better(world):
    rows = scores_in(world)
    assert [*rows] == [0, 6]
    # 39 of 40, where the old tokens find 2. Most words are single new tokens: of words that are
    # spelled by letters the alignment's prior for equal places knows little.
    assert rows[0]["source_pack_score"] < 30 < 90 < rows[0]["score"]
    assert rows[6]["candidates"] == 40
    losses = read_json_lines(world / "run/adapt/bl_base/xx/run/metrics.jsonl")
    assert losses[-1]["loss"] < losses[0]["loss"]


def test_targets_are_the_untouched_models_vectors_of_the_source_sides(world):
    body, source = load_model(world / "run/pretrain/bl_base/model")
    model = plugged_module(body, source)
    lines = PairCorpus(world / "run/corpus/pairs-xx").lines
    tokenizer = open_tokenizer(world / "run/tokenizer/en")
    expected = encode_texts(model, tokenizer, [pair.source for pair in lines])
    targets = Targets(world / "run/pretrain/targets-xx").whole()
    assert targets.shape == expected.shape
    assert np.abs(targets - expected).max() < 1e-6
    assert np.abs(np.linalg.norm(targets, axis=1) - 1).max() < 1e-5


def test_nothing_is_dropped_while_lines_train(world):
    body, source = load_model(world / "run/pretrain/bl_base/model")
    assert body.config.dropout == 0.1
    model = plugged_module(body, source)
    lines = [source for source, _ in pairs_of(8, seed=4)]
    tokenizer = open_tokenizer(world / "run/tokenizer/en")
    still = encode_texts(model, tokenizer, lines)
    assert (encode_texts(model.train(), tokenizer, lines) == still).all()
