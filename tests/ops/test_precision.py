"""Which precision `auto` means."""

import pytest
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.ops import precision
from ds_minimodel.ops.precision import resolve_precision


@pytest.mark.parametrize("has_bf16, expected", [(True, "bf16"), (False, "fp32")])
def test_precision_of_a_cpu(monkeypatch, has_bf16, expected):
    cpu = torch.device("cpu")
    monkeypatch.setattr(precision, "has_bf16_products", lambda: has_bf16)
    assert resolve_precision("auto", cpu) == expected
    assert resolve_precision("bf16", cpu) == "bf16"
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        resolve_precision("fp16", cpu)
