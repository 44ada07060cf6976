"""Dialogues by templates of the forms of Llama 3, Qwen, Gemma, SmolLM2 and Mistral: what is learned
of them.
"""

import numpy as np
import pytest
from transformers import AutoTokenizer

from ds_minimodel.artifacts.base import keep_vocabulary
from ds_minimodel.common.random import permute
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.data.samples import HELD_OUT, BlockTable, SampleReader
from ds_minimodel.data.store import TokenStore
from ds_minimodel.hf import vocabularies
from ds_minimodel.hf.vocabularies import apply_template
from ds_minimodel.models.objectives import OBJECTIVES, Sampler
from ds_minimodel.pipeline.dialogues import held_out_questions, prepare_chats
from tests.helpers.dialogues import TEMPLATES, TURN, write_dialogues
from tests.helpers.files import write_json
from tests.helpers.foreign_models import BEGIN, END, save_llama
from tests.helpers.refusals import refuses

DIALOGUE = [
    ("user", "user 17?"),
    ("assistant", "assistant,\n\nja "),
    ("user", "und ä"),
    ("assistant", "18."),
]


@pytest.mark.parametrize(
    "template, words",
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "computes",
        ),
        ("{{ 'a' * 10000000 }}", "writes more than 1,048,604 characters"),
    ],
)
def test_a_template_without_end(text_file, tmp_path, monkeypatch, template, words):
    """It is refused where a model is taken over, before a question is asked by it."""
    monkeypatch.setattr(vocabularies, "MAX_SECONDS", 0.2)
    folder = save_llama(text_file, tmp_path / "theirs", "$A", template=template)
    with refuses(f"theirs: its chat template {words}"):
        keep_vocabulary(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def tokenizer_with(folder, text_file, template, single):
    """The folder of a vocabulary with this chat template."""
    keep_vocabulary(
        save_llama(text_file, folder / "theirs", single, template=template), folder / "tokenizer"
    )
    return folder / "tokenizer"


def samples_in(store, length=512):
    """(what a model reads, what of it is learned) of each sample, in the order of the dialogues."""
    store = TokenStore(store, verify=True)
    table = BlockTable(store, "complete_doc", length)
    tokenizer = AutoTokenizer.from_pretrained(store.folder.parent / "tokenizer")
    reader = SampleReader(store, table, 1)
    batch = Sampler(reader, OBJECTIVES["causal-lm"], None).batch(0, len(table))
    assert batch["count"] == (batch["targets"] != IGNORED).sum()
    assert len(table) == store.num_documents
    found = {}
    for row, number in enumerate(permute(np.arange(len(table)), len(table), 1, 0).tolist()):
        read = batch["tokens"][row, : batch["lengths"][row]]
        targets = batch["targets"][row]
        is_learned = targets[: len(read) - 1] != IGNORED
        np.testing.assert_array_equal(read[1:][is_learned], targets[: len(read) - 1][is_learned])
        found[number] = tokenizer.decode(read), tokenizer.decode(read[1:][is_learned])
    return [found[number] for number in sorted(found)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_an_assistant_says_is_learned_with_the_end_of_its_turn(text_file, tmp_path, name):
    single = f"{BEGIN} $A" if TEMPLATES[name].startswith("{{ bos_token }}") else "$A"
    folder = tokenizer_with(tmp_path, text_file, TEMPLATES[name], single)
    chats = write_dialogues(tmp_path / "chats.jsonl", DIALOGUE, DIALOGUE[:2])
    prepare_chats([chats], folder, tmp_path / "store", 512, 0.0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    whole, first = samples_in(tmp_path / "store")
    turns = [{"role": role, "content": said.strip()} for role, said in DIALOGUE]
    assert whole[0] == apply_template(tokenizer, turns, tokenize=False)
    assert ("01 Jan" in whole[0]) == (name == "llama 3")
    assert whole[1] == f"assistant,\n\nja{END}18.{END}"
    assert first[1] == f"assistant,\n\nja{END}"
    system = write_dialogues(tmp_path / "system.jsonl", [("system", "Kurz."), *DIALOGUE])
    if name == "gemma":
        with refuses("system.jsonl:1: the chat template does not take it .System role not"):
            prepare_chats([system], folder, tmp_path / "with-system", 512, 0.0)
        return
    prepare_chats([system], folder, tmp_path / "with-system", 512, 0.0)
    ((read, learned),) = samples_in(tmp_path / "with-system")
    assert "Kurz." in read
    assert learned == whole[1]
    assert held_out_questions([system], 0.999999, 9) == [
        [{"role": "system", "content": "Kurz."}, turns[0]]
    ]


@pytest.mark.parametrize("name", ["smollm2", "generation"])
def test_an_answer_that_is_not_to_be_learned_is_read(text_file, tmp_path, name):
    folder = tokenizer_with(tmp_path, text_file, TEMPLATES[name], "$A")
    asked = {"role": "user", "content": "Was?"}
    said = {"role": "assistant", "content": "Wind."}
    wrong = {**said, "content": "Falsch.", "train": False}
    path = tmp_path / "chats.jsonl"
    write_json(path, {"messages": [asked, wrong, asked, said]})
    prepare_chats([path], folder, tmp_path / "store", 512, 0.0)
    ((read, learned),) = samples_in(tmp_path / "store")
    assert "Falsch." in read
    assert learned == f"Wind.{END}"


def test_what_does_not_fit_a_sample(text_file, tmp_path, capsys):
    """Turns go on in the next one after what the system says; what is cut off is not learned, nor
    is its end.
    """
    folder = tokenizer_with(tmp_path, text_file, TEMPLATES["llama 3"], f"{BEGIN} $A")
    system = ("system", "s")
    more = [("user", "a?"), ("assistant", "a!"), ("user", "b?"), ("assistant", "b" * 90)]
    chats = write_dialogues(
        tmp_path / "chats.jsonl", [system, *more, *more[:2]], [("user", "c" * 90), more[1]]
    )
    prepare_chats([chats], folder, tmp_path / "store", 64, 0.0)
    parts = samples_in(tmp_path / "store", 64)
    assert [learned[:2] for _, learned in parts] == ["a!", "bb", "a!"], (
        "without the question that fills a sample"
    )
    assert all("[system]\n\ns" in read for read, _ in parts)
    assert [END in learned for _, learned in parts] == [True, False, True]
    assert "\n1 dialogues have no answer within 64 tokens" in f"\n{capsys.readouterr().err}"


def test_dialogues_are_held_out_and_faults_named(text_file, tmp_path):
    folder = tokenizer_with(tmp_path, text_file, TEMPLATES["smollm2"], "$A")
    rows = ([("user", f"{index}?"), ("assistant", said)] for said in "01." for index in range(200))
    chats = write_dialogues(tmp_path / "chats.jsonl", *rows)
    prepare_chats([chats], folder, tmp_path / "store", 64, 0.25)
    trained = TokenStore(tmp_path / "store").num_documents
    held_out = TokenStore(tmp_path / "store" / HELD_OUT).num_documents
    assert trained + held_out == 600
    assert 90 < held_out == 3 * len(held_out_questions([chats], 0.25, 200)) < 210
    (tmp_path / "held.txt").write_text("A line of a held-out page, which an answer has.\n")
    page = [("user", "?"), ("assistant", (tmp_path / "held.txt").read_text())]
    known = write_dialogues(tmp_path / "known.jsonl", page, DIALOGUE)
    prepare_chats([known], folder, tmp_path / "known", 64, 1e-9, [tmp_path / "held.txt"])
    assert [TokenStore(tmp_path / "known" / part).num_documents for part in ("", HELD_OUT)] == [
        2,
        1,
    ]
    bare = tokenizer_with(tmp_path / "bare", text_file, None, "$A")
    template = TURN + "{{ m.content | replace('.', '!') }}{% endfor %}"
    changes = tokenizer_with(tmp_path / "changes", text_file, template, "$A")
    says = write_dialogues(
        tmp_path / "says.jsonl", DIALOGUE, [DIALOGUE[0], ("assistant", f"It ends with {END}.")]
    )
    for asked, where, held_out, words in (
        (
            says,
            folder,
            0.0,
            "says.jsonl:2: a turn says '<.end.>', a special token; spell it in another way",
        ),
        (chats, bare, 0.0, "has no chat template"),
        (
            chats,
            changes,
            0.0,
            "chats.jsonl:401: the chat template does not take it .it changes what is said",
        ),
        (chats, folder, 0.999999, "no answer begins in 64 tokens to train on; 600 are held out"),
    ):
        with refuses(words):
            prepare_chats([asked], where, tmp_path / "none", 64, held_out)
        assert not (tmp_path / "none").exists()
