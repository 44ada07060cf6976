"""Tagging from end to end: files, words as tokens, scores, a run on the command line, Hugging Face's class."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.random import sample_key
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.tasks import KINDS
from ds_minimodel.tasks.batches import TaskSampler
from ds_minimodel.tasks.tagging import Sentences, encode_words, predicted_tags, read_tagged, score_entities, score_tags

from ..forks import run
from ..pipeline.conftest import make_world

TAGGING = KINDS["tagging"]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return open_tokenizer(tokenizer_folder)


def write(folder, name, content):
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def tags_of(sentences):
    return [[sentences.labels[id] for id in ids] for ids in sentences.targets]


# --- Files ---

TREEBANK = """\
# sent_id = 1
# text = Im Haus.
1-2\tIm\t_\t_\t_\t_\t_\t_\t_\t_
1\tIn\tin\tADP\tAPPR\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tART\t_\t3\tdet\t_\t_
3\tHaus\tHaus\tNOUN\tNN\t_\t0\troot\t_\tSpaceAfter=No
3.1\tsteht\tstehen\tVERB\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t$.\t_\t3\tpunct\t_\t_

# sent_id = 2
1\t10 000\t10 000\tNUM\tCARD\t_\t0\troot\t_\t_
"""


def test_a_treebank_gives_its_words_and_upos(tmp_path):
    sentences = read_tagged(write(tmp_path, "de.conllu", TREEBANK))
    assert sentences.words == [["In", "dem", "Haus", "."], ["10 000"]]
    assert tags_of(sentences) == [["ADP", "DET", "NOUN", "PUNCT"], ["NUM"]]
    assert sentences.labels == ("ADP", "DET", "NOUN", "NUM", "PUNCT")


def test_conll_2003_has_the_tag_last_and_iob1_becomes_iob2(tmp_path):
    """As published: B- only where an entity follows one of its type."""
    lines = ["-DOCSTART- -X- O O", "", "EU NNP I-NP I-ORG", "Rome NNP I-NP I-LOC", "Oslo NNP I-NP B-LOC", "", "x y z O"]
    sentences = read_tagged(write(tmp_path, "eng.train", "\r\n".join(lines) + "\r\n"))
    assert sentences.words == [["EU", "Rome", "Oslo"], ["x"]]
    assert tags_of(sentences) == [["B-ORG", "B-LOC", "B-LOC"], ["O"]]


def test_wikiann_loses_its_languages(tmp_path):
    lines = ["de:Berlin\tB-LOC", "de::\tO", "", "", "de:a\u00a0b\tO", ""]
    assert read_tagged(write(tmp_path, "test", "\n".join(lines))).words == [["Berlin", ":"], ["a\u00a0b"]]
    one_without = read_tagged(write(tmp_path, "other", "\n".join([*lines, "http://x\tO"])))
    assert one_without.words[0] == ["de:Berlin", "de::"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("t.tsv", "", "t.tsv: no sentences"),
        ("t.tsv", "a\tO\n\nb\n", "t.tsv:3: 1 columns where 2 are expected"),
        ("t.tsv", "a\tB-X\nb\tX\n", "t.tsv:2: tag 'X' where tags of entities are O, B-TYPE or I-TYPE"),
        ("t.tsv", "a\tO\nb\tB-Y\n", r"t.tsv:2: label 'B-Y' is not one of the task's \(O, B-X\); .* `labels`"),
        ("t.conllu", "1\ta\tADP\n", "t.conllu:1: 3 columns where 10 are expected"),
        ("t.conllu", "1\ta" + "\t_" * 8 + "\n", r"t.conllu:1: 'a', '_' where a word and its tag are expected"),
        ("t.conllu", TREEBANK.replace("\n", "\r"), "t.conllu:1: a carriage return that ends no line"),
        ("t.tsv", "a\tO\nb\0\tO\n", "t.tsv:2: a NUL character"),
    ],
)
def test_mistakes_get_one_line_that_says_where(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as caught:
        read_tagged(write(tmp_path, name, content), ["O", "B-X"])
    assert "\n" not in str(caught.value)


# --- Words as tokens ---


def sentences_of(*words):
    return Sentences(list(words), [np.arange(len(row)) for row in words], tuple(map(str, range(20))))


def test_a_words_first_piece_has_its_label(tokenizer):
    words = ["abcdefgh", "日本", "\u200b", "κόσμος"]
    pieces = tokenizer.encode(words)
    assert len(pieces[0]) > 1 and pieces[2] == []
    encoded = encode_words(tokenizer, sentences_of(words, ["abc"]), max_length=64)
    pieces[2] = [tokenizer.vocabulary.unk]  # a word of no piece has one all the same
    labels = [[number, *[IGNORED] * (len(ids) - 1)] for number, ids in enumerate(pieces)]
    second = tokenizer.encode(["abc"])[0]
    assert encoded.examples.tokens.tolist() == [0, *sum(pieces, []), 2, 0, *second, 2]
    expected = [IGNORED, *sum(labels, []), IGNORED, IGNORED, 0, *[IGNORED] * len(second)]
    assert encoded.examples.targets.tolist() == expected
    assert encoded.first_pieces[0].tolist() == [
        place for place, target in enumerate(expected[: encoded.examples.lengths[0]]) if target != IGNORED
    ]


@pytest.mark.parametrize("max_length", range(3, 16))
def test_a_long_sentence_is_cut_after_a_whole_word(tokenizer, max_length):
    words = ["abcdefgh", "日本人", "abc", "κόσμος"]
    pieces = tokenizer.encode(words)
    encoded = encode_words(tokenizer, sentences_of(words), max_length)
    kept = sum(sum(map(len, pieces[: count + 1])) <= max_length - 2 for count in range(len(words)))
    expected = sum(pieces[:kept], []) if kept else pieces[0][: max_length - 2]
    assert encoded.examples.tokens.tolist() == [0, *expected, 2]
    assert len(encoded.first_pieces[0]) == max(1, kept)


def test_the_loss_has_a_term_for_each_word(tokenizer):
    records = sentences_of(["abcdefgh", "日本"], ["abc"], ["κόσμος", "a", "b"])
    examples = encode_words(tokenizer, records, 64).examples
    batch = examples.batch(np.array([2, 1]), sample_key(1, 0, [2, 1]))
    assert batch["count"] == 4 and batch["targets"].shape == batch["tokens"].shape
    for row, number in enumerate((2, 1)):
        targets = examples.targets[examples.bounds[number] : examples.bounds[number + 1]]
        assert batch["targets"][row, : len(targets)].tolist() == targets.tolist()
        assert (batch["targets"][row, len(targets) :] == IGNORED).all()
    sampler = TaskSampler(examples, batch_size=2, seed=1)
    assert sum(sampler.rows(first, first + 1)["count"] for first in range(4)) == 6  # the filler has none


# --- Scores ---

# The library seqeval 1.2.2 on these: mode="strict", scheme=IOB2, average="micro". It cannot be an ordinary
# requirement of the tests: its sdist does not build without isolation, which the kernels need.
LIBRARY = [
    # gold, predicted, F1
    ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", 100),
    ("B-PER I-PER O", "B-PER O O", 0),
    ("B-PER I-PER O", "I-PER I-PER O", 0),
    ("I-PER I-PER O", "I-PER I-PER O", 0),
    ("B-PER I-LOC O", "B-PER O O", 100),
    ("B-PER B-PER O", "B-PER I-PER O", 0),
    ("B-PER I-LOC I-PER", "B-PER O I-PER", 100),
    ("O O", "O O", 0),
    ("O B-LOC", "O O", 0),
    ("O O", "B-LOC O", 0),
    ("B-LOC I-LOC I-LOC", "B-LOC I-LOC B-LOC", 0),
    ("B-PER O B-LOC I-LOC", "B-LOC O B-LOC I-LOC", 50),
]


@pytest.mark.parametrize("gold, predicted, f1", LIBRARY)
def test_entity_f1_is_seqevals_strict_one(gold, predicted, f1):
    assert score_entities([predicted.split()], [gold.split()])["score"] == f1


def test_words_that_were_cut_off_count(tokenizer):
    words = ["abc", "日本", "κόσμος"]
    always_right = lambda records, encoded: [
        (np.array([0]), np.eye(len(records.labels))[None, np.maximum(encoded.examples.targets, 0)])
    ]
    for labels, targets, expected in [
        (("NOUN", "VERB"), [1, 0, 0], {"score": 100 / 3}),
        (("B-X", "O"), [0, 1, 0], {"score": 100 * 2 / 3, "precision": 100, "recall": 50}),
    ]:
        records = Sentences([words], [np.array(targets)], labels)
        encoded = encode_words(tokenizer, records, 2 + len(tokenizer.encode(["abc"])[0]))
        predicted = predicted_tags(encoded, records, always_right(records, encoded))
        assert predicted[0].tolist() == [targets[0], -1, -1]
        assert score_tags(predicted, records) == pytest.approx(expected)


def task(**keys):
    return SimpleNamespace(**{"labels": None, "columns": {}, "test": {}, **keys})


def test_references_and_metric(tmp_path):
    train = write(tmp_path, "en.conllu", TREEBANK)
    test = write(tmp_path, "de.tsv", "In\tADP\nIn\tNUM\nnew\tADP\nHaus\tNOUN\n")
    settings = task(train=train)
    assert TAGGING.metric(settings, "en") == "accuracy"
    # Each tag is there once but for the order; ADP is the first.
    assert TAGGING.references(settings, {"de": test}, "en") == {
        "majority": {"de": 50.0},
        "majority of each word": {"de": 75.0},
    }
    train = write(tmp_path, "ner.tsv", "Oslo\tB-LOC\na\tO\nb\tO\n")
    settings = task(train=train)
    assert TAGGING.metric(settings, "en") == "entity F1"
    assert TAGGING.references(settings, {"en": train}, "en") == {
        "majority": {"en": 0.0},
        "majority of each word": {"en": 100.0},
    }


# --- Requests ---


def test_answers_have_a_tag_a_word_and_entities(tokenizer):
    labels, words = ["B-X", "I-X", "O"], ["abc", "日本", "κόσμος"]
    records, encoded = TAGGING.encode_requests(tokenizer, [{"tokens": words}, {"text": "abc  def"}], labels, 64)
    best = [np.array([2, 0, 1]), np.array([2, 2])]
    logits = []
    for number, first in enumerate(encoded.first_pieces):
        of_tokens = np.full(encoded.examples.lengths[number], 2)
        of_tokens[first] = best[number]
        logits.append((np.array([number]), np.eye(3)[None, of_tokens]))
    entity = {"type": "X", "text": "日本 κόσμος", "start": 1, "end": 3}
    assert TAGGING.answers(records, encoded, logits, labels) == [
        {"tokens": words, "tags": ["O", "B-X", "I-X"], "entities": [entity]},
        {"tokens": ["abc", "def"], "tags": ["O", "O"], "entities": []},
    ]


@pytest.mark.parametrize(
    "request_, message",
    [
        ({"tokens": "der Hund"}, "request 1: 'tokens' is not a list of words"),
        ({"tokens": ["der", 7]}, r"request 1: 'tokens\[1\]' is 7, not text"),
        ({"text": 7}, "request 1: 'text' is 7, not text"),
        ({"txt": "a"}, "request 1: no 'text'"),
    ],
)
def test_a_wrong_request_is_named(request_, message):
    with pytest.raises(UserError, match=message):
        TAGGING.check_request(request_, "request 1")


# --- A run ---


def test_finetune_evaluate_report_and_predict(tmp_path):
    """Names in CoNLL-2003's four columns, from the lines of the world."""
    recipe, task = make_world(tmp_path), {"kind": "tagging", "test": {}}
    for language in ("en", "xx"):
        lines = [line.split() for line in (tmp_path / f"{language}.txt").read_text().split("\n") if line][:40]
        rows = [[f"{word} x y {'I-WORD' if len(word) < 4 else 'O'}" for word in line] for line in lines]
        text = "-DOCSTART- -X- O O\n\n" + "\n\n".join(map("\n".join, rows)) + "\n"
        task["test"][language] = str(write(tmp_path, f"names.{language}.txt", text))
    task["train"] = task["test"]["en"]
    overrides = ["systems=[bl_base]", "adapt.depth_schedule=[]", "adapt.snapshot_every=8", "finetune.seeds=1"]
    code, _, err = run("run", recipe, *overrides, f"finetune.tasks={json.dumps({'names': task})}")
    assert code == 0, err
    workdir = tmp_path / "run"
    for language in ("en", "xx"):
        rows = json.loads((workdir / f"evaluate/bl_base/{language}/names/seed-3/scores.json").read_text())
        assert all({"score", "precision", "recall"} <= row.keys() and 0 <= row["score"] <= 100 for row in rows)
    page = (workdir / "report/report.md").read_text()
    assert "entity F1" in page and "majority of each word" in page
    log = (workdir / "finetune/bl_base/names/seed-3/run/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in log]
    assert losses[0] < 1.5 and losses[-1] < losses[0]  # the mean over words: ln 3 at the start
    requests = write(tmp_path, "requests.jsonl", '{"text": "the boat"}\n{"tokens": ["a", "fish", "far"]}\n')
    model, pack = workdir / "finetune/bl_base/names/seed-3/model", workdir / "adapt/bl_base/xx/pack"
    code, out, err = run("predict", model, requests, "--pack", f"xx={pack}")
    assert code == 0, err
    first, second = map(json.loads, out.splitlines())
    assert first["tokens"] == ["the", "boat"] and len(second["tags"]) == 3 and "entities" in second


def test_no_room_for_a_word(tokenizer):
    with pytest.raises(UserError, match="max_length 2: too short for a word"):
        encode_words(tokenizer, sentences_of(["a"]), max_length=2)
