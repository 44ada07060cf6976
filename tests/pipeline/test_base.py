"""From a checkpoint of Hugging Face's to zero-shot scores, and recipes that do not fit their
base.
"""

import pytest

from ds_minimodel.artifacts.base import refer
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses
from tests.pipeline.conftest import assert_shared_rows_are_the_bases

from ..forks import done
from ..hf.conftest import roberta, text_file, unigram_folder, xlm_r  # noqa: F401
from .conftest import make_world

pytestmark = pytest.mark.slow

RECIPE = """
workdir: {folder}/run
seed: 3
systems: [bl_base, minipost]
base: {folder}/base
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocab_size: 60}}
data: {{workers: 1, text: {{en: {folder}/en.txt, xx: {folder}/xx.txt}}}}
mini: {{depth: 1, new_layers: 1}}
build_mini: {{steps: 4, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 1}}
adapt: {{steps: 4, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 1}}
finetune: {{seeds: 1, epochs: 1, batch_size: 8, max_length: 64, tasks: {{
    topic: {{kind: classification, train: {folder}/topic.en.jsonl,
            test: {{en: {folder}/topic.en.jsonl, xx: {folder}/topic.xx.jsonl}}}},
    qa: {{kind: qa, question_length: 8, stride: 16, train: {folder}/qa.en.json,
         test: {{en: {folder}/qa.en.json, xx: {folder}/qa.xx.json}}}}}}}}
engine: {{precision: fp32, micro_batch_size: 8}}
"""


def make_recipe(folder, checkpoint):
    """A world of two languages with `checkpoint` imported as its base; the recipe's path."""
    path = make_world(folder)
    refer(checkpoint, folder / "base", "en")
    path.write_text(RECIPE.format(folder=folder))
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, xlm_r):  # noqa: F811
    return make_recipe(tmp_path_factory.mktemp("base"), xlm_r)


def test_to_zero_shot_scores(recipe):
    """With XLM-R's vocabulary; RoBERTa's goes the same way in test_docs.py."""
    done(f"run {recipe}")
    workdir = recipe.parent / "run"
    base = recipe.parent / "base"
    rows = read_json(workdir / "report/scores.json")
    assert {(row["system"], row["task"], row["language"], row["step"]) for row in rows} == {
        (system, task, "xx", step)
        for system in ("bl_base", "minipost")
        for task in ("topic", "qa")
        for step in (0, 4)
    }
    places = base, workdir / "pretrain/bl_base/model"
    one, other = (read_json(place / "manifest.json")["source"] for place in places)
    assert one == other
    assert not [*(workdir / "pretrain").rglob("*.safetensors")], "it is named, not copied"
    assert_shared_rows_are_the_bases(base, workdir, "xx")
    page = (workdir / "report/report.md").read_text()
    assert "taken over from base" in page
    assert "not known and not counted" in page


def test_a_target_has_the_bases_special_tokens_and_words(tmp_path, roberta):  # noqa: F811
    recipe = make_recipe(tmp_path, roberta)
    for step in ("corpus", "tokenizer"):
        run_step(STEPS[step], load_recipe(recipe, ["tokenizer={kind: byte-bpe, vocab_size: 280}"]))
    base = open_tokenizer(tmp_path / "base")
    target = open_tokenizer(tmp_path / "run/tokenizer/xx")
    assert target.special == base.special
    assert target.split == base.split
    assert target.vocabulary.roundtrip_counterexample is None


@pytest.mark.parametrize(
    "override, words",
    [
        ("systems=[minipost,minijoint]", "minijoint cannot start from a base"),
        ("model.num_layers=4", "model.num_layers 4 is not the base's 3"),
        ("languages={source: de, targets: [xx]}", "languages.source de: the base's pack is of en"),
        ("mini.depth=3", "mini.depth 3 must be below model.num_layers 3"),
    ],
)
def test_what_does_not_fit(recipe, override, words):
    with refuses() as error:
        load_recipe(recipe, [override])
    assert words in str(error.value)


def test_the_baseline_alone_needs_no_text_of_the_source(recipe):
    text = f"data.text={{xx: {recipe.parent}/xx.txt}}"
    assert load_recipe(recipe, ["systems=[bl_base]", text]).languages_of_text == ["xx"]
    with refuses("data.text has no files for en"):
        load_recipe(recipe, [text])
