"""Build the optional compiled kernels; everything else is in pyproject.toml.

DSMM_BUILD_OPS=auto (default): build what this machine can, say so where that is nothing.
DSMM_BUILD_OPS=0: build nothing.   cpu: the CPU kernels only.   1: a failure to build is fatal.
torch must be visible to the build: pip install -e . --no-build-isolation
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
MODE = os.environ.get("DSMM_BUILD_OPS", "auto")
# Stable ABI of torch 2.10, the oldest torch that the kernels load in.
FLAGS = ["-std=c++17", "-O3", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
CPU_FLAGS = ["-fno-math-errno", "-Wno-psabi", "-Wno-ignored-attributes", "-Wno-maybe-uninitialized"]
ARCHITECTURES = ("7.0", "8.0", "9.0")


def say(message: str) -> None:
    print(f"ds_minimodel: {message}", file=sys.stderr)


def module(device: str) -> str:
    """Name of a library, as ds_minimodel/ops/loading.py looks for it."""
    loading = (ROOT / "ds_minimodel/ops/loading.py").read_text()
    found = re.search(rf"_kernels_{device}_v\d+", loading)
    assert found
    return "ds_minimodel." + found[0]


def sources(folder: str, *patterns: str) -> list[str]:
    found = (path for pattern in patterns for path in (ROOT / folder).glob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def extensions() -> Iterator[Extension]:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, CppExtension, CUDAExtension

    yield CppExtension(
        module("cpu"), sources("csrc/cpu", "*.cpp"), py_limited_api=True, extra_compile_args={"cxx": FLAGS + CPU_FLAGS}
    )
    # Not torch.cuda.is_available(): kernels may be built on a machine without a GPU.
    if MODE != "cpu" and torch.version.cuda and CUDA_HOME:
        known = subprocess.check_output([f"{CUDA_HOME}/bin/nvcc", "--list-gpu-arch"], text=True).split()
        wanted = [name for name in ARCHITECTURES if "compute_" + name.replace(".", "") in known]
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", ";".join(wanted) + "+PTX")
        yield CUDAExtension(
            module("cuda"),
            sources("csrc/cuda", "*.cpp", "*.cu"),
            py_limited_api=True,
            extra_compile_args={"cxx": [*FLAGS, "-DUSE_CUDA"], "nvcc": FLAGS},
        )


def build_arguments() -> dict:
    if MODE not in ("auto", "0", "1", "cpu"):
        sys.exit(f"DSMM_BUILD_OPS is {MODE!r}; it must be auto, 0, 1 or cpu")
    if MODE == "0":
        return {}
    try:
        from torch.utils.cpp_extension import BuildExtension
    except ImportError:
        if MODE == "1":
            raise
        say("torch not found, no kernels built (use --no-build-isolation); torch's own operators will serve")
        return {}

    class Build(BuildExtension):
        """A build that may fail: the package works without its kernels."""

        def build_extension(self, extension: Extension) -> None:
            try:
                super().build_extension(extension)
            except Exception as error:
                if MODE == "1":
                    raise
                extension.optional = True  # setuptools then does without the file
                say(f"{extension.name} not built ({error}); torch's own operators will serve")

    return {"ext_modules": list(extensions()), "cmdclass": {"build_ext": Build}}


setup(**build_arguments())
