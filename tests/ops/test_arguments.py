"""Arguments that do not fit together are refused in one line before a kernel reads them.

By the compiled code of the CPU, and by that of CUDA, built for the CPU.
"""

import pytest
import torch
from op_cases import KERNELS as CPU_KERNELS
from op_cases import cases, run
from shim import KERNELS

from ds_minimodel import ops

OTHER_DTYPE = {
    torch.float32: torch.bfloat16,
    torch.int32: torch.int64,
    torch.int64: torch.int32,
}
SERVED = [("dsmm", name) for name in CPU_KERNELS] + [("dsmm_shim", name) for name in KERNELS]


@pytest.fixture(params=SERVED, ids=" ".join)
def served(request):
    """(namespace, operator) that compiled code serves."""
    if request.param[0] == "dsmm_shim":
        request.getfixturevalue("shim_library")
    elif not ops.backend("dropout").startswith("compiled"):
        pytest.skip("kernels not built")
    return request.param


def full_case(name):
    """The inputs of a case with the most tensors, and {name: index} of tensors after the first."""

    def count_tensors(inputs):
        return sum(map(torch.is_tensor, inputs))

    inputs = max(cases(name, torch.float32, 32), key=count_tensors)
    names = [argument.name for argument in getattr(torch.ops.dsmm, name).default._schema.arguments]
    indices = [index for index, value in enumerate(inputs) if index and torch.is_tensor(value)]
    return list(inputs), {names[index]: index for index in indices}


def test_another_device(served):
    namespace, name = served
    inputs, tensors = full_case(name)
    message = "on (another device than|different devices)"
    for index in (0, *tensors.values()) if tensors else ():
        changed = inputs.copy()
        changed[index] = changed[index].to("meta")
        with pytest.raises((RuntimeError, ValueError), match=message):
            run(namespace, name, changed)


def test_another_dtype(served):
    """Weight and bias may have one; all other tensors may not."""
    namespace, name = served
    inputs, tensors = full_case(name)
    for argument, index in tensors.items():
        changed = inputs.copy()
        changed[index] = changed[index].to(OTHER_DTYPE[changed[index].dtype])
        if argument not in ("weight", "bias"):
            with pytest.raises(RuntimeError, match=" must be "):
                run(namespace, name, changed)
            continue
        rounded = inputs.copy()
        rounded[index] = changed[index].float()
        outputs = run(namespace, name, changed)
        for output, expected in zip(outputs, run(namespace, name, rounded), strict=True):
            torch.testing.assert_close(output.float(), expected, rtol=1e-2, atol=1e-2)


def test_another_shape_of_as_many_elements(served):
    namespace, name = served
    inputs, tensors = full_case(name)
    for argument, index in tensors.items():
        changed = inputs.copy()
        changed[index] = changed[index].unsqueeze(0)
        message = f"{argument} has the shape .* where it must be |takes "
        with pytest.raises(RuntimeError, match=message):
            run(namespace, name, changed)


@pytest.mark.parametrize(
    "served", [("dsmm", "dropout"), ("dsmm_shim", "dropout")], indirect=True, ids=" ".join
)
def test_a_rate_of_one_is_refused(served):
    x = torch.randn(3, 8)
    keys = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="p must be at least 0 and below 1"):
        run(*served, (x, 1.0, keys))
