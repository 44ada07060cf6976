"""`--deepspeed_config FILE` through the command line: it holds and changes no bit."""

import json

import torch
from safetensors.torch import load_file

from ..docs import ROOT
from ..forks import run
from .conftest import make_world, read_in


def test_messages_are_counted_and_the_body_is_the_same(world, tmp_path):
    """Over the world's recipe and tokens, with nothing trained."""
    recipe = make_world(tmp_path)
    read_in(world.parent, tmp_path)
    files = (ROOT / f"ds_configs/{name}.json" for name in ("count_messages", "profile"))
    both = dict(pair for file in files for pair in json.loads(file.read_text()).items())
    (tmp_path / "ds.json").write_text(json.dumps(both))
    code, out, err = run("pretrain", recipe, "systems=[bl_small]", "--deepspeed_config", tmp_path / "ds.json")
    assert code == 0, err
    assert "all_reduce" in out and "DeepSpeed Flops Profiler" in out and "fwd_microstep" in out
    body = "run/pretrain/bl_small/model/model.safetensors"
    # With settings of DeepSpeed's one rank keeps its ZeRO stage, whose flat buffer ends elsewhere than each parameter.
    # Without AVX512 Adam rounds what does not fill a vector otherwise: seen, 1e-9 in one number of a bias.
    most = 0 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 1e-7
    torch.testing.assert_close(load_file(tmp_path / body), load_file(world.parent / body), rtol=most, atol=most)
    assert json.loads((tmp_path / "run/pretrain/bl_small/run/run.json").read_text())["deepspeed_config"] == both
