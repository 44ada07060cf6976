"""The model card of an export: what manifests and the run say, and nothing that is not known."""

import re
import shutil

import pytest
import yaml

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.common.files import write_manifest
from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.evaluation.packs import open_pack
from ds_minimodel.export.card import model_card
from ds_minimodel.export.folder import export_hf
from ds_minimodel.hf.source import hub_name
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.report.verdict import Verdict
from tests.helpers.files import write_json
from tests.helpers.foreign_models import save_llama
from tests.helpers.refusals import refuses
from tests.hf.gguf_files import write_gguf

from .conftest import save_task_model
from .refusing import change

CARD = "---\nlanguage: en\nlicense: cc-by-4.0\ntags: [a]\n---\nlicense: of-the-text\n"


@pytest.fixture(scope="module")
def imported(xlm_r, tmp_path_factory):
    """An XLM-R with a model card of its own, imported."""
    folder = shutil.copytree(xlm_r, tmp_path_factory.mktemp("card") / "xlm-r")
    (folder / "README.md").write_text(CARD)
    change(folder / "config.json", _name_or_path="FacebookAI/xlm-roberta-base")
    refer(folder, folder.parent / "in", "en")
    return folder.parent / "in"


@pytest.fixture
def workdir(imported, tmp_path):
    """A workdir with this base: a German pack of MiniPost, with scores of two finetuned tasks and
    of a text.
    """
    body, source = load_model(imported)
    work = tmp_path / "runs/extend"
    folders = WorkdirLayout(work)
    system = SYSTEMS["minipost"]
    shutil.copytree(imported, folders.model(system))
    pack = body.adaptation("de", source.embeddings, steps=300, eflops=0.25)
    save_adaptation(folders.adapt(system, "de") / "pack", pack, imported / "tokenizer")
    clauses = {
        "topic": "de, topic: 9.0 accuracy before, 60.5 after",
        "qa": "de, qa: 35.5 F1 before, 36.0 after",
    }
    clauses["text"] = (
        "de, text: 2.000 bits per byte before, 1.234 after; en, text: 1.000 before, 1.001 after"
    )
    verdict = Verdict(
        system="minipost",
        language="de",
        steps=300,
        clauses=clauses,
        worse=[],
        cost="2 min on this machine",
    )
    others = {"steps": 150}, {"system": "bl_base"}, {"language": "fr"}
    listed = [{**verdict.model_dump(), **other, "cost": "not its own"} for other in others] + [
        verdict.model_dump()
    ]
    folders.report().mkdir(parents=True)
    write_json(folders.report() / "verdicts.json", listed)
    for task in ("topic", "qa"):
        folders.finetune(system, task, seed=1).mkdir(parents=True)
    folders.tokens("de").mkdir(parents=True)
    (folders.tokens("de") / "00000.bin").touch()
    write_manifest(folders.tokens("de"), kind="token_store", text=["de.txt.xz"], tokens=1234)
    return work


def card_of(folder):
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def test_of_a_run(workdir, tmp_path):
    export_hf(
        workdir / "pretrain/bl_base/model", tmp_path / "out", workdir / "adapt/minipost/de/pack"
    )
    card, text = card_of(tmp_path / "out")
    front = [card[key] for key in ("language", "license", "base_model", "library_name", "tags")]
    assert front == [
        ["en", "de"],
        "cc-by-4.0",
        "FacebookAI/xlm-roberta-base",
        "transformers",
        ["mini-model-adaptation"],
    ]
    facts = card["ds_minimodel"]
    assert facts["system"] == "minipost"
    assert facts["steps"] == 300
    assert facts["eflops"] == 0.25
    assert facts["layers"] == 3
    assert (
        "\nde, text: 2.000 bits per byte before, 1.234 after; en, text: 1.000 before, 1.001 after; "
        "2 min on" in text
    )
    assert "topic:" not in text
    assert "qa:" not in text, "those are scores of task models"
    for row in (
        "| languages | en, de |",
        "| license of the base | cc-by-4.0 |",
        "| text | de.txt.xz (1,234 tokens) |",
        "| license of the text | not stated |",
        "## Limits",
        "- What it has of de is that of the text above.",
    ):
        assert f"\n{row}" in text
    assert "The body has changed" not in text, "of embeddings alone"
    (code,) = re.findall("```python\n(.*)```", text, re.DOTALL)
    exec(code.replace("FOLDER", str(tmp_path / "out")))

    save_task_model(workdir / "pretrain/bl_base/model", "qa", None, tmp_path / "model", name="qa")
    of_text = {"text_license": "cc0-1.0"}
    export_hf(tmp_path / "model", tmp_path / "task", workdir / "adapt/minipost/de/pack", **of_text)
    card, text = card_of(tmp_path / "task")
    assert "| license of the text | cc0-1.0 |" in text
    assert "\nde, qa: 35.5 F1 before, 36.0 after; 2 min on this machine.\n" in text


def test_names_that_a_hub_would_not_take(workdir, tmp_path):
    """The Hub takes no card whose language is no code of ISO 639, nor one whose base could be no
    model.
    """
    base = shutil.copytree(workdir / "pretrain/bl_base/model", tmp_path / "my base")
    change(base / "manifest.json", imported_from="my base", base_model="/my base")
    body, source = load_model(base)
    adaptation = body.adaptation("zh-tw", source.embeddings, steps=300, eflops=0.25)
    # This folder is no workdir, for all its name.
    save_adaptation(tmp_path / "adapt/packs/zh-tw", adaptation, base / "tokenizer")
    export_hf(base, tmp_path / "out", tmp_path / "adapt/packs/zh-tw")
    card, text = card_of(tmp_path / "out")
    assert card["language"] == ["en"]
    assert "base_model" not in card
    assert "system" not in card["ds_minimodel"]
    assert "| languages | en, zh-tw |" in text
    assert "| base | my base |" in text


@pytest.mark.parametrize(
    "name", [None, "./xlm-r", "/home/me/xlm-r", "a/b/c", "out/checkpoint-5", "", 7]
)
def test_what_is_no_name_of_a_model_on_the_hub(name):
    assert hub_name(name) is None
    assert hub_name("FacebookAI/xlm-roberta-base")


def test_no_name_becomes_a_mark(workdir, tmp_path):
    """In the card of what a stranger made: neither HTML, nor a link or a line of its own."""
    base = shutil.copytree(workdir / "pretrain/bl_base/model", tmp_path / "base")
    pack = shutil.copytree(workdir / "adapt/minipost/de/pack", tmp_path / "pack")
    hostile = {
        "imported_from": "<script>alert(1)</script>[x](javascript:y)\n\n# z",
        "base_model": "a\n---\n<b>",
    }
    change(base / "manifest.json", **hostile)
    change(pack / "manifest.json", language="de <b> ![x](http:y)")
    card = model_card(pack, base, "XLMRobertaForMaskedLM", 3, None)
    _, front, text = card.split("---\n", 2)
    assert not [mark for mark in ("<script", "<b>", "[x](", "\n# z") if mark in text]
    assert "base_model" not in yaml.safe_load(front)
    for folder, key, read in (
        (pack, "language", open_pack),
        (base, "license", lambda _: model_card(pack, base, "", 3, None)),
    ):
        former = (folder / "manifest.json").read_text()
        change(folder / "manifest.json", **{key: "de\n\n<script>"})
        with refuses(f"manifest.json: {key}: "):
            read(folder)
        (folder / "manifest.json").write_text(former)


@pytest.mark.parametrize(
    "template", [None, "{% for one in messages %}<|begin|>{{ one.content }}{% endfor %}"]
)
def test_a_model_that_chats_is_asked_in_its_template(text_file, tmp_path, template):
    refer(save_llama(text_file, tmp_path / "theirs", "$A", template=template), tmp_path / "in")
    change(tmp_path / "in/manifest.json", eflops=0.00011543065657344)
    export_hf(tmp_path / "in", tmp_path / "out")
    card, text = card_of(tmp_path / "out")
    assert card["ds_minimodel"]["eflops"] == 0.000115
    assert "| eflops | 0.000115 |" in text
    (code,) = re.findall("```python\n(.*)```", text, re.DOTALL)
    assert ("apply_chat_template" in code) == (template is not None)
    exec(code.replace("FOLDER", str(tmp_path / "out")))


@pytest.mark.parametrize(
    "facts, name",
    [
        ({"general.source.repo_url": "https://huggingface.co/owner/model"}, "owner/model"),
        ({"general.base_model.0.repo_url": "https://huggingface.co/owner/model/"}, "owner/model"),
        ({"general.repo_url": "https://github.com/owner/model"}, None),
    ],
)
def test_a_file_names_what_it_was_made_from(text_file, tmp_path, facts, name):
    theirs = save_llama(text_file, tmp_path / "theirs", "$A")
    refer(write_gguf(theirs, tmp_path / "file.gguf", facts=facts), tmp_path / "in")
    export_hf(tmp_path / "in", tmp_path / "out")
    card, text = card_of(tmp_path / "out")
    assert card.get("base_model") == name
    assert f"| base | {name or 'file'} |" in text
