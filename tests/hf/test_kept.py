"""What a decoder keeps while a language is added, over a small Llama: each measure against its
plain form.
"""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import identity, load_model
from ds_minimodel.export.folder import export_hf
from ds_minimodel.extend import retention as kept
from ds_minimodel.extend.generations import settings_of, written
from ds_minimodel.extend.questions import question_set
from ds_minimodel.extend.retention import (
    ANSWER_TOKENS,
    FEWEST_TO_CHOOSE,
    MOST_LOST,
    Change,
    Comparison,
    find_kept,
    points_lost,
)
from ds_minimodel.models.low_rank import UP, add_low_rank, is_low_rank
from ds_minimodel.report.kept import Sample
from ds_minimodel.tokenizers.extension import extend_tokenizer
from ds_minimodel.tokenizers.tokenizer import open_tokenizer

from .test_decoders import save_llama

SOME = 120  # questions
TEMPLATE = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"


@pytest.fixture(autouse=True)
def some_questions(monkeypatch):
    monkeypatch.setattr(kept, "question_set", lambda *own: question_set(*own[:2], SOME))
    monkeypatch.setattr(kept, "TEXT_BYTES", 6000)
    monkeypatch.setattr(kept, "SCORES_AT_ONCE", 5000)  # in several blocks


def made(folder, text_file, update=0.0, rows=0.02, template=TEMPLATE):
    """A Llama in `theirs`, its reference `model`, and `pack`: 8 new tokens, and a LoRA of this
    size.
    """
    theirs = save_llama(text_file, folder / "theirs", "$A")
    config = json.loads((theirs / "config.json").read_text()) | {"max_position_embeddings": 200}
    (theirs / "config.json").write_text(json.dumps(config))
    if template:
        (theirs / "chat_template.jinja").write_text(template)
    refer(theirs, folder / "model", "en")
    (folder / "xx.txt").write_text("zozo gaga zozo mimi\n" * 200)
    words = {"zozo": 200, " zozo": 200, " gaga": 200, " mimi": 200}
    extend_tokenizer(folder / "model/tokenizer", 330, words, {}, folder / "tokenizer", 8)
    body, _ = load_model(folder / "model")
    module, draw = body.config.make_body((2,)), torch.Generator().manual_seed(1)
    add_low_rank(module, 2, 1)
    changed = {
        name: tensor.detach() for name, tensor in module.named_parameters() if is_low_rank(name)
    }
    for name, tensor in changed.items():
        if name.endswith(UP):
            tensor.normal_(0, update, generator=draw)
    own = {"tokens": torch.empty(8, 16).normal_(0, rows, generator=draw)}
    learned = body.adaptation("xx", own, steps=7, num_base=330, update=changed if update else {})
    save_adaptation(folder / "pack", learned, folder / "tokenizer", body.config)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory, text_file):
    return made(
        tmp_path_factory.mktemp("kept"), text_file, update=0.05 / 8
    )  # a LoRA of rank 2 counts 16 times


def kept_of(folder, text_file, memory="memory", **options):
    said = []
    held_out = {"en": str(text_file), "xx": str(folder / "xx.txt")}
    places = (
        folder / "model",
        folder / "model/tokenizer",
        folder / "pack",
        folder / memory / "xx.json",
    )
    return find_kept(*places, held_out, "en", say=said.append, **options), said


def test_answers_of_a_batch_are_those_of_each_alone(world):
    module, tokenizer = (
        kind.from_pretrained(world / "theirs") for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    prompts = tokenizer(["the wind is new", "the wind blows", "the wind is new and the harbour"])[
        "input_ids"
    ]
    found = written(module.eval(), prompts, settings_of(module) | {"eos_token_id": [0, 7]}, 20)
    for prompt, answer in zip(prompts, found, strict=True):
        ids = list(prompt)
        while len(ids) < len(prompt) + 20 and (len(ids) == len(prompt) or ids[-1] not in (0, 7)):
            with torch.inference_mode():
                ids.append(int(module(torch.tensor([ids])).logits[0, -1].argmax()))
        assert ids[len(prompt) :] == answer


def test_each_strength_is_the_model_that_is_exported(world, text_file):
    both = Comparison(
        *(world / name for name in ("model", "model/tokenizer", "pack")), {}, world / "some.json"
    )
    for strength in (0.5, 1.0, 0.25):
        both.put(strength)
        out = world / f"out-{strength}"
        export_hf(world / "model", out, world / "pack", strength=strength)
        theirs = AutoModelForCausalLM.from_pretrained(out).state_dict()
        assert all(
            torch.equal(tensor, theirs[name]) for name, tensor in both.module.state_dict().items()
        )


def test_bits_and_likeliest_tokens_are_those_of_plain_passes(world, text_file):
    texts = {"en": str(text_file)}
    both = Comparison(
        *(world / name for name in ("model", "model/tokenizer", "pack")), texts, world / "bits.json"
    )
    both.put(0.5)
    bits, whole = both.bits("en"), text_file.read_bytes()[: kept.TEXT_BYTES]
    assert bits.edges == [0, 128, 199] and bits.sizes.sum() > 0.99 * len(whole)
    ids = both.new.encode(both.windows["en"][:1])[0]
    with torch.inference_mode():
        log_SV = (
            both.module(torch.tensor([[both.new.scored_after, *ids]])).logits[0].log_softmax(-1)
        )
    nats = -log_SV[range(len(ids)), ids]
    assert bits.after[0].sum() == pytest.approx(float(nats.sum()) / math.log(2), rel=1e-4)
    first = np.searchsorted(
        np.cumsum(np.array(both.new.num_bytes())[ids]), bits.sizes[0, 0], side="right"
    )
    assert bits.after[0, 0] == pytest.approx(float(nats[:first].sum()) / math.log(2), rel=0.02)

    changed, *bits_a_token = both.chat(range(3))
    other, total, nats = 0, 0, [0.0, 0.0]
    for dialogue, answer in zip(both.dialogues[:3], both.untouched.answers[:3], strict=True):
        for place, module in enumerate(
            (AutoModelForCausalLM.from_pretrained(world / "theirs").eval(), both.module)
        ):
            with torch.inference_mode():
                logits = module(torch.tensor([dialogue.prompt + answer])).logits[
                    0, -len(answer) - 1 : -1
                ]
            nats[place] -= float(logits.log_softmax(-1)[range(len(answer)), answer].sum())
        other += int((logits.argmax(-1) != torch.tensor(answer)).sum())
        total += len(answer)
    assert changed.percent == pytest.approx(100 * other / total)
    assert bits_a_token == pytest.approx([own / math.log(2) / total for own in nats], rel=1e-4)


def test_windows_are_the_whole_text_whatever_stands_before_it(world, unigram_folder, text_file):
    whole = text_file.read_bytes()[: kept.TEXT_BYTES].decode(errors="ignore")
    for folder in (world / "model/tokenizer", unigram_folder):
        windows = kept.windows_of(tokenizer := open_tokenizer(folder), text_file, 50, "text")
        assert "".join(windows) == whole and 40 < max(map(len, tokenizer.encode(windows))) <= 50


def test_an_interval_is_by_what_was_drawn():
    change = Change.of(np.array([1, 0, 0, -1, 0, 0, 0, 1]), np.ones(8))
    assert change.percent == 12.5
    assert change.error == pytest.approx(
        100 * np.std([1, 0, 0, -1, 0, 0, 0, 1], ddof=1) / math.sqrt(8)
    )
    assert Change.of(np.array([1.0, 2.0, 0.0]), np.array([10.0, 20.0, 0.0])) == (10, 0, 2), (
        "the same share of each"
    )
    assert [Change(0, 1, n).bound() for n in (2, 3, 7, 10**6)] == pytest.approx(
        [0, 2.92, 1.943, 1.645], rel=0.06
    )
    assert points_lost([Sample(opening="", before="", after="")] * 98).error == pytest.approx(1)


def test_strength_1_stays_where_no_answers_are_lost_and_is_found_once(world, text_file):
    other = world / "news.zz.txt"
    other.write_text("The wind sees the boat.\n\n" * 40)
    found, said = kept_of(world, text_file, given={"news.zz.txt, of yours": str(other)})
    assert (found.strength, said) == (1.0, ["merge strength 1: 0.0 points of right answers lost"])
    assert found.sentences[0].startswith(
        "merge strength 1: right answers fall by 0.0 points at 1, where 5 may be lost; `ds-mini"
    )
    text = "\n".join([*found.sentences, *found.texts])
    assert f"of {SOME} English questions 0 right before, 0 after (0 lost, 0 won; " in text
    assert "news.zz.txt, of yours: " in text and "not looked at" not in text
    assert (found.pack, len(found.answers)) == (identity(world / "pack"), kept.SHOWN)
    before = (world / "memory/the-untouched.json").stat()
    again = kept_of(world, text_file, given={"news.zz.txt, of yours": str(other)})
    assert again == (found, []), "nothing is asked again"
    chats = [[{"role": "user", "content": own}] for own in ("zozo", "mimi")]
    fixed, said = kept_of(world, text_file, strengths=[0.5], chats=chats)
    assert [own.opening for own in fixed.chats] == ["zozo", "mimi"]
    assert (fixed.strength, said) == (0.5, [])
    assert fixed.sentences[0].startswith("merge strength 0.5, as asked for; `ds-minimodel export-")
    assert (world / "memory/the-untouched.json").stat() != before, "of other texts"


@pytest.mark.parametrize(
    "lost_at, strength", [((6, 4), 0.75), ((6, 5.1, 9), 0.5), ((-3,), 1.0), ((5,), 1.0)]
)
def test_a_strength_is_taken_back_by_more_than_5_points_lost(
    world, text_file, monkeypatch, lost_at, strength
):
    lost = iter(lost_at)
    monkeypatch.setattr(kept, "points_lost", lambda answers: Change(next(lost, 0), 1, SOME))
    found, said = kept_of(world, text_file, memory=f"lost-{lost_at}")
    assert found.strength == strength and len(said) == len(lost_at)
    assert all(f"{percent:.1f} points at" in found.sentences[0] for percent in lost_at)


def test_few_questions_choose_nothing(world, text_file, monkeypatch):
    few = FEWEST_TO_CHOOSE - 1
    monkeypatch.setattr(kept, "question_set", lambda *own: question_set(*own[:2], few))
    monkeypatch.setattr(kept, "points_lost", lambda answers: Change(MOST_LOST + 1, 1, few))
    found, said = kept_of(world, text_file, memory="few")
    assert (found.strength, said) == (1.0, [])
    assert found.sentences[0].startswith("merge strength 1: fewer than 100 questions; ")


def test_rows_alone_of_a_plain_decoder(tmp_path, text_file):
    folder = made(tmp_path, text_file, rows=0.0, template=None)
    found, said = kept_of(folder, text_file)
    assert (found.strength, said) == (1.0, [])
    asked = json.loads((folder / "memory/the-untouched.json").read_text())
    assert len(asked["answers"]) == SOME + 20 and max(map(len, asked["answers"])) <= ANSWER_TOKENS
    places = (
        *(folder / name for name in ("model", "model/tokenizer", "pack")),
        {},
        folder / "some.json",
    )
    for source, (before, after) in {
        "en": ("Question: ", "\nAnswer:"),
        "de": ("Frage: ", "\nAntwort:"),
    }.items():
        both = Comparison(*places, source=source)
        words = AutoTokenizer.from_pretrained(folder / "theirs").decode(both.dialogues[0].prompt)
        assert words == f"{before}{both.dialogues[0].question.text}{after}"
