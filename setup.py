"""Builds the optional compiled kernels; everything else is in pyproject.toml.

DSMM_BUILD_OPS=auto (default): build what this machine can, say so where that is nothing.
DSMM_BUILD_OPS=0: build nothing.   cpu: the CPU kernels only.   1: a failure to build is fatal.
torch must be visible to the build: pip install -e . --no-build-isolation
"""
import os
import re
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
MODE = os.environ.get("DSMM_BUILD_OPS", "auto")
# Stable ABI of torch 2.10, the oldest torch that the kernels load in.
ABI = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]


def say(message):
    print(f"ds_minimodel: {message}", file=sys.stderr)


def cpu_extension():
    from torch.utils.cpp_extension import CppExtension

    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc/cpu").glob("*.cpp"))
    flags = ["-std=c++17", "-O3", "-fno-math-errno", "-Wno-psabi", "-Wno-ignored-attributes",
             "-Wno-maybe-uninitialized"]
    name = re.search(r'CPU_LIBRARY = "(\w+)"', (ROOT / "ds_minimodel/ops/loading.py").read_text())[1]
    return CppExtension(f"ds_minimodel.{name}", sources, py_limited_api=True,
                        extra_compile_args={"cxx": flags + ABI})


def build_arguments():
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

        def run(self):
            try:
                super().run()
            except Exception as error:
                if MODE == "1":
                    raise
                self.extensions = []
                say(f"kernels not built ({error}); torch's own operators will serve")

    return {"ext_modules": [cpu_extension()], "cmdclass": {"build_ext": Build}}


setup(**build_arguments())
