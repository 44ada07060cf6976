"""setup.py on machines that lack what a library needs: it says so in a line each, and goes on."""

import shutil
from pathlib import Path

import pytest

from ..forks import Fork

ROOT = Path(__file__).parents[2]
# A torch for CUDA 13, on this machine's.
BUILD = """
import runpy, sys, torch, torch.utils.cpp_extension as extension
torch.version.cuda, extension.CUDA_HOME = "13.0", "{cuda}"
sys.argv = ["setup.py", "-q", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""
NVCC = """#!/bin/sh
[ "$1" = --list-gpu-arch ] && echo compute_80 && exit
echo "Cuda compilation tools, release 12.4, V12.4.131"
"""


@pytest.fixture
def build(tmp_path):
    """build(mode, script of nvcc or None): (exit code, standard error) of setup.py in a copy.

    There is no compiler.
    """
    tree = tmp_path / "tree"
    cuda = tmp_path / "cuda"
    (tree / "ds_minimodel/ops").mkdir(parents=True)
    shutil.copytree(ROOT / "csrc", tree / "csrc")
    files = "setup.py pyproject.toml README.md ds_minimodel/__init__.py ds_minimodel/ops/loading.py"
    for name in files.split():
        shutil.copy(ROOT / name, tree / name)

    def run(mode, nvcc):
        (cuda / "bin").mkdir(parents=True)
        if nvcc:
            (cuda / "bin/nvcc").write_text(nvcc)
            (cuda / "bin/nvcc").chmod(0o755)
        (tree / "build.py").write_text(BUILD.format(cuda=cuda))
        environment = {"DSMM_BUILD_OPS": mode, "CC": "/no/compiler", "CXX": "/no/compiler"}
        process = Fork("runpy:run_path", "build.py", {}, "__main__", cwd=tree, **environment)
        return process.wait(), process.communicate()[1]

    return run


@pytest.mark.parametrize(
    "nvcc", [None, NVCC, "#!/bin/sh\nexit 1\n"], ids=["no nvcc", "of CUDA 12", "broken"]
)
def test_auto_goes_on_without_what_cannot_be_built(build, nvcc):
    code, errors = build("auto", nvcc)
    assert code == 0, errors
    lines = [line for line in errors.splitlines() if line.startswith("ds_minimodel: ")]
    assert "Traceback" not in errors
    cpu, cuda = sorted(lines)
    assert "_kernels_cpu_v" in cpu
    assert "not built (" in cpu
    assert "_kernels_cuda_v" in cuda
    assert "not built (" in cuda


def test_a_build_that_is_asked_for_has_to_succeed(build):
    assert build("1", None)[0] != 0
