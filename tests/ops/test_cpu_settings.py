"""The library for fp32 products follows the maker of the CPU."""

import pytest
import torch

from ds_minimodel.ops import cpu


@pytest.fixture(autouse=True)
def precision_kept():
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.mark.parametrize("vendor, is_changed", [("GenuineIntel", False), ("AuthenticAMD", True)])
def test_onednn_is_taken_on_amd_alone(monkeypatch, tmp_path, vendor, is_changed):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    cpu.configure_cpu()
    assert (torch.backends.mkldnn.matmul.fp32_precision == "bf16") == is_changed


def test_a_system_without_cpuinfo_keeps_the_default(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "none")
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    cpu.configure_cpu()
    assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
