"""How chat templates of many families end an answer: what of it is learned, and by which token."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from ds_minimodel.artifacts.base import keep_vocabulary
from ds_minimodel.common.files import read_artifact
from ds_minimodel.data.store import StoreManifest
from ds_minimodel.pipeline.dialogues import Ending, _written, ending_of, prepare_chats
from tests.helpers.dialogues import write_dialogues
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.slow

SIZES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
EOS = "<|endoftext|>"
TURNS = "{% for m in messages %}"
IS_USER = "{% if m.role == 'user' %}"
ELSE = "{% else %}"
DONE = "{% endif %}{% endfor %}"
CHATML = TURNS + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TAGS = TURNS + "<|{{ m.role }}|>\n{{ m.content }}"
# Name: (template, what is learned of the answers A1. and A2., the token that ends them)
FAMILIES = {
    "ChatML": (CHATML, "A1.<|im_end|>A2.<|im_end|>", "<|im_end|>"),
    "Llama 2": (
        TURNS
        + IS_USER
        + "<s>[INST] {{ m.content }} [/INST]"
        + ELSE
        + " {{ m.content }} </s>"
        + DONE,
        "A1. </s>A2. </s>",
        "</s>",
    ),
    "Llama 3": (
        TURNS + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}",
        "A1.<|eot_id|>A2.<|eot_id|>",
        "<|eot_id|>",
    ),
    "Gemma": (
        TURNS + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}",
        "A1.<end_of_turn>A2.<end_of_turn>",
        "<end_of_turn>",
    ),
    "Phi 3, where a text ends after the last answer": (
        TAGS + "<|end|>\n{% endfor %}{{ eos_token }}",
        "A1.<|end|>A2.<|end|>",
        "<|end|>",
    ),
    "Zephyr": (TAGS + "</s>\n{% endfor %}", "A1.</s>A2.</s>", "</s>"),
    "Mistral": (
        TURNS + IS_USER + "[INST]{{ m.content }}[/INST]" + ELSE + "{{ m.content }}</s>" + DONE,
        "A1.</s>A2.</s>",
        "</s>",
    ),
    "Qwen 3, which has thoughts in the last answer": (
        CHATML.replace(
            "{{ m.content }}",
            "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
            "{{ m.content }}",
        ),
        "A1.<|im_end|>A2.<|im_end|>",
        "<|im_end|>",
    ),
    "DeepSeek": (
        TURNS + IS_USER + "<｜User｜>{{ m.content }}" + ELSE + "<｜Assistant｜>{{ m.content }}"
        "<｜end▁of▁sentence｜>" + DONE,
        "A1.<｜end▁of▁sentence｜>A2.<｜end▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
    ),
    "Tulu and OLMo": (
        TAGS + "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
        "{% if not loop.last %}\n{% endif %}{% endfor %}",
        f"A1.{EOS}A2.{EOS}",
        EOS,
    ),
    "answers that are marked without their end": (
        CHATML.replace(
            "{{ m.content }}",
            "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% else %}{{ m.content }}{% endif %}",
        ),
        "A1.<|im_end|>A2.<|im_end|>",
        "<|im_end|>",
    ),
    "another end of the last answer": (
        TAGS + "{{ '<|return|>' if loop.last else '<|end|>' }}{% endfor %}",
        "A1.A2.<|return|>",
        "<|return|>",
    ),
    "an end of the last answer alone": (
        TAGS + "\n{% endfor %}{{ eos_token }}",
        f"A1.\nA2.\n{EOS}",
        EOS,
    ),
    "none": (TAGS + "{% endfor %}", f"A1.A2.{EOS}", EOS),
    "none but lines": (
        TURNS + "### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}",
        f"A1.\n\nA2.\n\n{EOS}",
        EOS,
    ),
    "an end in many tokens": (
        CHATML.replace("<|im_end|>", "(over and out)"),
        f"A1.(over and out)\nA2.(over and out)\n{EOS}",
        EOS,
    ),
    "an end that is an ordinary token": (TAGS + "%\n{% endfor %}", f"A1.%\nA2.%\n{EOS}", EOS),
}
MARKS = (
    "<|im_start|> <|im_end|> <s> </s> [INST] [/INST] <|start_header_id|> <|end_header_id|> "
    "<|eot_id|> <start_of_turn> <end_of_turn> <|end|> <|return|> <|user|> <|assistant|> <｜User｜> "
    "<｜Assistant｜> <｜end▁of▁sentence｜> <think> </think>"
).split()


def tokenizer_with(template, *, special=True, eos=EOS):
    """A vocabulary of bytes and of many families' marks, with lines as Gemma has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE({byte: id for id, byte in enumerate(alphabet)}, [])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in MARKS])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    settings = {"eos_token": eos} if eos else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **settings)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_end_of_an_answer_is_learned(name, special):
    """It is found by what the template writes, whatever kind of token it is."""
    template, expected, token = FAMILIES[name]
    tokenizer = tokenizer_with(template, special=special)
    dialogue = [
        {"role": role, "content": f"{role[0].upper()}{number}."}
        for number in (1, 2)
        for role in ("user", "assistant")
    ]
    ending = ending_of(tokenizer, has_system=False)
    ids, learned = _written(tokenizer, ending, dialogue)
    assert tokenizer.decode(ids[learned]) == expected
    assert tokenizer.decode([ending.id]) == token
    text = tokenizer.apply_chat_template(dialogue, tokenize=False, enable_thinking=False)
    assert tokenizer.decode(ids) == text + EOS * ending.is_added


def test_a_template_and_a_tokenizer_without_an_end():
    ending = ending_of(tokenizer_with(FAMILIES["none"][0], eos=None), has_system=False)
    assert ending == Ending("", "", None, "", is_added=True)


@pytest.mark.parametrize(
    "name, eos, ends, said",
    [
        ("ChatML", EOS, ["<|im_end|>"], ""),
        ("none", EOS, [EOS], f"ends no answer, and {EOS} is learned after the last"),
        ("none", None, [], "ends no answer, and none is learned"),
    ],
)
def test_the_store_names_the_ends_that_are_learned(tmp_path, capsys, name, eos, ends, said):
    tokenizer = tokenizer_with(FAMILIES[name][0], special=False, eos=eos)
    tokenizer.save_pretrained(tmp_path / "theirs")
    LlamaConfig(vocab_size=len(tokenizer), **SIZES).save_pretrained(tmp_path / "theirs")
    keep_vocabulary(tmp_path / "theirs", tmp_path / "tokenizer")
    chats = write_dialogues(tmp_path / "chats.jsonl", [("user", "U1."), ("assistant", "A1.")])
    prepare_chats([chats], tmp_path / "tokenizer", tmp_path / "store", 64, 0.0)
    assert (
        tokenizer.convert_ids_to_tokens(read_artifact(tmp_path / "store", StoreManifest).ends)
        == ends
    )
    assert said in capsys.readouterr().err
    for end in ends:
        write_dialogues(chats, [("user", "U1."), ("assistant", f"A1.{end}")])
        with refuses("chats.jsonl:1: a turn says .*; spell it in another way"):
            prepare_chats([chats], tmp_path / "tokenizer", tmp_path / "again", 64, 0.0)
