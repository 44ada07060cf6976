"""An embedding model extended again: after kills, for longer, with another language; what it takes
besides.
"""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from sentence_transformers import CrossEncoder
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
)

from tests.extend.encoders import call, found, vectors_of
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses

from ..forks import kill_after
from ..pipeline.sentence_world import (
    WORDS,
    make_sentence_world,
    pairs_of,
    translated,
    write_pairs,
)

MOMENTS = (
    "pairs-xx",  # the corpus
    "recipe.yaml",
    "xx",  # the vocabulary
    "model",  # as it is aligned
    "recipe.yaml",  # with its length
    "targets-xx.job.json",
    "pack",  # trained
    "model",
    "xx.json",  # what is looked at
    "report",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("again")
    make_sentence_world(folder)
    return folder


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_kill_at_any_moment_changes_no_bit(folder):
    call(folder, "whole", tokens=3000)
    command = f"extend {folder}/base --pairs {folder}/help.tsv --language xx --tokens 3000"
    for moment in MOMENTS:
        kill_after(moment, f"{command} --out {folder}/killed")
    call(folder, "killed", tokens=3000)
    assert files_of(folder / "killed/model") == files_of(folder / "whole/model")


def test_a_longer_training_goes_on_from_a_shorter_one(folder):
    call(folder, "longer", tokens=3000)
    first = (folder / "longer/run/adapt/bl_base/xx/run/metrics.jsonl").read_text().splitlines()
    call(folder, "longer", tokens=6000)
    rows = (folder / "longer/run/adapt/bl_base/xx/run/metrics.jsonl").read_text().splitlines()
    stable = int(0.8 * len(first))
    assert len(rows) > len(first)
    assert [row.split(', "lr"')[0] for row in rows[: stable - 1]] == [
        row.split(', "lr"')[0] for row in first[: stable - 1]
    ]
    assert found(folder / "longer/model") > 0.9


def test_a_second_language_leaves_the_first_one_as_it_is(folder):
    """The model of one call is the base of another."""
    call(folder, "first", tokens=3000)
    swapped = [(line, words.replace("z", "y")) for line, words in pairs_of(320, seed=1)]
    write_pairs(folder / "yy.tsv", swapped)
    call(
        folder,
        "second",
        model=folder / "first/model",
        pairs=[folder / "yy.tsv"],
        language="yy",
        tokens=0,
    )
    lines = [target for _, target in pairs_of(40, seed=5)]
    vectors = vectors_of(folder / "first/model", lines), vectors_of(folder / "second/model", lines)
    assert (vectors[0] == vectors[1]).all()
    assert found(folder / "second/model") == found(folder / "first/model") > 0.9


@pytest.mark.parametrize("options", [{"mini": "1+1"}, {"train": "lora"}, {"train": "all"}], ids=str)
def test_other_ways_to_train_find_as_much(options, folder):
    out = "-".join(map(str, *options.items()))
    call(folder, out, tokens=3000, **options)
    assert found(folder / out / "model") > 0.9


def test_a_mini_model_is_built_after_the_aligned_model_stands(folder):
    out = folder / "mini"
    call(folder, "mini", tokens=0, mini="1+1")
    assert found(out / "model") > 0.9
    assert not (out / "run/build-mini").exists()
    aligned = (out / "model/model.safetensors").read_bytes()
    state = json.loads((out / "call.json").read_text())
    # As if a line had taken a minute: the call that goes on scores nothing, and measures nothing.
    (out / "call.json").write_text(json.dumps({**state, "seconds_a_line": 60.0}))
    said = call(folder, "mini", tokens=3000, mini="1+1")
    (line,) = (line for line in said if line.startswith("aligned: "))
    assert re.search(r"training continues for about [\d.]+ h;", line)
    assert (out / "run/adapt/minipost/xx/pack").exists()
    recipe = YAML(typ="safe").load(out / "recipe.yaml")
    assert recipe["build_mini"]["steps"] <= recipe["adapt"]["steps"] / 2
    page = (out / "run/report/report.md").read_text()
    share = re.search(r"(\d+) % of the FLOPs of training all weights, of which (\d+) % made", page)
    assert int(share[1]) < 75 and 10 < int(share[2]) < 50
    assert found(out / "model") > 0.9
    assert (out / "model/model.safetensors").read_bytes() != aligned


def test_pairs_and_test_pairs_of_one_name_are_both_scored(folder):
    shutil.copy(folder / "other.tsv", folder / "help.test.tsv")
    said = call(folder, "named", tokens=0, test_pairs=[folder / "help.test.tsv"])
    (line,) = (line for line in said if line.startswith("aligned: "))
    assert "found in help-test," in line
    assert "found in help," in line


def test_another_file_of_pairs_is_refused(folder):
    write_pairs(folder / "mine.tsv", pairs_of(200, seed=3))
    call(folder, "other", pairs=[folder / "mine.tsv"], tokens=0)
    write_pairs(folder / "mine.tsv", pairs_of(200, seed=4))
    with refuses(r"mine\.tsv \(--pairs\): another file than"):
        call(folder, "other", pairs=[folder / "mine.tsv"], tokens=0)


def save_classifier(folder, base, labels=3):
    """Write a classifier over the body of a model of vectors, whose labels hang on words."""
    shutil.copytree(
        base, folder, ignore=shutil.ignore_patterns("modules.json", "[0-9]_*", "*.safetensors")
    )
    config = BertConfig.from_pretrained(base, num_labels=labels)
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(BertModel.from_pretrained(base).state_dict(), strict=False)
    with torch.no_grad():  # so that no label is most lines' own
        for layer in model.bert.encoder.layer:  # so that the first state hangs on the others
            layer.attention.self.value.weight.normal_(0, 0.3)
            layer.attention.output.dense.weight.normal_(0, 0.3)
        model.bert.pooler.dense.weight.normal_(0, 0.3)
        model.classifier.weight.normal_(0, 2)
        lines = [source for source, _ in pairs_of(100, seed=8)]
        tokens = AutoTokenizer.from_pretrained(base)(lines, padding=True, return_tensors="pt")
        model.classifier.bias -= model.eval()(**tokens).logits.mean(0)
    model.save_pretrained(folder)
    return folder


def labels_of(folder, lines):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**tokenizer(lines, padding=True, return_tensors="pt")).logits
    return [model.config.id2label[int(label)] for label in logits.argmax(1)]


def test_a_classifier_learns_a_language_toward_its_own_labels(folder):
    base = save_classifier(folder / "classifier", folder / "base")
    pairs = pairs_of(60, seed=6)
    right = labels_of(base, [source for source, _ in pairs])
    rows = [{"text": text, "label": label} for (_, text), label in zip(pairs, right, strict=True)]
    (folder / "topics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = call(
        folder,
        "classified",
        model=base,
        test_pairs=[folder / "other.tsv"],
        test_task=folder / "topics.jsonl",
        tokens=3000,
    )
    (line,) = (line for line in said if line.startswith("aligned: "))
    assert "% right in other" in line
    assert "% right in topics" in line
    scores = folder / "classified/run/evaluate/bl_base/xx/topics/seed-1/scores.json"
    aligned, trained = read_json(scores)
    assert aligned["source_pack_score"] < 60 < 80 < aligned["score"]
    assert trained["score"] >= aligned["score"]
    after = labels_of(folder / "classified/model", [text for _, text in pairs])
    share = sum(map(str.__eq__, after, right)) / len(right)
    assert share == pytest.approx(trained["score"] / 100, abs=0.05)  # there in bf16


def scores_of(folder, pairs):
    """What a cross-encoder gives for pairs of texts."""
    return CrossEncoder(str(folder), device="cpu").predict(pairs, activation_fn=torch.nn.Identity())


def test_a_cross_encoder_is_aligned_and_not_trained(folder):
    base = save_classifier(folder / "cross", folder / "base", labels=1)
    said = call(folder, "crossed", model=base, tokens=3000)
    assert [line for line in said if line.startswith("aligned: nothing is held out")]
    assert "no training" in (folder / "crossed/run/report/report.md").read_text()
    lines = pairs_of(60, seed=12)
    shifted = [*lines[1:], lines[0]]
    sources = [(one, other) for (one, _), (other, _) in zip(lines, shifted, strict=True)]
    targets = [(one, other) for (_, one), (_, other) in zip(lines, shifted, strict=True)]
    right = scores_of(base, sources)
    before = np.corrcoef(right, scores_of(base, targets))[0, 1]
    after = np.corrcoef(right, scores_of(folder / "crossed/model", targets))[0, 1]
    assert before < 0.5 < 0.9 < after
    assert (scores_of(folder / "crossed/model", sources) == right).all()


def test_a_dictionary_alone_is_aligned_and_not_trained(folder):
    write_pairs(folder / "words.tsv", [(word, translated(word)) for word in WORDS])
    said = call(folder, "dictionary", pairs=[folder / "words.tsv"])
    assert [line for line in said if line.startswith("aligned: nothing is held out")]
    assert found(folder / "base") < 0.3 < found(folder / "dictionary/model")


def test_headings_find_their_pages(folder):
    """A document's heading is some words of its text."""
    documents = [
        "\n".join([" ".join(text.split()[:5]), text, f"{text} {text}"])
        for _, text in pairs_of(30, seed=13)
    ]
    (folder / "pages.txt").write_text("\n\n".join(documents))
    call(folder, "pages", text=[folder / "pages.txt"], tokens=0)
    (row,) = read_json(folder / "pages/run/evaluate/bl_base/xx/headings/seed-1/scores.json")
    assert row["queries"] == row["candidates"] == 30
    assert row["score"] > 80
    assert "**headings, BL_BASE**" in (folder / "pages/run/report/report.md").read_text()


def test_hours_are_filled_by_the_time_of_the_first_steps(folder):
    said = call(folder, "hours", hours=0.001)
    (line,) = (line for line in said if "lines a second here" in line)
    steps = int(line.split(": ")[1].split(" steps")[0].replace(",", ""))
    rows = (folder / "hours/run/adapt/bl_base/xx/run/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == steps >= 30
    call(folder, "hours")  # goes on with nothing left to do
    assert (folder / "hours/run/report/report.html").exists()
