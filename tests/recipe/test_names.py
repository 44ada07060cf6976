"""Names, repetitions and sizes: what is refused when the recipe is read, with the key."""

import pytest

NO_NAMES = ["a/b", "a\\\\b", "..", "", "a\\0", "a\\nb", " a", "a ", "x" * 200, "ä" * 100, "\\u202e"]
NO_NAMES += ["de.tmp", "de.job.json", "de.old-1234"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_cannot_be_a_folder_is_no_name(refusal, name):
    for key, value in (
        ("languages.source", f'"{name}"'),
        ("languages.targets", f'[de, "{name}"]'),
        ("finetune.tasks", f'{{"{name}": {{kind: qa, train: x, test: {{de: y}}}}}}'),
    ):
        assert refusal(f"{key}={value}").startswith(f"{key}=")


def test_names_that_are_good_stay_so(load):
    names = ["zh-Hant", "sr@latin", "x" * 199, "语言", "a b", "v1.2"]
    tasks = ", ".join(f'"{name}": {{kind: qa, train: x, test: {{de: y}}}}' for name in names)
    assert list(load(f"finetune.tasks={{{tasks}}}").finetune.tasks) == names


@pytest.mark.parametrize("workdir", ["''", '"a\\0b"', "x" * 200, "/", '"a\\n"'])
def test_a_workdir_that_cannot_be_made(refusal, workdir):
    assert refusal(f"workdir={workdir}").startswith("workdir=")


@pytest.mark.parametrize(
    "override, value",
    [
        ("systems=[minijoint, minijoint]", "'minijoint' is there twice"),
        ("languages.targets=[de, de]", "must all be different languages"),
        ("finetune.tasks={t: {kind: pair, train: x, test: {de: y}, labels: [a, b, a]}}", "'a' is there twice"),
        ("finetune.tasks={t: {kind: pair, train: x, test: {de: y}, columns: {sentence1: a, sentence2: a}}}", "twice"),
    ],
)
def test_lists_without_repetition(refusal, override, value):
    assert value in refusal(override)


@pytest.mark.parametrize(
    "override",
    [
        "model.num_layers=1000000000",
        "tokenizer.vocab_size=2147483648",
        "tokenizer.vocab_size=5",
        "tokenizer.character_coverage=0.5",
        f"seed={'9' * 5000}",
        "data.workers=100000",
        "pretrain.lr=1e400",
        "model={num_layers: 9000, num_heads: 768}",
    ],
)
def test_numbers_beyond_what_can_be_made(refusal, override):
    assert override.partition("=")[0].partition(".")[0] in refusal(override)


def test_a_name_that_chooses_the_keys_is_refused_before_the_keys_it_would_have(refusal):
    for override in ("model.kind=lama", "objective=next-tokens"):
        assert "Input should be" in refusal("model.num_kv_heads=2", override), override


def test_next_tokens_take_a_vocabulary_that_loses_nothing(load, refusal):
    assert (load().tokenizer.kind, load("model.kind=llama", "model.num_kv_heads=2").tokenizer.kind) == (
        "unigram",
        "byte-bpe",
    )
    assert "Input should be 'byte-bpe'" in refusal("model.kind=llama", "tokenizer.kind=unigram")
