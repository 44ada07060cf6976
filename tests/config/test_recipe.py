"""Recipes: what is refused, with which line; YAML 1.2; overrides; the recipes of the repository."""

from typing import get_args

import pytest

from ds_minimodel.config.reading import load_recipe, package_recipes
from ds_minimodel.models import BODIES
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.training.config import Engine
from tests.helpers.commands import answer, answered
from tests.helpers.refusals import refuses

from .conftest import RECIPE


@pytest.mark.parametrize("name", package_recipes())
def test_the_recipes_of_the_package_load_by_name(name):
    recipe = load_recipe(name)
    assert recipe.systems
    assert recipe.finetune.tasks


def test_a_file_goes_before_a_recipe_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper").mkdir()
    assert load_recipe("paper").workdir == "runs/paper"
    (tmp_path / "quickstart").write_text(RECIPE)
    assert load_recipe("quickstart").workdir == "runs/test"


def test_values_merges_and_defaults(load):
    recipe = load()
    assert recipe.data.text == {"en": ["en.txt"], "de": ["de-1.txt", "de-2.txt.xz"]}
    assert recipe.pretrain.lr == 7e-4
    assert recipe.build_mini.model_dump() == {
        **recipe.pretrain.model_dump(),
        "initialisation": "random",
    }
    assert recipe.adapt.lr == 7e-4
    assert recipe.adapt.steps == 100
    assert recipe.adapt.snapshot_every == 50
    assert recipe.optimizer.betas == (0.9, 0.98)
    assert recipe.seed == 1
    task = recipe.finetune.task("topic")
    assert task.max_length == 96
    assert task.epochs == 3
    with pytest.raises(ValueError):
        recipe.seed = 2


@pytest.mark.parametrize(
    "replace, by, message",
    [
        (
            "  lr: 7e-4",
            "  learning_rate: 7e-4",
            "recipe.yaml:11: pretrain.learning_rate: unknown key",
        ),
        (
            "  lr: 7e-4",
            "  warmup_step: 5",
            "recipe.yaml:11: pretrain.warmup_step: unknown key; did you mean",
        ),
        ("workdir: runs/test\n", "", "recipe.yaml: workdir: this key is missing"),
        (
            "train: train.jsonl, ",
            "",
            "recipe.yaml:20: finetune.tasks.topic.train: this key is missing",
        ),
        (
            "steps: 100",
            "steps: many",
            "recipe.yaml:9: pretrain.steps: Input should be a valid integer",
        ),
        (
            "[bl_base, minijoint]",
            "[bl_base, bl_big]",
            "recipe.yaml:2: systems.1: Input should be 'bl_base'",
        ),
        (
            "num_heads: 4",
            "num_heads: 5",
            "recipe.yaml:6: model: num_heads 5 does not divide hidden_size 64",
        ),
        (
            "mini:",
            "engine: {tensor_parallel: 3}\nmini:",
            "engine.tensor_parallel 3 does not divide model.num_heads 4",
        ),
        (
            "seq_length: 64",
            "seq_length: 129",
            "pretrain: sequences of 129 tokens do not fit model.max_positions 128",
        ),
        (
            "kind: classification, ",
            "kind: qa, question_length: 93, ",
            "finetune.tasks.topic: max_length 96",
        ),
        (
            "max_length: 96",
            "max_length: 512",
            "recipe.yaml:20: finetune.tasks.topic: sequences of 512 tokens do not",
        ),
        (
            "targets: [de]",
            "targets: [de, fr]",
            "recipe.yaml:3: languages: data.text has no files for fr",
        ),
        (
            "test: {de: test",
            "test: {ed: test",
            "finetune.tasks.topic.test: data.text has no files for ed",
        ),
        (
            "warmup_steps: 5",
            "warmup_steps: 100",
            "recipe.yaml:8: pretrain: warmup_steps 100 do not fit into steps 100",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place(refusal, replace, by, message):
    assert message in refusal(replace=replace, by=by)


def test_scalars_are_those_of_yaml_1_2(load):
    recipe = load(
        "languages.targets=[no, on]",
        "data.text={en: en.txt, no: yes.txt, on: 1:30}",
        "finetune.tasks={}",
        "seed=010",
        "pretrain.lr=1E-3",
        "optimizer.weight_decay=.5",
        "workdir=2024-02-30",
    )
    assert recipe.languages.all == ["en", "no", "on"]
    assert recipe.data.text == {"en": ["en.txt"], "no": ["yes.txt"], "on": ["1:30"]}
    assert recipe.seed == 10
    assert recipe.workdir == "2024-02-30"
    assert recipe.pretrain.lr == 1e-3
    assert recipe.optimizer.weight_decay == 0.5
    assert load("model={kind: llama, tie_output: True}").model.tie_output is True
    assert load("data.workers=~").data.workers is None


def test_overrides_replace_single_values(load):
    recipe = load(
        "pretrain.lr=1e-2",
        "engine.zero_stage=3",
        "mini.depth=3",
        "mini.depth=4",
        "finetune.tasks.topic.lr=3e-5",
    )
    assert recipe.pretrain.lr == 1e-2
    assert recipe.engine.zero_stage == 3
    assert recipe.mini.depth == 4
    assert recipe.finetune.task("topic").lr == 3e-5
    assert recipe.build_mini.lr == recipe.adapt.lr == 7e-4  # not also the sections of the alias
    assert recipe.pretrain.steps == 100


TASK = "finetune.tasks={t: {kind: %s, test: {de: y}}}"


@pytest.mark.parametrize(
    "overrides, message",
    [
        ("adapt.lr", "'adapt.lr': an override has the form key=value"),
        ("=3", "an override has the form key=value"),
        ("adapt.lr.x=3", "adapt.lr.x=3: lr is a value, not a section"),
        ("adapt.lr=[1", "'[1' is not a valid YAML value"),
        (
            "adapt.steps=3",
            "recipe.yaml:14: adapt: warmup_steps 5 do not fit into steps 3 (with adapt.steps=3)",
        ),
        ("mini.depth=7", "mini.depth=7: mini.depth 7 must be below model.num_layers 6"),
        (
            "engine.tensor_parallel=4; model.ffn_size=254",
            "engine.tensor_parallel 4 does not divide model.ffn_size 254",
        ),
        (
            "finetune.tasks.topic.columns={question: text}",
            "Input should be 'text', 'label' or 'language'",
        ),
        (TASK % "pseudo-likelihood, train: x", "train: unknown key; known keys: kind, test"),
        (
            TASK % "qa, train: x, strid: 3",
            "finetune.tasks.t.strid: unknown key; did you mean stride?",
        ),
        # lists without repetition
        ("systems=[minijoint,minijoint]", "'minijoint' is there twice"),
        (TASK % "sentence-pair, train: x, labels: [a, b, a]", "'a' is there twice"),
        (TASK % "sentence-pair, train: x, columns: {sentence1: a, sentence2: a}", "twice"),
        # numbers beyond what can be made
        ("tokenizer.vocab_size=2147483648", "tokenizer"),
        ("pretrain.lr=1e400", "pretrain"),
        ("model={num_layers:9000,num_heads:768}", "model"),
        # a name that chooses the keys goes before the keys that it would have
        ("model.num_kv_heads=2; model.kind=lama", "Input should be"),
        ("model.kind=llama; tokenizer.kind=unigram", "Input should be 'byte-bpe'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(refusal, overrides, message):
    assert message in refusal(*overrides.split("; "))


@pytest.mark.parametrize("kind", BODIES)
def test_defaults_are_those_of_the_kind_of_body(load, kind):
    sizes = (
        "model: {num_layers: 6, hidden_size: 64, num_heads: 4, ffn_size: 256, max_positions: 128}"
    )
    recipe = load(replace=sizes, by=f"model: {{kind: {kind}}}")
    assert recipe.body_config == BODIES[kind]()


def test_snapshots_start_at_0_and_end_at_the_last_step(load):
    assert load("adapt.snapshot_at=[10, 70, 100, 900]").adapt.snapshots() == [0, 10, 50, 70, 100]
    assert load("adapt.snapshot_every=40").adapt.snapshots() == [0, 40, 80, 100]
    assert load("adapt.snapshot_every=~").adapt.snapshots() == [0, 100]


def test_what_a_recipe_may_name_is_what_is_there():
    """The recipe is read without torch, so these names stand apart from what they name."""
    assert get_args(Engine.model_fields["precision"].annotation) == ("auto", *DTYPES)


@pytest.mark.parametrize(
    "value, message",
    [
        ("!!int abc", "'abc' is no int"),
        ("!!bool maybe", "'maybe' is no bool"),
        ("9" * 5000, "is no int"),
        ("!!python/object:os.system x", "could not determine a constructor for the tag"),
        ("{<<: 3}", "expected a mapping or list of mappings for merging"),
        ('"\\0"', "is no text"),
        ('"\\ud800"', "is no text"),
        ("{a: 1, a: 2}", 'found duplicate key "a"'),
        ("*none", "found undefined alias"),
    ],
)
def test_whatever_yaml_raises_has_its_line(refusal, value, message):
    line = refusal(replace=RECIPE[-4:], by=f"{RECIPE[-4:]}x: {value}\n")
    assert "recipe.yaml:21: not valid YAML (" in line
    assert message in line
    line = refusal(f"adapt.lr={value}")
    assert line.startswith("adapt.lr=")
    assert message in line


def test_aliases_and_brackets_end_soon(refusal):
    """They cost what a file of a recipe's size can cost, and are refused in one line."""
    lists = ["&a [1,1,1,1,1,1,1,1,1]"]
    for inner, outer in zip("abcdef", "bcdefg"):
        lists.append(f"&{outer} [{f'*{inner},' * 9}]")
    bomb = f"[{', '.join(lists)}]"
    for value in ("[" * 1000, "{a: " * 1000, "&a [*a]", bomb):
        for key in ("languages.targets", "data.text", "finetune.tasks"):
            assert refusal(f"{key}={value}").startswith(f"{key}=")


def test_what_is_no_text_of_a_recipes_size(tmp_path):
    path = tmp_path / "recipe.yaml"
    many_keys = b"".join(b"key%d: 1\n" % index for index in range(5_000))
    for content, message in (
        (b"", "recipe.yaml: a recipe is a mapping"),
        (b"- a\n", "recipe.yaml: a recipe is a mapping"),
        (b"a: 1\n" * 40_000, "larger than 131,072 bytes"),
        (RECIPE.encode("utf-16"), "recipe.yaml:1: not UTF-8 text"),
        (RECIPE.encode() + b"\xe9", "recipe.yaml:21: not UTF-8 text"),
        (
            RECIPE.encode() + b"a: b\n\0",
            "recipe.yaml:22: not valid YAML (special characters are not allowed",
        ),
        (RECIPE.encode() + many_keys, "key0: unknown key"),
    ):
        path.write_bytes(content)
        with refuses() as refusal:
            load_recipe(path)
        assert message in str(refusal.value)
    with refuses("cannot read the recipe .Is a directory"):
        load_recipe(tmp_path)


def test_the_packages_recipes_are_listed_and_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [line.split()[0] for line in answered("recipes").splitlines()]
    assert names == [*package_recipes()]
    (tmp_path / "mine.yaml").write_text(answered("recipes repro"))
    assert load_recipe("mine.yaml").model_dump() == load_recipe("repro").model_dump()
    there_are = ", ".join(package_recipes())
    assert answer("recipes reproduction") == (
        2,
        "",
        f"ds-minimodel: reproduction: no such recipe; there are {there_are}\n",
    )
