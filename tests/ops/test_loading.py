"""A missing or broken build leaves the references in service, and says so."""
import os
import subprocess
import sys

import pytest

from ds_minimodel import ops
from ds_minimodel.ops import loading

REPORT = """
import sys
from pathlib import Path
from ds_minimodel.ops import loading
loading.__file__ = str(Path(sys.argv[1]) / "ops" / "loading.py")
loading.load_kernels.cache_clear()
print(loading.load_kernels("cpu"))
"""


def report(folder, **environment):
    (folder / "ops").mkdir()
    ended = subprocess.run([sys.executable, "-c", REPORT, str(folder)], capture_output=True, text=True,
                           check=True, env={**os.environ, **environment})
    return ended.stdout.strip()


def test_missing_build(tmp_path):
    assert report(tmp_path) == "torch (kernels not built, or from older sources)"


def test_broken_build(tmp_path):
    (tmp_path / (loading.LIBRARIES["cpu"] + ".abi3.so")).write_bytes(b"not a library")
    assert report(tmp_path).startswith("torch (kernels do not load:")


def test_switched_off(tmp_path):
    assert "DSMM_OPS" in report(tmp_path, DSMM_OPS="reference")


def test_backend_names_what_serves():
    assert ops.backend("bias_gelu") == loading.load_kernels("cpu")
    assert ops.backend("bias_gelu", device="cuda").startswith("torch")
    with pytest.raises(KeyError, match="no operator"):
        ops.backend("gelu")
