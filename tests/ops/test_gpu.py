"""What torch.cuda.get_arch_list() names runs on a GPU or not, and one line says what to install."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ds_minimodel.ops.gpu import CUDA_12_BUILD, check_gpus, device, has_code
from tests.helpers.refusals import refuses

# torch 2.13 for x86 (RELEASE.md of PyTorch)
CUDA_12_6 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CUDA_13_0 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    "architectures, served, refused",
    [
        (
            CUDA_12_6,
            [(5, 2), (6, 1), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0)],
            [(3, 7), (10, 0), (12, 0)],
        ),
        (
            CUDA_13_0,
            [(7, 5), (8, 0), (8, 9), (9, 0), (10, 3), (12, 1), (13, 0)],
            [(6, 1), (7, 0), (7, 2), (11, 0)],
        ),
        (["sm_86"], [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        (["compute_80"], [(8, 0), (9, 0), (12, 0)], [(7, 5)]),
        (["sm_100f"], [(10, 0), (10, 3)], [(9, 0), (12, 0)]),
    ],
)
def test_what_has_code(architectures, served, refused):
    assert [gpu for gpu in served + refused if has_code(architectures, gpu)] == served


@pytest.fixture
def gpus(monkeypatch):
    """gpus(architectures, *capabilities): give the machine such a torch, and such GPUs."""

    def make(architectures, *capabilities):
        found = [
            SimpleNamespace(name=f"GPU {index}", major=major, minor=minor)
            for index, (major, minor) in enumerate(capabilities)
        ]
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
        monkeypatch.setattr(torch.cuda, "get_device_properties", found.__getitem__)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: architectures)

    return make


def test_a_gpu_without_code_is_one_line_that_says_what_to_install(gpus):
    gpus(CUDA_13_0, (9, 0), (7, 0))
    check_gpus(1)
    with refuses() as error:
        check_gpus()
    message = str(error.value)
    beginning = f"GPU 1 is sm_70, and torch {torch.__version__} has code for sm_75, sm_80, "
    assert message.startswith(beginning)
    assert f"uv pip install --torch-backend=cu126 {CUDA_12_BUILD}" in message
    assert "\n" not in message
    gpus(CUDA_12_6, (10, 0))
    with refuses("uninstall torch and install PyPI's"):
        check_gpus()


def test_the_cpu_serves_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for asked, serves in (("cpu", "cpu"), ("", "cuda")):
        monkeypatch.setenv("DS_ACCELERATOR", asked)
        assert device().type == serves


def test_what_the_line_names_is_what_the_setup_takes():
    script = (Path(__file__).parents[2] / "scripts/environment.sh").read_text()
    assert CUDA_12_BUILD == re.search(r"torch=(torch==\S+)", script)[1] + "+cu126"
