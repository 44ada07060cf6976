"""What a decoder writes by itself: by its own distribution, from where its chat template lets a
user begin.
"""

import math
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ds_minimodel.artifacts.base import keep_vocabulary
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.questions import TABLES, question_set
from ds_minimodel.models import BODIES
from ds_minimodel.pipeline.own_replay import (
    MAX_ROWS,
    PARTS,
    QUESTIONS,
    ROWS,
    _rows_within,
    write_replay,
)
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.foreign_models import BEGIN, END, save_llama
from tests.helpers.refusals import refuses

TEMPLATE = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"


def base_of(folder, text_file, template, single="$A"):
    """(A Llama with this chat template, the folder of its vocabulary)"""
    theirs = save_llama(text_file, folder / "theirs", single, template=template)
    keep_vocabulary(theirs, folder / "tokenizer")
    return theirs, folder / "tokenizer"


def written_by(base, out, tokens, seed=1, known=()):
    """What it writes into the new folder `out`: ids of each text."""
    write_replay(*base, out, tokens, seed, known)
    store = TokenStore(out, verify=True)
    return [store.read(*store.document(number)).tolist() for number in range(store.num_documents)]


def answered(written, tokenizer):
    """The texts that begin with one of the questions, by the template."""
    asked = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False)
        for question in QUESTIONS.read_text().splitlines()
    ]
    begun = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in asked]
    begun += [ids[1:] for ids in begun]  # where a reader puts the first one
    return [ids for ids in written if any(ids[: len(one)] == one for one in begun)]


def test_half_of_a_chat_models_text_answers_questions(text_file, tmp_path):
    base = base_of(tmp_path, text_file, TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    write_replay(*base, tmp_path / "out", 12_000, sample_length=60)
    store = TokenStore(tmp_path / "out", verify=True)
    written = [store.read(*store.document(index)).tolist() for index in range(store.num_documents)]
    found = answered(written, tokenizer)
    assert written[-len(found) :] == found, "the others come first"
    assert 0.4 < sum(map(len, found)) / sum(map(len, written)) < 0.6
    assert {len(ids) for ids in found} <= {*range(40, 60)}, "each is a sample"
    assert len({*map(tuple, found)}) > 0.9 * len(found)


def test_no_question_of_the_replay_is_one_by_which_models_are_judged():
    def words(text):
        return {*re.findall(r"\w+", text.lower())}

    asked = QUESTIONS.read_text().splitlines()
    judged = [words(one.text) for code in TABLES for one in question_set(code, 10_000)[2]]
    assert len({*asked}) == len(asked) > 200
    for question in asked:
        wanted = words(question)
        assert all(len(wanted & other) < 0.6 * len(wanted | other) for other in judged), question


@pytest.mark.parametrize(
    "template, single", [(TEMPLATE, "$A"), (None, "$A"), (TEMPLATE, f"{BEGIN} $A")]
)
def test_it_writes_by_its_own_distribution_after_the_template(
    text_file, tmp_path, template, single
):
    base = base_of(tmp_path, text_file, template, single)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    whole = [BEGIN, *tokenizer.tokenize("user:", add_special_tokens=False)] if template else [END]
    opening = tokenizer.convert_tokens_to_ids(whole)
    # A reader puts what begins every text before it.
    stored = opening[single != "$A" or not template :]
    written = written_by(base, tmp_path / "out", 12_000)
    if template:  # the others are questions with answers
        written = written[: -len(answered(written, tokenizer))]
    eos = tokenizer.eos_token_id
    least = 6_000 if template else 12_000
    assert len(written) % ROWS == 0
    assert len(written) * (64 - len(opening)) >= least
    assert all(ids[: len(stored)] == stored for ids in written)
    assert not template or any(eos in ids[len(stored) : -1] for ids in written), (
        "which does not end what is drawn"
    )
    drawn = [ids[len(stored) :] for ids in written]
    ids_RS = torch.tensor([[*opening, *ids] for ids in drawn])
    with torch.inference_mode():
        log_RSV = model(ids_RS).logits[:, len(opening) - 1 : -1].log_softmax(-1)
    losses_P = -log_RSV.gather(-1, ids_RS[:, len(opening) :, None]).flatten()
    entropy = -(log_RSV.exp() * log_RSV).sum(-1).mean()
    # 0.01 is for the rounding of bf16.
    assert abs(losses_P.mean() - entropy) < 4 * losses_P.std() / math.sqrt(len(losses_P)) + 0.01


def test_beginnings_of_known_text_are_half_of_it(text_file, tmp_path):
    base = base_of(tmp_path, text_file, None)
    texts = [*filter(None, text_file.read_text().split("\n"))]
    (tmp_path / "known.txt").write_text("\n\n".join(texts))
    begun = [ids[:63] for ids in open_tokenizer(base[1]).encode(texts)]
    written = written_by(base, tmp_path / "out", 4_000, known=[[tmp_path / "known.txt"]] * 2)
    each = next(number for number in range(len(begun)) if sum(map(len, begun[:number])) >= 1_000)
    assert written[-2 * each :] == 2 * begun[:each]
    assert sum(map(len, written[: -2 * each])) >= 1_900


def test_a_seed_repeats(text_file, tmp_path):
    base = base_of(tmp_path, text_file, None)
    one, again, other = (
        written_by(base, tmp_path / f"out-{index}", 100, seed)
        for index, seed in enumerate((1, 1, 2))
    )
    assert one == again != other


def test_it_is_drawn_in_parts_that_an_interruption_leaves(text_file, tmp_path, monkeypatch):
    """What goes on, and what grows, are the texts of one that was not disturbed."""
    monkeypatch.setattr("ds_minimodel.pipeline.own_replay.ROWS", 4)
    base = base_of(tmp_path, text_file, None)
    (tmp_path / "known.txt").write_text(text_file.read_text())
    whole = written_by(base, tmp_path / "whole", 1_500, known=[[tmp_path / "known.txt"]])
    out = tmp_path / "out"
    written_by(base, out, 700, known=[[tmp_path / "known.txt"]])
    before = [path.stat().st_mtime_ns for path in sorted((out / PARTS).iterdir())]

    draws = iter([False, True])

    def seed_or_stop(seed, manual_seed=torch.manual_seed):
        if next(draws, False):
            raise KeyboardInterrupt
        return manual_seed(seed)

    monkeypatch.setattr(torch, "manual_seed", seed_or_stop)
    with pytest.raises(KeyboardInterrupt):
        written_by(base, out, 1_500, known=[[tmp_path / "known.txt"]])
    assert len([*(out / PARTS).iterdir()]) == len(before) + 1
    assert written_by(base, out, 1_500, known=[[tmp_path / "known.txt"]]) == whole
    after = [path.stat().st_mtime_ns for path in sorted((out / PARTS).iterdir())]
    assert after[: len(before)] == before
    assert len(after) > len(before) + 1


def test_a_template_that_changes_what_a_user_says(text_file, tmp_path):
    base = base_of(
        tmp_path, text_file, "{% for m in messages %}{{ m.content | length }}{% endfor %}"
    )
    with refuses("changes what a user says"):
        write_replay(*base, tmp_path / "out", 100)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gigabytes, rows", [(0, ROWS), (5, 426), (20, MAX_ROWS)])
def test_a_gpu_writes_as_many_texts_at_once_as_it_holds(gigabytes, rows):
    """Of SmolLM2's sizes, 256 positions each."""
    config = BODIES["llama"](
        kind="llama", num_layers=30, hidden_size=576, num_heads=9, num_kv_heads=3, ffn_size=1536
    )
    assert _rows_within(gigabytes << 30, config, 49_152, 256) == rows
