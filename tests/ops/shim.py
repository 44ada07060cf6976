"""The CUDA sources built for the CPU (cuda_shim.h), as operators of the namespace dsmm_shim."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from op_cases import KERNELS as CPU_KERNELS

import ds_minimodel.ops  # noqa: F401  (defines the operators)

CSRC = Path(__file__).parents[2] / "csrc"
SHIM = Path(__file__).with_name("cuda_shim.h")
LIBRARY = "libshim.so"
KERNELS = [name for name in CPU_KERNELS if "attention" not in name]


@pytest.fixture(scope="session")
def shim_library(made_once):
    """Build and load the sources, once for all tests."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    for name in KERNELS:
        schema = str(getattr(torch.ops.dsmm, name).default._schema)
        torch.library.define(f"dsmm_shim::{name}", "(" + schema.split("(", 1)[1])
    torch.ops.load_library(made_once("shim", _build) / LIBRARY)


def _build(folder):
    from torch.utils.cpp_extension import include_paths, library_paths

    options = "-std=c++17 -O1 -w -fPIC -shared -DDSMM_CPU_SHIM -DDSMM_LIBRARY=dsmm_shim".split()
    options += "-DDSMM_DISPATCH_KEY=CPU -DTORCH_TARGET_VERSION=0x020a000000000000".split()
    options += [f"-I{path}" for path in include_paths()]
    options += [f"-L{path}" for path in library_paths()]
    # g++ reads .cu files as C++ behind `-x c++`, and libraries as what they are behind `-x none`.
    sources = ["-x", "c++", CSRC / "cuda/launch.cu", CSRC / "cuda/bindings.cpp", "-x", "none"]
    libraries = ["-ltorch", "-ltorch_cpu"]
    command = ["g++", *options, "-include", SHIM, *sources, *libraries, "-o", folder / LIBRARY]
    subprocess.run(command, check=True)
