"""A language added to somebody's model by one command."""

import math
import os
import re
import shutil
import signal

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from ds_minimodel import api
from ds_minimodel.common.files import lock
from ds_minimodel.config.base import read_base
from ds_minimodel.data.store import TokenStore
from ds_minimodel.extend.call import Call
from ds_minimodel.extend.config import ExtendConfig
from ds_minimodel.extend.recipe import first_values
from tests.helpers.commands import refused
from tests.helpers.files import read_json, write_json
from tests.helpers.foreign_models import make_bert, save_modernbert
from tests.helpers.refusals import refuses

from ..forks import done, start
from ..pipeline.conftest import make_llama_world, stop_when


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A world with a Llama in `theirs`, that knows its English."""
    folder = tmp_path_factory.mktemp("extend")
    make_llama_world(folder)
    # Another language has the words of this line, too.
    line = (folder / "xx.txt").read_text().partition("\n")[0]
    (folder / "known.txt").write_text("".join(f"{line} {number}\n\n" for number in range(150)))
    return folder


def extend(folder, more):
    return f"extend {folder}/theirs {folder}/xx.txt --language xx --out {folder}/out {more}"


def recipe_in(out):
    return yaml.safe_load((out / "recipe.yaml").read_text())


def test_one_command_ends_with_a_model_that_knows_both_languages(texts):
    files = f"--source-text {texts}/en.txt --known-text yy={texts}/known.txt"
    without_length = extend(texts, f"{files} --train embeddings")
    command = f"{without_length} --tokens 100k"
    out = texts / "out"
    metrics = out / "run/adapt/bl_base/xx/run/metrics.jsonl"
    code, err = stop_when(
        start(command), lambda: metrics.exists() and metrics.stat().st_size, signal.SIGTERM
    )
    assert code == 75
    assert "stopped after step" in err
    assert "Traceback" not in err
    err = done(command)
    # The report reads the text again.
    assert "fertility" not in err.partition("adapt bl_base")[0], err
    names = {".lock", "call.json", "recipe.yaml", "run", "test", "model"}
    assert {path.name for path in out.iterdir()} == names
    recipe = recipe_in(out)
    assert recipe["adapt"]["steps"] == 100_000 // (8 * 64)
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    base = AutoTokenizer.from_pretrained(texts / "theirs")
    english = (texts / "en.txt").read_text()[:400]
    added = (texts / "xx.txt").read_text()[:400]
    known = (texts / "known.txt").read_text()[:400]
    assert all(tokenizer(text)["input_ids"] == base(text)["input_ids"] for text in (english, known))
    assert len(tokenizer(added)["input_ids"]) < len(base(added)["input_ids"])
    rows = load_file(out / "run/adapt/bl_base/xx/pack/embeddings.safetensors")["tokens"]
    assert len(rows) == recipe["tokenizer"]["vocab_size"]
    assert model.config.vocab_size == len(base) + len(rows)

    def score():
        (path,) = (out / "run/evaluate/bl_base/xx/bits-per-byte").glob("*/scores.json")
        return read_json(path)[-1]

    last = score()
    assert last["bits_per_byte"] < last["source_pack_bits_per_byte"]
    said = next(line for line in err.splitlines() if line.startswith("BL_BASE, xx: "))
    scores = (
        f"{last['source_pack_bits_per_byte']:.3f} bits per byte before, "
        f"{last['bits_per_byte']:.3f} after (xz compresses it to "
    )
    assert f"xx: {scores}" in said
    assert "; en: " in said
    assert ", with 0.0 % of that text in new tokens" in said
    opening = said.removeprefix("BL_BASE, ").removesuffix(".")
    assert f"{opening}; " in (out / "run/report/report.html").read_text()
    card = (out / "model/README.md").read_text()
    assert f"xx: {scores}" in card
    assert "| text | xx.txt (" in card
    (code,) = re.findall("```python\n(.*)```", card, re.DOTALL)
    exec(code.replace("FOLDER", str(out / "model")))
    page = (out / "run/report/report.md").read_text()
    assert not re.search("(Table|Figure) [0-9]", page), "it is not the paper's"
    titles = "What was asked for|Before and after|Samples: BL_BASE, xx|Vocabulary|Cost"
    assert re.findall("^## (.*)", page, re.MULTILINE) == [
        *titles.split("|"),
        "What to do next",
    ], "a loss of 2 points is no curve"
    assert "| xx, held-out text | bits per byte | " in page
    assert "| right answers to 250 questions (en) | answers | " in page
    assert "| yy, held-out pages of your text | " in page
    continued, questions, _ = page.partition("**Questions answered**")
    assert questions
    assert len(continued.partition("**Texts continued**")[2].splitlines()) == 5 + 7
    assert "adapt bl_base xx" not in done(command), "all is there"
    for other in ("--language zz", "--source de", "--train lora", "--vocab-size 9"):
        option = other.split()[0]
        assert re.search(f"{option}: .*out was begun with", refused(f"{command} {other}"))
    shorter = refused(f"{command} --tokens 30k")
    assert "a training of 99,840 tokens is begun; a shorter" in shorter
    text = (texts / "xx.txt").read_text()
    stand = (texts / "xx.txt").stat()
    (texts / "xx.txt").write_text(text + "more\n")
    # Before anything is changed.
    assert "xx.txt (--text): another file" in refused(f"{command} --tokens 150k")
    (texts / "xx.txt").write_text(text)
    os.utime(texts / "xx.txt", ns=(stand.st_atime_ns, stand.st_mtime_ns))
    (out / "model").rename(texts / "moved")
    (out / "model").symlink_to(texts / "moved")
    begun = (out / "recipe.yaml").read_text()
    (out / "recipe.yaml").write_text(begun.replace("held_out: 0.02", "held_out: 0.001"))
    assert "was begun with held_out 0.02" in refused(command)
    (out / "recipe.yaml").write_text(begun)
    assert "stay as chosen for 99,840 tokens" in done(f"{command} --tokens 150k")
    assert recipe_in(out)["adapt"]["steps"] == 150_000 // (8 * 64)
    longer = load_file(out / "run/adapt/bl_base/xx/pack/embeddings.safetensors")["tokens"]
    table = load_file(out / "model/model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(table[-len(rows) :], longer)
    assert not torch.equal(rows, longer)
    assert not (out / "model").is_symlink()
    # A length that is not given stays.
    assert "tokens a second here" not in done(without_length)
    assert score()["bits_per_byte"] < last["bits_per_byte"]


def test_a_decoder_replays_what_it_writes_itself(texts, tmp_path):
    """Nine new tokens are fewer than pay, so a sample has more tokens. Of the body's training a
    part is kept.
    """
    theirs = shutil.copytree(texts / "theirs", tmp_path / "theirs")
    config = read_json(theirs / "config.json") | {"max_position_embeddings": 512}
    write_json(theirs / "config.json", config)
    out = tmp_path / "out"
    command = f"extend {theirs} {texts}/xx.txt --language xx --out {out} --tokens 30k"
    command += " --vocab-size 9 --strength 0.5"
    err = done(command)
    recipe = recipe_in(out)
    adapt = recipe["adapt"]
    assert recipe["systems"] == ["lora"]
    assert adapt["replay_from"] == "base"
    assert adapt["strength"] == 0.5
    said = re.search(r"xx: 9 new tokens, (.*) bytes per token \(before .*, with \d+ (.*)\)", err)
    assert recipe["tokenizer"]["vocab_size"] == 9
    assert float(said[2]) > 1.5 * float(said[1])
    assert adapt["seq_length"] == pytest.approx(128 * float(said[2]) / float(said[1]), rel=0.01)
    written = TokenStore(out / "run/tokens/self-replay").num_tokens
    assert 1 <= written / (adapt["replay"] * 30_000) < 2
    assert "LoRA, xx: " in err
    assert "en: without --source-text" in err
    card = (out / "model/README.md").read_text()
    assert "Made by training token embeddings and the body (" in card
    assert "mini-model" not in card
    said = "merge strength 0.5: as asked for; another by ds-minimodel export-hf "
    assert f"LoRA, {said}" in err
    assert said in card
    done(f"export-hf {out} {tmp_path}/whole --strength 1")
    done(f"export-hf {out} {tmp_path}/half --strength 0.5")
    half = (tmp_path / "half/model.safetensors").read_bytes()
    whole = (tmp_path / "whole/model.safetensors").read_bytes()
    written = (out / "model/model.safetensors").read_bytes()
    assert half == written != whole
    assert AutoModelForCausalLM.from_pretrained(out / "model").config.tie_word_embeddings
    assert "adapt lora" not in done(command), "all is there"
    said = f"--strength: {out} was begun with 0.5; `ds-minimodel export-hf {out} NEW --strength S`"
    assert said in refused(f"{command} --strength 1")


@pytest.mark.long
def test_all_that_was_learned_is_kept_where_no_answers_are_lost(texts, tmp_path):
    out = tmp_path / "out"
    command = extend(texts, f"--tokens 10k --out {out} --test-text {texts}/en.txt")
    err = done(command)
    assert ": 6 new tokens," in err
    assert ", which pay in trainings of more than 100,000" in err
    page = (
        r"a page of 4,000 bytes is ([\d,]+) tokens to read or write, ([\d,]+) before, ([\d,]+) with"
    )
    after, before, most = (int(count.replace(",", "")) for count in re.search(page, err).groups())
    assert most < after <= before
    assert recipe_in(out)["adapt"].get("strength", 1.0) == 1.0
    (scores,) = (out / "run/evaluate/lora/xx/bits-per-byte").glob("*.job.json")
    assert read_json(scores)["inputs"]["strength"] == 1.0
    assert "LoRA, merge strength 1: " in err
    assert "LoRA, en.txt, of yours: " in err
    assert "export-hf" in (out / "model/README.md").read_text()
    begun = (out / "recipe.yaml").read_text()
    (out / "recipe.yaml").write_text(begun.replace("    bits-per-byte:", "    mine:"))
    said = "finetune.tasks: put bits-per-byte back, by which a decoder is scored"
    assert said in refused(command)
    again = done(f"run {out}/recipe.yaml adapt.lr=1e-3 --rebuild")
    assert "merge strength" not in again, "of another training"


@pytest.mark.long
def test_a_body_that_is_trained_with_masks_is_scored_and_takes_tasks(texts, tmp_path):
    save_modernbert(texts / "en.txt", tmp_path / "theirs")
    out = tmp_path / "out"
    command = f"extend {tmp_path}/theirs {texts}/xx.txt --language xx --out {out} --tokens 20k"
    command += f" --source-text {texts}/en.txt"
    said = refused(f"{command} --test-text {texts}/known.txt")
    assert "--test-text: an encoder is scored on held-out text only" in said
    err = done(command)
    base = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    english = (texts / "en.txt").read_text()[:200]
    added = (texts / "xx.txt").read_text()[:200]
    assert tokenizer(english)["input_ids"] == base(english)["input_ids"]
    assert len(tokenizer(added)["input_ids"]) < len(base(added)["input_ids"])
    (path,) = (out / "run/evaluate/bl_base/xx/pseudo-likelihood").glob("*/scores.json")
    before = read_json(path)[-1]["source_pack_bits_per_hidden_byte"]
    assert f"xx: {before:.3f} bits per byte of hidden words before, " in err
    assert "; en: " in err
    assert "of the FLOPs of training all weights" in err
    model = AutoModelForMaskedLM.from_pretrained(out / "model")
    assert model.config.cls_token_id == tokenizer.cls_token_id
    assert model.config.sep_token_id == tokenizer.sep_token_id
    assert model(**tokenizer(added, return_tensors="pt")).logits.isfinite().all()

    recipe = recipe_in(out)
    topic = {
        "kind": "classification",
        "train": str(texts / "topic.en.jsonl"),
        "epochs": 1,
        "max_length": 48,
    }
    topic["test"] = {language: str(texts / f"topic.{language}.jsonl") for language in ("en", "xx")}
    recipe["finetune"] |= {"seeds": 1, "tasks": recipe["finetune"]["tasks"] | {"topic": topic}}
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    err = done(f"run {out}/recipe.yaml")
    assert "adapt bl_base xx" not in err, err
    assert "xx, topic: " in err
    assert "xx, pseudo-likelihood: " in err

    words = (texts / "xx.txt").read_text().replace("z", "q").replace("g", "j")
    (texts / "yy.txt").write_text(words)
    second = f"extend {out}/model {texts}/yy.txt --language yy --out {tmp_path}/second"
    done(f"{second} --tokens 10k --source-text {texts}/en.txt")
    rows = load_file(out / "model/model.safetensors")
    more = load_file(tmp_path / "second/model/model.safetensors")
    for name, tensor in rows.items():
        assert torch.equal(tensor, more[name][: len(tensor)]), name


def test_mistakes_are_one_line(texts):
    short = f"extend {texts}/theirs {texts}/short.txt --language xx --out {texts}/short"
    (texts / "short.txt").write_text("a boat\n\n" * 20)
    assert "short.txt: none of its documents is among the 2% held out" in refused(short)
    assert not (texts / "short/base").exists(), "nothing was imported"
    (texts / "short.txt").write_text("".join(f"boat {number}\n\n" for number in range(150)))
    assert " tokens of text are less than a step of 1,024; give more" in refused(short)
    few = refused(extend(texts, "--vocab-size 5"))
    assert "--vocab-size 5: Input should be greater than or equal to 6" in few
    call = {"model": texts / "theirs", "text": texts / "xx.txt", "language": "xx"}
    values = {"tokens": -5, "hours": math.nan, "ranks": 1.5, "vocab_size": "many"}
    for name, value in values.items():
        said = f"^--{name.replace('_', '-')} {value}: (Input should be|it is no amount)"
        with refuses(said):
            api.extend(**call, **{name: value})
    with refuses("'keep' is no option; there are model, language, text"):
        api.extend(**call, keep={})
    options = f"--strength 0.5 --train embeddings --tokens 5k --out {texts}/strong"
    assert "only token embeddings train here" in refused(extend(texts, options))
    many = extend(texts, f"--vocab-size 1M --tokens 1k --out {texts}/many")
    assert "xx: the text offers no 1,000,000 new tokens" in refused(many)
    strange = "".join(
        chr(ord(sign) + 0x350) if sign.isalpha() else sign
        for sign in (texts / "xx.txt").read_text()
    )
    (texts / "strange.txt").write_text(strange)
    bert = make_bert(texts / "en.txt", texts / "bert")
    few = f"extend {bert} {texts}/strange.txt --language yy --vocab-size 6 --out {texts}/few"
    assert "of the text stays unknown with 6 new tokens" in refused(few)
    assert not (texts / "few/recipe.yaml").exists()
    said = refused(extend(texts, f"--source xx --out {texts}/other"))
    assert "languages.targets: xx is the source" in said
    assert "no slash" in refused(extend(texts, f"--source e/n --out {texts}/other"))
    said = refused(extend(texts, f"--out {texts}/b\udcff"))
    assert r"b\udcff" in said
    assert "surrogates not allowed in UTF-8; rename it" in said
    assert "was not begun by extend" in refused(extend(texts, f"--out {texts}"))
    with lock(texts / "new/.lock"):
        assert "another run is at work here" in refused(extend(texts, f"--out {texts}/new"))


def test_micro_batches_are_halved_where_memory_ends(texts, tmp_path, monkeypatch):
    tried = []
    said = []
    config = ExtendConfig(
        model=texts / "theirs",
        text=texts / "xx.txt",
        language="xx",
        train="embeddings",
        out=tmp_path,
    )
    call = Call(config, said.append)
    values = first_values(config, read_base(config.model), tokens=1000)
    call.write({**values, "finetune": {}, "engine": {"micro_batch_size": 8}})

    def do_step(step, recipe, **places):
        tried.append((step.name, recipe.engine.micro_batch_size))
        if tried[-1][1] > 2 and step.name == "adapt":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("ds_minimodel.extend.call.do_step", do_step)
    call.run(until="adapt")
    assert [size for name, size in tried if name == "adapt"] == [8, 4, 2]
    assert "with micro-batches of 2" in said[-1]
