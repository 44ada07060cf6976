"""Keys that a job's record has not: a run with another value of each of them makes the same
bits.
"""

import importlib
import json
import shutil

import pytest
from safetensors.torch import load_file

from ds_minimodel.common.config import DECIDES_ROUNDING, Section, decides
from ds_minimodel.common.files import read_json_lines
from ds_minimodel.extend.config import ExtendConfig
from ds_minimodel.pipeline.registry import STEPS
from tests.helpers.files import read_json

from ..forks import done
from .conftest import make_world
from .extension_world import chat_world  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

TOPIC = {"kind": "classification", "train": "topic.en.jsonl", "dev": "topic.en.jsonl"}
TEST = {"aa": "topic.en.jsonl", "xx": "topic.xx.jsonl"}
# Marked keys, and of the recipe what another run has; its files are copies.
OF_ENCODER = {
    "Data.text TextStepConfig.source FinetuneConfig.source EvaluateConfig.source": {
        "languages.source": "aa",
        "data.text": {"aa": "aa.txt", "xx": "xx.txt"},
    },
    "Data.column": {"data.column": "other"},
    "Data.draw": {"data.draw": 10**9},
    "Data.min_words": {"data.min_words": {"xx": 1}},
    "Data.workers": {"data.workers": 2},
    "StepConfig.checkpoint": {"checkpoint": {"every": 3, "keep_last": 1}},
    "Engine.deterministic": {"engine.deterministic": True},
    "Engine.recompute_layers": {"engine.recompute_layers": True},
    "EvaluateConfig.snapshots": {"adapt.snapshot_every": 2},
    "Finetune.seeds": {"finetune.seeds": 1},
    "FinetunedConfig.train FinetunedConfig.dev TaskConfig.test FinetuneConfig.name "
    "EvaluateConfig.name": {"finetune.tasks": {"subject": TOPIC | {"test": TEST}}},
}
OF_DECODER = {
    "Data.chats": {"data.chats": {"xx": "more.jsonl"}},
    "Adapt.strength": {"adapt.strength": 0.5},
}
# Files of pairs count by what they hold: test_outdated.py, tests/extend/test_folder.py.
BY_CONTENT = {"Data.pairs", "Data.test_pairs", "Data.pair_columns"}
DECODER = "systems=[lora] adapt.new_token_penalty=0 adapt.seq_length=64 finetune.tasks={}".split()


def overrides(others):
    return [
        f"{key}={json.dumps(value)}" for values in others.values() for key, value in values.items()
    ]


def bits(workdir):
    """{(file, tensor or step): weights, loss or score}; names are those of the first run."""
    numbers = {}
    for path in (path for path in workdir.rglob("*") if "report" not in path.parts):
        place = (
            str(path.relative_to(workdir)).replace("/aa/", "/en/").replace("/subject/", "/topic/")
        )
        if path.suffix == ".safetensors":
            numbers |= {
                (place, name): tensor.numpy().tobytes() for name, tensor in load_file(path).items()
            }
        elif path.name in ("metrics.jsonl", "scores.json"):
            rows = read_json_lines(path) if path.suffix == ".jsonl" else read_json(path)
            numbers |= {(place, row["step"]): row.get("loss", row.get("score")) for row in rows}
    return numbers


def assert_same(workdir, other, files):
    """That so many files are of both runs, and the same."""
    one = bits(workdir)
    two = bits(other)
    both = one.keys() & two.keys()
    places = {place for place, _ in one} & {place for place, _ in two}
    keys = both | {key for key in one | two if key[0] in places and key[0].endswith("tensors")}
    assert {key: one.get(key) for key in keys} == {key: two.get(key) for key in keys}
    assert len(places) == files


def test_each_marked_key_has_another_value():
    for name in STEPS:
        importlib.import_module(f"ds_minimodel.pipeline.steps.{name.replace('-', '_')}")
    sections = [Section]
    for section in sections:
        sections += section.__subclasses__()
    marked = {
        f"{section.__name__}.{key}"
        for section in sections
        if section is not ExtendConfig  # of a call, which tests/extend/test_folder.py repeats
        for key in section.__annotations__.keys() & section.model_fields
        if decides(section, key)
        not in (None, DECIDES_ROUNDING)  # the latter: test_parity.py, test_tensor_parallel.py
    }
    assert marked - BY_CONTENT == {*" ".join([*OF_ENCODER, *OF_DECODER]).split()}


def test_an_encoder_is_the_same(world, tmp_path):
    recipe = make_world(tmp_path)
    shutil.copy(tmp_path / "en.txt", tmp_path / "aa.txt")
    done(f"run {recipe} systems=[bl_base]", *overrides(OF_ENCODER), cwd=tmp_path)
    assert_same(world.parent / "run", tmp_path / "run", 10)


def test_a_decoder_is_the_same(chat_world, tmp_path):  # noqa: F811
    shutil.copy(chat_world / "chats.jsonl", tmp_path / "more.jsonl")
    first = {"data.chats": {"xx": "chats.jsonl"}}
    for folder, others in ((chat_world, {"": first}), (tmp_path, OF_DECODER)):
        workdir = f"workdir={folder}/marks"
        done(f"run {chat_world}/recipe.yaml {workdir}", *DECODER, *overrides(others), cwd=folder)
    assert_same(chat_world / "marks", tmp_path / "marks", 4)
