"""A training step on a GPU reads nothing from the host and waits for nothing.

So a CUDA graph can hold it. Shown without a GPU: tensors without memory (device "meta") stand for a
GPU's in forward and backward pass.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops
from tests.small_models import masked_lm, roberta

# Operators whose result, or its shape, the host has to wait for.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal"}

# Functions that make tensors of the host's numbers.
FROM_THE_HOST = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer}


class NothingFromTheHost(TorchFunctionMode):
    """Refuses the functions that copy numbers of the host to the device."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        assert function not in FROM_THE_HOST, f"{function.__name__} copies from the host"
        return function(*arguments, **(options or {}))


class OnTheDeviceAlone(TorchDispatchMode):
    """Refuses operators that wait for the device, and those that touch a tensor of the host."""

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        name = op._schema.name.removeprefix("aten::")
        assert name not in WAITING, f"{name} waits for the device"
        result = op(*arguments, **(options or {}))
        tensors = [value for value in (*arguments, result) if isinstance(value, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        assert devices <= {"meta"}, f"{name}: {devices}"
        return result


def step(model, batch):
    """Forward and backward pass of a micro-batch."""
    with NothingFromTheHost(), OnTheDeviceAlone():
        loss = model(batch).sum() / 7
        loss.backward()
    return loss


def batch_of(*, padded, packed):
    batch = {
        "tokens": torch.zeros(4, 16, dtype=torch.int64),
        "loss_positions": torch.zeros(4, 3, dtype=torch.int64),
        "targets": torch.zeros(4, 3, dtype=torch.int64),
        "sample_keys": torch.zeros(4, dtype=torch.int32),
    }
    if padded or packed:
        batch["lengths"] = torch.zeros(4, dtype=torch.int32)
    if packed:
        batch["token_index"] = torch.zeros(40, dtype=torch.int64)
    return batch


@pytest.mark.parametrize(
    "padded, packed",
    [
        (False, False),
        (True, False),
        (True, True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_step_stays_on_the_device(dtype, padded, packed):
    with torch.device("meta"), ops.meta_stands_for("cuda"):
        body = roberta(3, 64, 2, 128, 32)
        model = masked_lm(body, 50, 2, 3).to(dtype)
        loss = step(model, batch_of(padded=padded, packed=packed))
    assert loss.device.type == "meta"
    assert all(parameter.grad is not None for parameter in model.body.layers.parameters())
