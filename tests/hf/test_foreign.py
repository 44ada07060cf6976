"""What strangers write beside their weights: adapters, settings of generation, templates, names of
tokens.
"""

import os
import shutil
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from ds_minimodel.artifacts.base import keep_vocabulary, module_of, refer
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.comparison import Sample
from ds_minimodel.evaluation.retention import Decoder
from ds_minimodel.hf.source import tokenizer_of
from ds_minimodel.hf.vocabularies import chat_prompt
from ds_minimodel.pipeline.own_replay import write_replay
from ds_minimodel.report.render import to_html, to_markdown
from ds_minimodel.report.tables import samples_table
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from tests.helpers.files import read_json, write_json
from tests.helpers.foreign_models import save_llama
from tests.helpers.refusals import refuses

from .refusing import change, refused

QUESTION = "the boat"


@pytest.fixture(scope="module")
def made(text_file, tmp_path_factory):
    return save_llama(text_file, tmp_path_factory.mktemp("foreign") / "theirs", "$A")


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "theirs")


def test_no_library_asks_a_question_unseen():
    """What stands on standard input is neither an answer to it, nor lost."""
    code = (
        "import os, sys; from ds_minimodel.common.errors import *\n"
        "for read in (input, lambda: os.read(0, 9) or 1 / 0, lambda: os.system('read line') and 1 "
        "/ 0):\n"
        "    try:\n        with one_line('there', 'asks'): read(); print('answered')\n"
        "    except UserError as error: print(error)\n"
        "print(input())"
    )
    done = subprocess.run([sys.executable, "-c", code], input="y\n", capture_output=True, text=True)
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == ["there: asks"] * 3 + [
        "y"
    ], done
    done = subprocess.run(
        f'{sys.executable} -c "{code.rpartition(chr(10))[0]}" <&-', shell=True, capture_output=True
    )
    assert b"answered" not in done.stdout, done
    assert b"Traceback" not in done.stderr, done


def test_an_adapter_is_named(folder, tmp_path):
    (folder / "adapter_config.json").write_text("{}")
    refused(
        folder, tmp_path / "out", "adapter_config.json: an adapter, not a model", "merge_and_unload"
    )
    (folder / "manifest.json").write_text('{"kind": "adaptation"}')
    refused(folder, tmp_path / "out", "an adaptation, not a model")


@pytest.mark.parametrize(
    "name, values, words",
    [
        (
            "generation_config.json",
            {"suppress_tokens": 7},
            "generation_config.json: suppress_tokens: ",
        ),
        (
            "generation_config.json",
            {"x": "\ud800"},
            "generation_config.json: not a readable JSON file",
        ),
        (
            "generation_config.json",
            {"max_new_tokens": "x"},
            "generation_config.json: transformers does not take it",
        ),
        ("tokenizer_config.json", {"x": "\ud800"}, "is not written as tokenizer.json"),
        ("tokenizer_config.json", {"unk_token": "<nowhere>"}, "the tokenizer 331 ids; resize"),
    ],
)
def test_settings_that_are_none(folder, tmp_path, name, values, words):
    (folder / name).exists() or (folder / name).write_text("{}")
    change(folder / name, **values)
    refused(folder, tmp_path / "out", words)


def test_text_that_is_unknown_to_a_tokenizer_without_a_token_for_it(folder, tmp_path):
    content = read_json(folder / "tokenizer.json")
    # This byte begins characters of planes that have no letters.
    content["model"]["vocab"]["of no text"] = content["model"]["vocab"].pop("\xf1")
    write_json(
        folder / "tokenizer.json", content | {"model": {**content["model"], "unk_token": "<no>"}}
    )
    refer(folder, tmp_path / "in")
    with refuses("tokenizer.json: it cannot encode a text .*<no>"):
        open_tokenizer(tmp_path / "in").encode(["\U00050000"])
    write_json(folder / "tokenizer.json", content | {"model": {**content["model"], "dropout": 0.1}})
    refused(folder, tmp_path / "out", "leaves merges out at random")


def vocabulary_of(folder, tmp_path, template=None):
    if template:
        (folder / "chat_template.jinja").write_text(template)
    keep_vocabulary(folder, tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.mark.parametrize(
    "settings",
    [
        {"return_dict_in_generate": True},
        {"stop_strings": ["x"]},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"num_beams": 3},
    ],
)
def test_samples_are_the_likeliest_whatever_the_settings_of_generation(
    folder, made, tmp_path, settings
):
    write_json(folder / "generation_config.json", {"eos_token_id": 0, **settings})
    tokenizer = vocabulary_of(folder, tmp_path)
    rows = [tokenizer_of(tokenizer)(QUESTION)["input_ids"]]
    texts = [Decoder(module_of(model), tokenizer).go_on(rows) for model in (folder, made)]
    assert texts[0] == texts[1]
    assert texts[0][0]


ROLES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ raise_exception('a system message first') }}{% endif "
    "%}" + ROLES
)


@pytest.mark.parametrize(
    "template, before",
    [
        (ROLES, "user: "),
        (SYSTEM, "system: \nuser: "),
        ("{{ tools.x.y }}", None),
        ("{% for %}", None),
    ],
)
def test_a_template_that_takes_no_user_alone(folder, tmp_path, template, before):
    tokenizer = vocabulary_of(folder, tmp_path, template)
    assert (chat_prompt(tokenizer_of(tokenizer), QUESTION) is not None) == (before is not None)
    write_replay(folder, tokenizer, tmp_path / "out", tokens=64)
    first = AutoTokenizer.from_pretrained(folder)((before or "").strip(" "))["input_ids"]
    assert TokenStore(tmp_path / "out", verify=True).read(0, len(first)).tolist() == first


def test_a_page_of_samples_moves_no_cursor():
    table = samples_table(
        "",
        [Sample(kind="", opening="a\x1b[2Jb", before="c\x9b1m\u202ed ß字\u200d\xa0x", after="")],
        "",
    )
    for page in (to_markdown("", [table]), to_html("", [table])):
        assert r"x1b[2Jb" in page
        assert r"u202ed ß字" in page
        assert "\u200d\xa0" in page
        assert not {*page} & {"\x1b", "\x9b", "\u202e"}


def test_what_no_manifest_names_is_not_copied(folder, tmp_path):
    """A link in a stranger's model may lead anywhere."""
    (tmp_path / "secret").write_text("mine")
    refer(folder, tmp_path / "model")
    (tmp_path / "model/tokenizer/link").symlink_to(tmp_path / "secret")
    keep_vocabulary(tmp_path / "model", tmp_path / "out")
    assert "tokenizer.json" in os.listdir(tmp_path / "out")
    assert "link" not in os.listdir(tmp_path / "out")
