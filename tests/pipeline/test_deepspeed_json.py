"""`--deepspeed_config FILE` through the command line: it holds and changes no bit."""

import json

from ..docs import ROOT
from ..forks import run
from .conftest import make_world, read_in


def test_messages_are_counted_and_the_body_is_the_same(world, tmp_path):
    """Over the world's recipe and tokens, with nothing trained."""
    recipe = make_world(tmp_path)
    read_in(world.parent, tmp_path)
    both = json.loads((ROOT / "ds_configs/count_messages.json").read_text())
    both |= json.loads((ROOT / "ds_configs/profile.json").read_text())
    (tmp_path / "ds.json").write_text(json.dumps(both))
    code, out, err = run("pretrain", recipe, "systems=[bl_small]", "--deepspeed_config",
                         tmp_path / "ds.json")  # fmt: skip
    assert code == 0, err
    assert "all_reduce" in out and "DeepSpeed Flops Profiler" in out and "fwd_microstep" in out
    body = "run/pretrain/bl_small/model/model.safetensors"
    assert (tmp_path / body).read_bytes() == (world.parent / body).read_bytes()
    record = json.loads((tmp_path / "run/pretrain/bl_small/run/run.json").read_text())
    assert record["deepspeed_config"] == both
