"""Build the optional compiled kernels; everything else is in pyproject.toml.

DSMM_BUILD_OPS=auto (default): build what this machine can, say in a line what it cannot.
DSMM_BUILD_OPS=0: build nothing.   cpu: the CPU kernels only.   1: a failure to build is fatal.
torch must be visible to the build: pip install -e . --no-build-isolation
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.editable_wheel import _StaticPth, editable_wheel

ROOT = Path(__file__).parent
MODE = os.environ.get("DSMM_BUILD_OPS", "auto")
# Stable ABI of torch 2.10, the oldest torch that the kernels load in.
FLAGS = ["-std=c++17", "-O3", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
CPU_FLAGS = ["-fno-math-errno", "-Wno-psabi", "-Wno-ignored-attributes", "-Wno-maybe-uninitialized"]
# Each serves the newer ones of its generation too; code of the last is kept as PTX for the
# generations after it.
ARCHITECTURES = ("7.0", "7.5", "8.0", "9.0")


class ByPath(editable_wheel):
    """An editable install by a file of paths. setuptools' hook for imports is asked after the
    folder where Python starts, and above a clone that has a folder with the package's name.
    """

    def _select_strategy(self, name: str, *_: object) -> _StaticPth:
        return _StaticPth(self.distribution, name, [ROOT, ROOT / "examples"])


def say(message: str) -> None:
    print(f"ds_minimodel: {message}", file=sys.stderr)


def not_built(name: str, error: Exception) -> None:
    """Go on without a library, saying so in one line; where it has to be built, end with its
    error.
    """
    if MODE == "1":
        raise error
    reason = " ".join(str(error).split())
    say(f"{name} not built ({reason[:300]}); torch's own operators will serve")


def module(device: str) -> str:
    """Name of a library, as ds_minimodel/ops/loading.py looks for it."""
    loading = (ROOT / "ds_minimodel/ops/loading.py").read_text()
    found = re.search(rf"_kernels_{device}_v\d+", loading)
    assert found
    return "ds_minimodel." + found[0]


def sources(folder: str, *patterns: str) -> list[str]:
    found = (path for pattern in patterns for path in (ROOT / folder).glob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def find_cuda() -> None:
    """Name CUDA's folder where torch would guess wrong: above an nvcc in the PATH that is a script
    for another.
    """
    found, usual = shutil.which("nvcc"), Path("/usr/local/cuda")
    beside = found and (Path(found).parents[1] / "include/cuda_runtime.h").exists()
    if not beside and (usual / "bin/nvcc").exists() and not os.environ.get("CUDA_PATH"):
        os.environ.setdefault("CUDA_HOME", str(usual))


def extensions() -> Iterator[Extension]:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, CppExtension, CUDAExtension

    yield CppExtension(
        module("cpu"),
        sources("csrc/cpu", "*.cpp"),
        py_limited_api=True,
        extra_compile_args={"cxx": FLAGS + CPU_FLAGS},
    )
    # Not torch.cuda.is_available(): kernels may be built on a machine without a GPU.
    if MODE == "cpu" or not (torch.version.cuda and CUDA_HOME):
        return
    try:
        known = subprocess.check_output(
            [f"{CUDA_HOME}/bin/nvcc", "--list-gpu-arch"], text=True
        ).split()
    except (OSError, subprocess.CalledProcessError) as error:
        not_built(module("cuda"), error)
        return
    wanted = [name for name in ARCHITECTURES if "compute_" + name.replace(".", "") in known]
    names = os.environ.setdefault("TORCH_CUDA_ARCH_LIST", ";".join(wanted) + "+PTX")
    yield CUDAExtension(
        module("cuda"),
        sources("csrc/cuda", "*.cpp", "*.cu"),
        py_limited_api=True,
        extra_compile_args={
            "cxx": [*FLAGS, "-DUSE_CUDA"],
            "nvcc": [*FLAGS, f"-DDSMM_HAS_PTX={int('PTX' in names)}"],
        },
    )


def build_arguments() -> dict:
    if MODE not in ("auto", "0", "1", "cpu"):
        sys.exit(f"DSMM_BUILD_OPS is {MODE!r}; it must be auto, 0, 1 or cpu")
    commands: dict[str, type] = {"editable_wheel": ByPath}
    if MODE == "0":
        return {"cmdclass": commands}
    find_cuda()
    try:
        from torch.utils.cpp_extension import BuildExtension
    except ImportError:
        if MODE == "1":
            raise
        say(
            "torch not found, no kernels built (use --no-build-isolation); torch's own operators "
            "will serve"
        )
        return {"cmdclass": commands}

    class Build(BuildExtension):
        """A build that may fail: the package works without its kernels."""

        def run(self) -> None:
            # One library after the other, each by a compiler object of its own: one that fails, or
            # whose compiler is not fit for it, leaves the others alone.
            options = {name: getattr(self, name) for name in ("compiler", "inplace")}
            built = []
            for extension in self.__dict__["extensions"]:
                self.__dict__.update(options, extensions=[extension])
                try:
                    super().run()
                    built.append(extension)
                except Exception as error:
                    not_built(extension.name, error)
            self.__dict__["extensions"] = built

    return {"ext_modules": list(extensions()), "cmdclass": commands | {"build_ext": Build}}


setup(**build_arguments())
