"""`--deepspeed_config FILE` through the command line: it holds and changes no bit."""

import pytest

from tests.helpers.files import read_json, write_json

from ..docs import ROOT
from ..forks import run
from .conftest import make_world, read_in

pytestmark = pytest.mark.slow


def test_messages_are_counted_and_the_body_is_the_same(world, tmp_path):
    """Over the world's recipe and tokens, with nothing trained."""
    recipe = make_world(tmp_path)
    read_in(world.parent, tmp_path)
    files = (ROOT / f"ds_configs/{name}.json" for name in ("count_messages", "profile"))
    both = dict(pair for file in files for pair in read_json(file).items())
    write_json(tmp_path / "ds.json", both)
    # One rank runs at it where no settings are named.
    same = (
        "systems=[bl_small]",
        "engine.zero_stage=0",
    )
    code, out, err = run(f"pretrain {recipe}", *same, "--deepspeed_config", tmp_path / "ds.json")
    assert code == 0, err
    assert "all_reduce" in out
    assert "DeepSpeed Flops Profiler" in out
    assert "fwd_microstep" in out
    body = "run/pretrain/bl_small/model/model.safetensors"
    assert (tmp_path / body).read_bytes() == (world.parent / body).read_bytes()
    assert read_json(tmp_path / "run/pretrain/bl_small/run/run.json")["deepspeed_config"] == both
