"""README.md and docs/: what they name is there, and as the code has it. tests/pipeline/test_docs.py
runs it.
"""

import ast
import importlib
import json
import re
import textwrap
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as benchmarks
from ds_minimodel.cli.main import parse
from ds_minimodel.common.files import write_json
from ds_minimodel.config.reading import load_recipe, package_recipes, read_yaml
from ds_minimodel.config.schema import PaperRecipe

from .docs import (
    PAGES,
    ROOT,
    blocks,
    commands,
    import_script,
    inline_code,
    name_of,
    prose,
    text_of,
    words,
)

RECIPES = [*sorted((ROOT / "ds_minimodel/recipes").glob("*.yaml")), ROOT / "study/study.yaml"]
COMMANDS = [(name_of(page), command) for page in [*PAGES, *RECIPES] for command in commands(page)]
FRAGMENTS = [(name_of(page), text) for page in PAGES for text in blocks(page, "yaml")]
# What makes a recipe of a part of one.
REST = {
    "workdir": "runs/demo",
    "systems": "[bl_base]",
    "languages": "{source: en, targets: [de]}",
    "data": "{text: {en: en.txt, de: de.txt}}",
}


@pytest.mark.parametrize("page, command", COMMANDS)
def test_commands_are_taken(page, command, monkeypatch):
    """By the real parsers; and where the recipe is one of ours, it takes the overrides."""
    line, ours = words(command)
    monkeypatch.chdir(ROOT)
    if ours is not None:
        options = parse(ours)
        assert callable(options.run)
        if getattr(options, "recipe", "") in (*package_recipes(), "study/study.yaml"):
            load_recipe(options.recipe, options.overrides)
    elif line[:3] == ["python", "-m", "benchmarks"]:
        if line[3:] != ["PART"]:
            benchmarks.parse(line[3:])
    else:
        path = f"{line[2].replace('.', '/')}.py" if line[1] == "-m" else line[1]
        script = (ROOT / path).read_text()
        missing = [
            word
            for word in line[2:]
            if word.startswith("--") and not re.search(f'(?:{word}\\)|"{word}",) ', script)
        ]
        assert not missing, f"{line[1]} knows no {missing}"


def test_commands_are_found():
    """Enough of them, and of each page that has some: the search is not blind."""
    assert len(COMMANDS) > 60
    with_some = {name_of(page) for page in PAGES if "\nds-minimodel " in page.read_text()}
    assert {page for page, _ in COMMANDS} >= with_some


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_sentences_name_is_there(page):
    for code in inline_code(page):
        if re.fullmatch(r"ds-minimodel [a-z-]+", code):
            with pytest.raises(SystemExit) as end:
                parse([code.split()[1], "--help"])
            assert end.value.code == 0
        path = re.match(
            r"(?:scripts|study|tests|benchmarks|ds_configs|csrc|ds_minimodel)/[\w./-]*", code
        )
        if path and path[0] == code and not re.search("[A-Z]{3}", code):
            assert (ROOT / code).exists(), code


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    targets = [
        target for target in re.findall(r"\]\(([^)]+)\)", prose(page)) if "://" not in target
    ]
    for target in targets:
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", there.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
            assert anchor in anchors, target


def texts_of_the_code():
    """Every text in the package's code, with … for what is put into it; texts that stand beside
    each other are one.
    """
    for path in (ROOT / "ds_minimodel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    text = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    code = "\n".join(texts_of_the_code())
    assert len(quoted) > 20
    assert [message for message in quoted if message not in code] == []


def test_shell_scripts_import_what_is_there():
    """No linter sees the Python within them."""
    found = [
        (module, name)
        for script in (ROOT / "scripts").rglob("*.sh")
        for module, names in re.findall(
            r"^from (ds_minimodel[\w.]*) import (.+)$", script.read_text(), re.MULTILINE
        )
        for name in names.split(", ")
    ]
    assert ("ds_minimodel.config.reading", "load_recipe") in found
    assert [pair for pair in found if not hasattr(importlib.import_module(pair[0]), pair[1])] == []


def test_the_pictures_of_the_pages_follow_the_readers_mode():
    for path in [*(ROOT / "docs/pictures").glob("*.svg"), *(ROOT / "study").rglob("*.svg")]:
        text = path.read_text()
        assert ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title") is not None
        assert "prefers-color-scheme: dark" in text
        assert not re.search(r"<script|href=", text)


def test_readme_is_short_and_shows_what_was_measured():
    readme = text_of("README.md")
    assert len(readme.split()) <= 1070  # With 900, readers found 2 to 6 of their ten answers.
    assert len(readme.splitlines()) <= 130
    rows = map(json.loads, text_of("study/fourth/english.jsonl").splitlines())
    runs = {(row["language"], row["arm"]): row for row in rows}
    before = runs["", "untouched"]
    after = runs["de", "answers"]
    peer = runs["de", "PEFT"]
    bits = [f"{row['bits']['de']:.2f}" for row in (after, before, peer)]
    right = [row["right"].count("1") for row in (after, before, peer)]
    flowing = " ".join(readme.split())
    assert f"needs {bits[0]} bits per byte of held-out help ({bits[1]} before)" in flowing
    assert (
        f"{right[0]} of 500 English questions are answered correctly ({right[1]} before)" in flowing
    )
    assert f"{bits[2]} bits, {right[2]} questions" in flowing
    assert (
        text_of("docs/pictures/before_and_after.svg") == import_script("scripts/bars.py").picture()
    )


def test_the_pages_are_short_and_begin_with_their_purpose():
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) > 10
    assert sum(len(text_of(page).split()) for page in pages) <= 10_000
    for page in pages:
        assert text_of(page).splitlines()[1].startswith("This page "), page


def test_readme_names_the_scripts_of_a_fresh_machine():
    readme = text_of("README.md")
    assert "exec bash scripts/test.sh\n" in text_of(".ci/run")
    for script in ("test.sh", "quickstart.sh", "quickstart.sh paper", "quickstart.sh chat"):
        assert f"\nbash scripts/{script} " in readme


BASES = {
    "roberta-base": {"model_type": "roberta", "max_position_embeddings": 514, "vocab_size": 50_265},
    "ModernBERT-base": {"model_type": "modernbert"},
    "SmolLM2-135M-Instruct": dict(
        model_type="llama", vocab_size=49_152, max_position_embeddings=8192
    )
    | dict(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
    ),
}


@pytest.mark.parametrize("page, text", FRAGMENTS)
def test_recipes_load(page, text, tmp_path, monkeypatch):
    """Whole ones as they stand, parts in the place where they belong."""
    monkeypatch.chdir(tmp_path)
    for base, values in BASES.items():
        write_json(tmp_path / base / "config.json", values)
    keys = read_yaml(text)[0].keys()
    if not keys <= PaperRecipe.model_fields.keys():
        text = "finetune:\n  tasks:\n" + textwrap.indent(text, " " * 4)
        keys = {"finetune"}
    rest = "".join(f"{key}: {value}\n" for key, value in REST.items() if key not in keys)
    (tmp_path / "recipe.yaml").write_text(text + rest)
    load_recipe(tmp_path / "recipe.yaml")


def test_the_ablations_of_repro_differ_in_what_they_are_named_for():
    runs = [
        words(command)[1]
        for command in commands("ds_minimodel/recipes/repro.yaml")
        if " run " in command
    ]
    depth, seed = (load_recipe("repro", parse(arguments).overrides) for arguments in runs)
    repro = load_recipe("repro")
    others = {"workdir", "systems"}
    for recipe, section in ((depth, "mini"), (seed, "seed")):
        assert {key for key, value in recipe if value != getattr(repro, key)} - others == {section}


def test_the_keys_of_the_page_are_the_recipes():
    recipe_keys = import_script("scripts/recipe_keys.py")
    page = text_of("docs/recipes.md")
    assert "\nworkdir: " in page
    assert recipe_keys.with_keys(page) == page, "python scripts/recipe_keys.py writes the keys"
