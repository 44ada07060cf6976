"""Names of folders: what is refused when the recipe is read, with the key."""

import pytest

NO_NAMES = ["a/b", "a\\\\b", "..", "", "a\\0", "a\\nb", " a", "a ", "x" * 200, "ä" * 100, "\\u202e"]
NO_NAMES += ["de.tmp", "de.job.json", "de.old-1234"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_cannot_be_a_folder_is_no_name(refusal, name):
    overrides = {
        "languages.source": f'"{name}"',
        "languages.targets": f'[de, "{name}"]',
        "finetune.tasks": f'{{"{name}": {{kind: qa, train: x, test: {{de: y}}}}}}',
    }
    for key, value in overrides.items():
        assert refusal(f"{key}={value}").startswith(f"{key}=")


def test_names_that_are_good_stay_so(load):
    names = ["zh-Hant", "sr@latin", "x" * 199, "语言", "a b", "v1.2"]
    tasks = ", ".join(f'"{name}": {{kind: qa, train: x, test: {{de: y}}}}' for name in names)
    assert list(load(f"finetune.tasks={{{tasks}}}").finetune.tasks) == names


@pytest.mark.parametrize("workdir", ["''", '"a\\0b"', "x" * 200, "/", '"a\\n"'])
def test_a_workdir_that_cannot_be_made(refusal, workdir):
    assert refusal(f"workdir={workdir}").startswith("workdir=")


def test_next_tokens_take_a_vocabulary_that_loses_nothing(load):
    assert load().tokenizer.kind == "unigram"
    assert load("model.kind=llama", "model.num_kv_heads=2").tokenizer.kind == "byte-bpe"
