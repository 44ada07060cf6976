"""The CUDA sources without a GPU: their arithmetic on the CPU, and real code for each architecture."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from op_cases import NAMES, cases, run

import ds_minimodel.ops  # noqa: F401  (defines the operators)

CSRC = Path(__file__).parents[2] / "csrc"
SHIM = Path(__file__).with_name("cuda_shim.h")
KERNELS = [name for name in NAMES if name not in ("linear_cross_entropy", "attention", "attention_backward")]
# More than the packs of one warp, with packs; without; less than a warp has lanes.
WIDTHS = (272, 33, 7)
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 8e-3, torch.float16: 2e-3}


@pytest.fixture(scope="module")
def shim_library(tmp_path_factory):
    """The CUDA sources built for the CPU, as operators of the namespace dsmm_shim."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    from torch.utils.cpp_extension import include_paths, library_paths

    library = tmp_path_factory.mktemp("shim") / "libshim.so"
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-O1",
            "-w",
            "-fPIC",
            "-shared",
            "-o",
            library,
            "-DDSMM_CPU_SHIM",
            "-DDSMM_LIBRARY=dsmm_shim",
            "-DDSMM_DISPATCH_KEY=CPU",
            "-DTORCH_TARGET_VERSION=0x020a000000000000",
            *(f"-I{path}" for path in include_paths()),
            "-include",
            SHIM,
            "-x",
            "c++",
            CSRC / "cuda/launch.cu",
            CSRC / "cuda/bindings.cpp",
            "-x",
            "none",
            *(f"-L{path}" for path in library_paths()),
            "-ltorch",
            "-ltorch_cpu",
        ],
        check=True,
    )
    for name in KERNELS:
        schema = str(getattr(torch.ops.dsmm, name).default._schema)
        torch.library.define(f"dsmm_shim::{name}", "(" + schema.split("(", 1)[1])
    torch.ops.load_library(library)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_reference(name, dtype, order, shim_library, monkeypatch):
    monkeypatch.setenv("DSMM_SHIM_ORDER", order)
    torch.manual_seed(0)
    for width in WIDTHS if order == "forward" else WIDTHS[1:2]:
        for inputs in cases(name, dtype, width):
            got = run("dsmm_shim", name, inputs)
            expected = run("dsmm_reference", name, inputs, torch.double)
            for output, exact in zip(got, expected, strict=True):
                assert output.shape == exact.shape
                if output.numel():
                    assert (output - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()


@pytest.mark.parametrize("architecture", ["sm_70", "sm_80", "sm_90"])
def test_device_code_compiles(architecture):
    script = CSRC / "cuda/compile_device_code.py"
    ended = subprocess.run([sys.executable, str(script), architecture], capture_output=True, text=True)
    if ended.returncode == 3:
        pytest.skip(ended.stderr.strip())
    assert ended.returncode == 0, ended.stderr
