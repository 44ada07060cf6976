"""The tests of the engine train in this process, as a world of one rank on the CPU."""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for synthetic.py, which the ranks import too
os.environ.setdefault("DS_ACCELERATOR", "cpu")


@pytest.fixture(scope="package")
def world():
    import torch

    from ds_minimodel.training.world import join_ranks

    before = dict(os.environ)
    matmul = torch.backends.mkldnn.matmul.fp32_precision
    # Whenever it reduces at ZeRO 3, DeepSpeed starts a process that counts the CPUs' memories.
    with mock.patch("deepspeed.utils.numa.get_numa_cores", return_value=[]):
        yield join_ranks()
    torch.distributed.destroy_process_group()
    torch.backends.mkldnn.matmul.fp32_precision = matmul
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.fixture
def fp16_on_cpu(monkeypatch):
    """DeepSpeed says that a CPU has no fp16, but it computes it."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(type(get_accelerator()), "is_fp16_supported", lambda self: True)


@pytest.fixture(scope="package")
def uninterrupted(world, tmp_path_factory):
    """uninterrupted(run, what): (weights, losses) of a run that nothing disturbs; each is trained
    once.
    """
    from synthetic import losses, model, train

    done = {}

    def result(run, what="pretrain"):
        if (run, what) not in done:
            folder = tmp_path_factory.mktemp("uninterrupted")
            weights = train(world, folder, run, model(what))
            done[run, what] = (weights, losses(folder))
        return done[run, what]

    return result
