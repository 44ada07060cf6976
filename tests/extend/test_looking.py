"""What a decoder keeps while a language is added, over a small Llama."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import module_of, refer, shared_modules
from ds_minimodel.artifacts.models import identity, load_model
from ds_minimodel.config.base import read_base
from ds_minimodel.evaluation import comparison
from ds_minimodel.evaluation.comparison import STRENGTHS
from ds_minimodel.evaluation.retention import ANSWER_TOKENS, Decoder, rows_of
from ds_minimodel.extend import looking
from ds_minimodel.extend.looking import (
    FORWARD_PASSES,
    SHARE,
    budget_of,
    find_kept,
    look_at_untouched,
    probe_of,
)
from ds_minimodel.models.low_rank import LORA_B, add_low_rank, is_low_rank
from ds_minimodel.tokenizers.extension import extend_tokenizer
from tests.helpers.files import read_json, write_json
from tests.helpers.foreign_models import save_llama

TEMPLATE = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
PLENTY = looking.Budget(6_000, 1e9)


def made(folder, text_file, update=0.05 / 8, template=TEMPLATE):
    """A Llama in `theirs`, its reference `model`, and `pack`: 8 new tokens, and a LoRA of rank 2,
    of this size.
    """
    theirs = save_llama(text_file, folder / "theirs", "$A")
    config = read_json(theirs / "config.json") | {"max_position_embeddings": 200}
    write_json(theirs / "config.json", config)
    if template:
        (theirs / "chat_template.jinja").write_text(template)
    refer(theirs, folder / "model", "en")
    (folder / "xx.txt").write_text("zozo gaga zozo mimi\n\n" * 200)
    words = {"zozo": 200, " zozo": 200, " gaga": 200, " mimi": 200}
    extend_tokenizer(folder / "model/tokenizer", 330, words, {}, folder / "tokenizer", 8)
    body, _ = load_model(folder / "model")
    module = body.config.make_body((2,))
    draw = torch.Generator().manual_seed(1)
    add_low_rank(module, 2, 1)
    changed = {
        name: tensor.detach() for name, tensor in module.named_parameters() if is_low_rank(name)
    }
    for name, tensor in changed.items():
        if name.endswith(LORA_B):
            tensor.normal_(0, update, generator=draw)
    rows = {"tokens": torch.empty(8, 16).normal_(0, 0.02, generator=draw)}
    learned = body.adaptation("xx", rows, steps=7, num_base=330, update=changed if update else {})
    save_adaptation(folder / "pack", learned, folder / "tokenizer", body.config)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory, text_file):
    return made(tmp_path_factory.mktemp("kept"), text_file)


def probe(folder, chats=(), texts=None, budget=PLENTY, source="en"):
    return probe_of(
        folder / "model",
        source,
        opening_file=str(folder / "xx.txt"),
        chats=chats,
        texts=texts or {},
        budget=budget,
        column="text",
    )


def kept_of(folder, asked, memory="memory", strengths=STRENGTHS):
    before = look_at_untouched(folder / "model", asked, folder / memory / "untouched.json")
    places = folder / "model", folder / "pack", folder / memory / "xx.json"
    return find_kept(*places, asked, before, strengths, "CALL writes another")


def test_strength_1_stays_where_no_answers_are_lost_and_is_found_once(world, text_file, counted):
    chats = [[{"role": "user", "content": said}] for said in ("zozo", "mimi")]
    asked = probe(world, chats, {"news": str(text_file)})
    found = kept_of(world, asked)
    assert found.strength == 1.0
    assert found.asked == 250
    assert found.pack == identity(world / "pack")
    assert found.sentences[0].startswith("merge strength 1: right answers fall by 0.0 points at 1")
    rows = {row.what: row for row in found.measures if not row.unit.startswith("tokens")}
    assert {"news", "answers to 2 held-out dialogues that loop"} < rows.keys()
    assert rows["news"].before != rows["news"].after
    assert [sample.opening for sample in found.samples if sample.kind == comparison.OPENINGS] == [
        "zozo gaga zozo mimi"
    ] * looking.OPENINGS
    assert counted.tokens > 0
    counted.tokens = 0
    assert kept_of(world, asked) == found
    assert counted.tokens == 0, "nothing is asked again"
    fixed = kept_of(world, asked, strengths=[0.5])
    assert fixed.strength == 0.5
    assert fixed.sentences[0][:33] == "merge strength 0.5: as asked for;"


def test_answers_are_those_of_each_prompt_alone(world):
    module = module_of(world / "theirs")
    module.generation_config.eos_token_id = [0, 7]
    decoder = Decoder(module, world / "model/tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(world / "theirs")
    prompts = ["the wind is new", "the wind blows", "the wind is new and the harbour"]
    rows = tokenizer(prompts)["input_ids"]
    plain = AutoModelForCausalLM.from_pretrained(world / "theirs").eval()
    for row, said in zip(rows, decoder.go_on(rows), strict=True):
        ids = list(row)
        while len(ids) < len(row) + ANSWER_TOKENS:
            with torch.inference_mode():
                ids.append(int(plain(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in (0, 7):
                break
        assert said == tokenizer.decode(ids[len(row) :], skip_special_tokens=True)


def test_rows_alone_of_a_decoder_without_a_template(tmp_path, text_file):
    folder = made(tmp_path, text_file, update=0, template=None)
    found = kept_of(folder, probe(folder))
    assert found.strength == 1.0
    assert found.asked == 250
    assert not any("strength" in line for line in found.sentences), "there is nothing to choose"
    for source, (before, after) in {
        "en": ("Question: ", "\nAnswer:"),
        "de": ("Frage: ", "\nAntwort:"),
    }.items():
        asked = probe(folder, source=source)
        tokenizer = AutoTokenizer.from_pretrained(folder / "theirs")
        words = tokenizer.decode(rows_of(asked, tokenizer)[-1])
        assert words == f"{before}{asked.prompts[-1].text}{after}"


@pytest.fixture
def counted(monkeypatch):
    """Counts the tokens that pass through Llamas of transformers, filled places among them."""
    from transformers import LlamaModel

    forward = LlamaModel.forward

    class Counted:
        tokens = 0

    def counting(self, input_ids=None, **more):
        Counted.tokens += input_ids.numel()
        return forward(self, input_ids=input_ids, **more)

    monkeypatch.setattr(LlamaModel, "forward", counting)
    return Counted


@pytest.mark.parametrize(
    "trained, fewest, strength", [(700_000, 250, 0.5), (350_000, 100, 0.5), (150_000, 40, 1.0)]
)
def test_all_looks_pass_a_tenth_of_what_training_costs(
    world, counted, monkeypatch, trained, fewest, strength
):
    monkeypatch.setitem(looking.MINUTE, "cpu", 0)
    monkeypatch.setattr(comparison, "MAX_POINTS_LOST", -1.0)  # so that all strengths are tried
    (world / "news.txt").write_text("The wind sees the boat.\n\n" * 2_000)
    budget = budget_of(trained, read_base(str(world / "theirs")), "cpu", texts=1)
    chats = [[{"role": "user", "content": f"zozo {number}"}] for number in range(5)]
    probed = probe(world, chats, {"news": str(world / "news.txt")}, budget)
    found = kept_of(world, probed, memory=f"counted-{trained}")
    most = SHARE * FORWARD_PASSES * trained
    assert most / 4 < counted.tokens <= most
    assert fewest <= found.asked < 2.5 * fewest
    assert found.strength == strength
    if strength == 1:
        few = f"merge strength 1: {found.asked} questions are too few to take less; CALL writes"
        assert found.worse[0] == f"{few} another."


def test_of_few_questions_none_is_asked_and_it_is_said(world, counted, monkeypatch):
    monkeypatch.setitem(looking.MINUTE, "cpu", 0)
    budget = budget_of(20_000, read_base(str(world / "theirs")), "cpu", texts=1)
    found = kept_of(world, probe(world, budget=budget), memory="few")
    assert found.asked == 0
    assert found.strength == 1.0
    assert "no questions were asked, since fewer than 40 fit into a tenth" in found.worse[0]
    assert counted.tokens <= 0.3 * 20_000


def test_a_minute_is_allowed_where_a_tenth_is_less(world, monkeypatch):
    base = read_base(str(world / "theirs"))
    monkeypatch.setitem(looking.MINUTE, "cpu", 2e12)
    weights = 12 * 2 * 16**2 + 330 * 16
    small = budget_of(10_000, base, "cpu", texts=1)
    smaller = budget_of(1000, base, "cpu", texts=1)
    assert small == smaller
    assert small.text_bytes == looking.TEST_BYTES
    assert small.tokens == pytest.approx(2 / 3 / 4 * 2e12 / (2 * weights))


def test_a_model_that_is_shared_is_loaded_once(world):
    with shared_modules():
        assert module_of(world / "theirs") is module_of(world / "model")
    assert module_of(world / "theirs") is not module_of(world / "theirs")
