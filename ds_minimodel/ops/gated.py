"""Gated activations (Shazeer 2020, "GLU Variants Improve Transformer"), by torch's operators; no kernels yet."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

_ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}


def gated(x: Tensor, activation: str) -> Tensor:
    """activation(first half) * second half of the last axis: (..., 2F) -> (..., F).

    activation: gelu (exact), gelu_tanh (its approximation) or silu.
    """
    activated, gate = x.chunk(2, -1)
    return _ACTIVATIONS[activation](activated) * gate
