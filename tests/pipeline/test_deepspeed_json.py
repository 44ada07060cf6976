"""`--deepspeed_config FILE` through the command line: it holds and changes no bit."""

import json

import pytest

from ..docs import ROOT
from ..forks import run
from .conftest import make_world, read_in

pytestmark = pytest.mark.slow


def test_messages_are_counted_and_the_body_is_the_same(world, tmp_path):
    """Over the world's recipe and tokens, with nothing trained."""
    recipe = make_world(tmp_path)
    read_in(world.parent, tmp_path)
    files = (ROOT / f"ds_configs/{name}.json" for name in ("count_messages", "profile"))
    both = dict(pair for file in files for pair in json.loads(file.read_text()).items())
    (tmp_path / "ds.json").write_text(json.dumps(both))
    same = (
        "systems=[bl_small]",
        "engine.zero_stage=0",
    )  # at which one rank runs where no settings are named
    code, out, err = run("pretrain", recipe, *same, "--deepspeed_config", tmp_path / "ds.json")
    assert code == 0, err
    assert "all_reduce" in out and "DeepSpeed Flops Profiler" in out and "fwd_microstep" in out
    body = "run/pretrain/bl_small/model/model.safetensors"
    assert (tmp_path / body).read_bytes() == (world.parent / body).read_bytes()
    assert (
        json.loads((tmp_path / "run/pretrain/bl_small/run/run.json").read_text())[
            "deepspeed_config"
        ]
        == both
    )
