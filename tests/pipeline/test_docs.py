"""Every command of README.md and docs/ runs, on small files under the names that the pages use."""

import contextlib
import json
import lzma
import re
import shlex
import shutil

import pytest

from ds_minimodel import api
from ds_minimodel.config.reading import package_recipes
from tests.helpers.commands import answered
from tests.helpers.files import read_json
from tests.helpers.foreign_models import save_llama, save_modernbert
from tests.pipeline.conftest import assert_shared_rows_are_the_bases

from ..docs import PAGES, ROOT, blocks, commands, import_script, name_of, text_of
from ..forks import Fork, run
from ..hf.conftest import roberta, text_file, unigram_folder, xlm_r  # noqa: F401
from .conftest import copy_of, make_world

pytestmark = pytest.mark.slow


def is_on_recipe(command):
    """Whether it reads a recipe that comes with the package, or the study's."""
    recipe = (command.split()[2:3] or [""])[0]
    return command.startswith("ds-minimodel ") and (
        recipe in package_recipes() or recipe.startswith("study/")
    )


ON_RECIPES = dict.fromkeys(
    command
    for page in PAGES
    for command in commands(name_of(page))
    if is_on_recipe(command) and not command.startswith("ds-minimodel run ")
)
# What makes the recipes of the pages small, and gives them a task with questions where they have
# one.
MASKED_LM = {"steps": 4, "batch_size": 8, "seq_length": 32, "warmup_steps": 1, "lr": 2e-3}
SMALL = [
    f"{section}.{key}={value}"
    for section in ("build_mini", "adapt")
    for key, value in MASKED_LM.items()
]
SMALL += [
    "mini={depth: 1, new_layers: 1}",
    *"systems=[minipost] tokenizer.vocab_size=60 data.workers=1".split(),
]
SMALL += "finetune.seeds=1 finetune.epochs=1 finetune.batch_size=8 finetune.max_length=64".split()
SMALL += ["engine.micro_batch_size=8"]
QUESTIONS = (
    "finetune.tasks.qa={kind: qa, question_length: 8, stride: 16, train: data/qa.en.json, "
    "test: {en: data/qa.en.json, de: data/qa.de.json}}"
)


def do(arguments, folder):
    """`ds-minimodel ARGUMENTS` in `folder`: what it prints. In a process of its own where it
    trains.
    """
    if arguments[0] in ("run", "adapt"):
        code, out, err = run(*arguments, cwd=folder)
        assert code == 0, f"{arguments}: {err}"
        return out
    with contextlib.chdir(folder):
        return answered(*arguments)


def run_script(code, folder):
    """What a page's Python prints as a reader runs it: a script in a file."""
    (folder / "script.py").write_text(code)
    process = Fork("runpy:run_path", "script.py", {}, "__main__", cwd=folder)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.fixture
def folder(tmp_path, roberta):  # noqa: F811
    """What a reader has: checkpoints, and text and tasks of two languages (made up)."""
    data = tmp_path / "data"
    data.mkdir()
    make_world(data)
    for path in data.glob("*xx*"):
        path.rename(path.with_name(path.name.replace("xx", "de")))
    for language in ("en", "de"):
        text = (data / f"{language}.txt").read_bytes()
        (data / f"news.{language}.txt").write_bytes(text)
        (data / f"{language}.txt.xz").write_bytes(lzma.compress(text))
        sample = data / f"help/text/{language}.txt"
        sample.parent.mkdir(parents=True, exist_ok=True)
        sample.write_bytes(text)
    turns = [{"role": "user", "content": "the boat"}, {"role": "assistant", "content": "the wind"}]
    (data / "chats.de.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 9)
    shutil.copytree(roberta, tmp_path / "roberta-base")
    return tmp_path


@pytest.mark.long
def test_extending_a_model(folder, monkeypatch):
    """From README's import to another initialisation, each page going on with what the one before
    left.
    """
    done = set()

    def go_through(page):
        for text in blocks(page, "yaml"):
            if text.startswith("# minipost.yaml"):
                (folder / "minipost.yaml").write_text(text)
        for command in commands(page):
            if (
                "ds-minimodel " not in command
                or " extend " in command
                or " fetch-sample " in command
                or " --hostfile " in command
                or command.startswith("mpirun ")
                or is_on_recipe(command)
                or command in done
            ):
                continue
            replaced = command.replace("--ranks 8", "--ranks 1")
            arguments = shlex.split(replaced)[1:]
            if arguments[1] == "minipost.yaml":
                arguments += [*SMALL, *([] if page == "README.md" else [QUESTIONS])]
            else:
                done.add(command)
            do(arguments, folder)

    go_through("README.md")
    go_through("docs/hugging-face.md")
    rows = read_json(folder / "runs/minipost/report/scores.json")
    assert {(row["task"], row["language"], row["step"]) for row in rows} == {
        (task, "de", step) for task in ("topic", "qa") for step in (0, 4)
    }
    assert_shared_rows_are_the_bases(
        folder / "runs/minipost/pretrain/bl_base/model", folder / "runs/minipost", "de"
    )
    code, *_ = blocks("docs/hugging-face.md", "python")
    asks = 'print(model(**tokenizer("a b", return_tensors="pt")).logits.isfinite().all().item())'
    assert run_script(code + asks, folder).endswith("True\n")
    (asks,) = (
        command for command in commands("docs/hugging-face.md") if "ask_questions" in command
    )
    _, _, *arguments = shlex.split(asks)
    monkeypatch.chdir(folder)
    answer = import_script("examples/ask_questions.py").answer(*arguments)
    assert answer in "Der kleine Hund läuft schnell."
    again = ["adapt", "minipost.yaml", "--rebuild", "adapt.initialisation=pieces"]
    do([*again, *SMALL, QUESTIONS], folder)
    manifest = read_json(folder / "runs/minipost/adapt/minipost/de/pack/manifest.json")
    assert manifest["initialisation"] == "pieces"


@pytest.mark.parametrize("model", ["ModernBERT-base", "SmolLM2-135M-Instruct"])
@pytest.mark.long
def test_models_of_today(model, folder, text_file, monkeypatch):  # noqa: F811
    """The tutorial's commands over a model with its tokenizer and few random layers."""
    name = model.partition("-")[0].lower()
    small = [*SMALL, "tokenizer.vocab_size=320"]
    if name == "smollm2":
        save_llama(text_file, folder / model, "$A")
        template = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}"
        (folder / model / "chat_template.jinja").write_text(template)
    else:
        save_modernbert(text_file, folder / model)
        (recipe,) = (
            text
            for text in blocks("docs/tutorial.md", "yaml")
            if text.startswith("# modernbert-de.yaml")
        )
        (folder / "modernbert-de.yaml").write_text(recipe)
    for command in commands("docs/tutorial.md"):
        if name in command.lower():
            arguments = shlex.split(command)[1:]
            options = small if arguments[0] == "run" else []
            if arguments[0] == "extend":
                options = ["--tokens", "5k"]
                arguments = [text for text in arguments if text not in ("--hours", "1", "8")]
            if arguments[0] == "bits":
                options = ["--context-bytes", "60"]  # the model has 64 positions
            if arguments[0] == "plan":
                options = [f"{step}.batch_size=8" for step in ("build_mini", "adapt")]
            do([*arguments, *options], folder)
    if name == "modernbert":
        (code,) = (text for text in blocks("docs/tutorial.md", "python") if "modernbert-de" in text)
        assert run_script(code, folder).strip()
    else:
        (code,) = (text for text in blocks("docs/api.md", "python") if "SmolLM2" in text)
        smaller = {
            "smollm2": "by_api",
            "hours=2": "tokens=5000",
            "strength=0.5):": "60, strength=0.5):",
        }
        for theirs, ours in smaller.items():
            code = code.replace(theirs, ours)
        assert "by_api/pack" not in (printed := run_script(code, folder))
        assert "data/news.en.txt en " in printed
        (peft,) = (text for text in blocks("docs/hugging-face.md", "python") if "peft" in text)
        assert "default" in run_script(f"{peft}\nprint(model.active_adapters)", folder)


def test_commands_on_recipes(world, tmp_path):
    """With the paper's recipe and the study's as they are, and small ones in the place of the
    others.
    """
    (tmp_path / "study").mkdir()
    shutil.copy(ROOT / "study/study.yaml", tmp_path / "study")
    make_world(tmp_path).rename(tmp_path / "quickstart")
    shutil.copy(copy_of(world, tmp_path), tmp_path / "repro")
    for command in ON_RECIPES:
        printed = do(shlex.split(command)[1:], tmp_path)
        assert printed.startswith("# ") == (command.split()[1] in ("flops", "plan", "recipes"))
    assert (tmp_path / "run/tokens/xx/manifest.json").exists()


def test_the_code_on_python(world, tmp_path):
    """All of docs/api.md as one script, on the world in the place of the quickstart."""
    copy = copy_of(world, tmp_path)
    (tmp_path / "runs").mkdir()
    (copy.parent / "run").rename(tmp_path / "runs/quickstart")
    text = copy.read_text().replace(f"{copy.parent}/run", "runs/quickstart")
    (tmp_path / "quickstart").write_text(text)
    code = "\n".join(text for text in blocks("docs/api.md", "python") if "SmolLM2" not in text)
    for theirs, ours in (("/de", "/xx"), ('"de"', '"xx"')):
        code = code.replace(theirs, ours)
    printed = run_script(code, tmp_path)
    for text in (
        "3 True xx 8",
        "\n150 ",
        "minijoint adapt ",
        "\nadapt.steps=many: Input should be a valid integer\n",
    ):
        assert text in printed, text
    assert all(
        re.search(rf"import .*\b{name}\b|`{name}`", text_of("docs/api.md")) for name in api.__all__
    )


def test_no_pages_code_is_left_out():
    assert {name_of(page) for page in PAGES if blocks(name_of(page), "python")} == {
        f"docs/{name}.md" for name in ("api", "hugging-face", "tutorial")
    }
