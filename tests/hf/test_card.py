"""The model card of an export: what manifests and the run say, and nothing that is not known."""

import json
import re
import shutil

import pytest
import yaml

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_manifest
from ds_minimodel.hf.card import hub_name, model_card
from ds_minimodel.hf.convert import export_hf, import_hf
from ds_minimodel.jobs.layout import WorkdirLayout
from ds_minimodel.models.artifacts import PackArtifact, load_body, load_pack, save_body, save_pack
from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.report.verdict import Verdict
from ds_minimodel.serve.packs import check_pack

from .test_decoders import save_llama

CARD = "---\nlanguage: en\nlicense: cc-by-4.0\ntags: [a]\n---\nlicense: of-the-text\n"


@pytest.fixture(scope="module")
def imported(xlm_r, tmp_path_factory):
    """An XLM-R with a model card of its own, imported."""
    folder = shutil.copytree(xlm_r, tmp_path_factory.mktemp("card") / "xlm-r")
    (folder / "README.md").write_text(CARD)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "FacebookAI/xlm-roberta-base"}))
    import_hf(folder, folder.parent / "in")
    return folder.parent / "in"


@pytest.fixture
def workdir(imported, tmp_path):
    """A workdir with this base: a German pack of MiniPost, with scores of two finetuned tasks and of a text."""
    body, source = load_body(imported / "body"), load_pack(imported / "pack")
    work = tmp_path / "runs/extend"
    folders, system = WorkdirLayout(work), SYSTEMS["minipost"]
    for part in ("body", "pack"):
        shutil.copytree(imported / part, folders.pretrain(system) / part)
    pack = PackArtifact("de", source.tensors, body.space, 300, 0.25)
    save_pack(folders.adapt(system, "de") / "pack", pack, imported / "pack")
    clauses = {"topic": "de, topic: 9.0 accuracy before, 60.5 after", "qa": "de, qa: 35.5 F1 before, 36.0 after"}
    clauses["text"] = "de, text: 2.000 bits a byte before, 1.234 after; en, text: 1.000 before, 1.001 after"
    verdict = Verdict(
        system="minipost", language="de", steps=300, clauses=clauses, worse=[], cost="2 min on this machine"
    )
    others = {"steps": 150}, {"system": "bl_base"}, {"language": "fr"}
    listed = [{**verdict.model_dump(), **other, "cost": "not its own"} for other in others] + [verdict.model_dump()]
    folders.report().mkdir(parents=True)
    (folders.report() / "verdicts.json").write_text(json.dumps(listed))
    for task in ("topic", "qa"):
        folders.finetune(system, task, seed=1).mkdir(parents=True)
    folders.tokens("de").mkdir(parents=True)
    (folders.tokens("de") / "00000.bin").touch()
    write_manifest(folders.tokens("de"), kind="token_store", text=["de.txt.xz"], tokens=1234)
    return work


def card_of(folder):
    _, front, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


def test_of_a_run(workdir, tmp_path):
    export_hf(workdir / "pretrain/bl_base/body", tmp_path / "out", workdir / "adapt/minipost/de/pack")
    card, text = card_of(tmp_path / "out")
    assert {key: card[key] for key in ("language", "license", "base_model", "library_name")} == {
        "language": "de",
        "license": "cc-by-4.0",
        "base_model": "FacebookAI/xlm-roberta-base",
        "library_name": "transformers",
    }
    facts = card["ds_minimodel"]
    assert (facts["system"], facts["steps"], facts["eflops"], facts["layers"]) == ("minipost", 300, 0.25, 3)
    assert "\nde, text: 2.000 bits a byte before, 1.234 after; en, text: 1.000 before, 1.001 after; 2 min on" in text
    assert "topic:" not in text and "qa:" not in text, "those are scores of task models"
    assert "| license of the base | cc-by-4.0 |" in text and "| text | de.txt.xz (1,234 tokens) |" in text
    (code,) = re.findall("```python\n(.*)```", text, re.DOTALL)
    exec(code.replace("FOLDER", str(tmp_path / "out")))

    body = load_body(workdir / "pretrain/bl_base/body")
    names = {name: tensor for name, tensor in body.tensors.items() if not name.startswith("heads.")}
    task = {"name": "qa", "kind": "qa", "labels": None}
    own = {f"body.{name}": tensor for name, tensor in names.items()}
    own |= {"out.weight": names["positions"][:2].clone(), "out.bias": names["positions"][0, :2].clone()}
    save_body(tmp_path / "model", type(body)(body.config, (), own, body.space, task), "task-model")
    export_hf(tmp_path / "model", tmp_path / "task", workdir / "adapt/minipost/de/pack")
    card, text = card_of(tmp_path / "task")
    assert "\nde, qa: 35.5 F1 before, 36.0 after; 2 min on this machine.\n" in text


@pytest.mark.parametrize("template", [None, "{% for one in messages %}<|begin|>{{ one.content }}{% endfor %}"])
def test_a_model_that_chats_is_asked_in_its_template(text_file, tmp_path, template):
    theirs = save_llama(text_file, tmp_path / "theirs", "$A")
    settings = json.loads((theirs / "tokenizer_config.json").read_text())
    (theirs / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    import_hf(theirs, tmp_path / "in")
    manifest = json.loads((tmp_path / "in/pack/manifest.json").read_text())
    (tmp_path / "in/pack/manifest.json").write_text(json.dumps({**manifest, "eflops": 0.00011543065657344}))
    export_hf(tmp_path / "in/body", tmp_path / "out")
    card, text = card_of(tmp_path / "out")
    assert card["ds_minimodel"]["eflops"] == 0.000115 and "| eflops | 0.000115 |" in text
    (code,) = re.findall("```python\n(.*)```", text, re.DOTALL)
    assert ("apply_chat_template" in code) == (template is not None)
    exec(code.replace("FOLDER", str(tmp_path / "out")))


def test_names_that_a_hub_would_not_take(workdir, tmp_path):
    """The Hub takes no card whose language is no code of ISO 639, nor one whose base could be no model."""
    space = load_body(workdir / "pretrain/bl_base/body").space
    pack = load_pack(workdir / "adapt/minipost/de/pack", space)
    base = shutil.copytree(workdir / "pretrain/bl_base", tmp_path / "my base")
    manifest = json.loads((base / "body/manifest.json").read_text())
    names = {"imported_from": "my base", "base_model": "/my base"}
    (base / "body/manifest.json").write_text(json.dumps({**manifest, **names}))
    pack = PackArtifact("zh-tw", pack.tensors, space, 300, 0.25)
    save_pack(tmp_path / "adapt/packs/zh-tw", pack, workdir / "pretrain/bl_base/pack")  # no workdir, for all its name
    export_hf(base / "body", tmp_path / "out", tmp_path / "adapt/packs/zh-tw")
    card, text = card_of(tmp_path / "out")
    assert not {"language", "base_model"} & card.keys() and "system" not in card["ds_minimodel"]
    assert "| language | zh-tw |" in text and "| base | my base |" in text


@pytest.mark.parametrize("name", [None, "./xlm-r", "/home/me/xlm-r", "a/b/c", "out/checkpoint-5", "", 7])
def test_what_is_no_name_of_a_model_on_the_hub(name):
    assert hub_name(name) is None and hub_name("FacebookAI/xlm-roberta-base")


def test_no_name_becomes_a_mark(workdir, tmp_path):
    """In the card of a pack that a stranger made: neither HTML, nor a link or a line of its own."""
    pack = shutil.copytree(workdir / "adapt/minipost/de/pack", tmp_path / "pack")
    manifest = json.loads((pack / "manifest.json").read_text())
    hostile = {"imported_from": "<script>alert(1)</script>[x](javascript:y)\n\n# z", "base_model": "a\n---\n<b>"}
    (pack / "manifest.json").write_text(json.dumps({**manifest, "language": "de <b> ![x](http:y)", **hostile}))
    card = model_card(pack, pack, "XLMRobertaForMaskedLM", 3, None)
    _, front, text = card.split("---\n", 2)
    assert not [mark for mark in ("<script", "<b>", "[x](", "\n# z") if mark in text]
    assert "base_model" not in yaml.safe_load(front)
    for key, read in (("language", check_pack), ("license", lambda pack: model_card(pack, pack, "", 3, None))):
        (pack / "manifest.json").write_text(json.dumps({**manifest, **hostile, key: "de\n\n<script>"}))
        with pytest.raises(UserError, match=f"manifest.json: {key}: ") as refusal:
            read(pack)
        assert "\n" not in str(refusal.value)
