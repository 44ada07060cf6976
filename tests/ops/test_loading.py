"""A missing or broken build leaves the references in service, and says so."""

import pytest

from ds_minimodel import ops
from ds_minimodel.ops import loading


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """What a first call says serves the CPU, where the package lies in `tmp_path`."""
    monkeypatch.setattr(loading, "__file__", str(tmp_path / "ops/loading.py"))
    monkeypatch.setattr(loading, "_serving", {})
    return lambda: loading.load_kernels("cpu")


@pytest.mark.parametrize(
    "library, said",
    [
        (None, "torch (kernels not built, or from older sources)"),
        ("_kernels_cpu_v1", "torch (kernels not built, or from older sources)"),
        (loading.LIBRARIES["cpu"], "torch (kernels do not load:"),
    ],
)
def test_what_cannot_serve(serving, tmp_path, library, said):
    if library:
        (tmp_path / f"{library}.abi3.so").write_bytes(b"not a library")
    assert serving().startswith(said)


def test_switched_off(serving, monkeypatch):
    monkeypatch.setenv("DSMM_OPS", "reference")
    assert "DSMM_OPS" in serving()


def test_backend_names_what_serves():
    assert ops.backend("bias_gelu") == loading.load_kernels("cpu")
    assert ops.backend("bias_gelu", device="cuda").startswith("torch")
