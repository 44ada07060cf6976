"""Arguments that do not fit together: refused in one line before a kernel reads them, by the
compiled code of the CPU and by that of CUDA (built for the CPU); parameters may have a dtype of
their own.
"""

import pytest
import torch
from op_cases import KERNELS as CPU_KERNELS
from op_cases import cases, run
from shim import KERNELS

from ds_minimodel import ops

OTHER_DTYPE = {torch.float32: torch.bfloat16, torch.int32: torch.int64, torch.int64: torch.int32}


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
    """The inputs of a case with the most tensors, and the names of the arguments after the first
    that are tensors.
    """
    inputs = max(
        cases(name, torch.float32, 32),
        key=lambda inputs: sum(isinstance(i, torch.Tensor) for i in inputs),
    )
    arguments = getattr(torch.ops.dsmm, name).default._schema.arguments
    tensors = {
        a.name: i for i, a in enumerate(arguments) if i and isinstance(inputs[i], torch.Tensor)
    }
    return list(inputs), tensors


def test_another_device(served):
    namespace, name = served
    inputs, tensors = full_case(name)
    for position in (0, *tensors.values()) if tensors else ():
        changed = inputs.copy()
        changed[position] = changed[position].to("meta")
        with pytest.raises(
            (RuntimeError, ValueError), match="on (another device than|different devices)"
        ):
            run(namespace, name, changed)


def test_another_dtype(served):
    namespace, name = served
    inputs, tensors = full_case(name)
    for argument, position in tensors.items():
        changed = inputs.copy()
        changed[position] = changed[position].to(OTHER_DTYPE[changed[position].dtype])
        if argument in ("weight", "bias"):
            rounded = inputs.copy()
            rounded[position] = changed[position].float()
            for output, expected in zip(
                run(namespace, name, changed), run(namespace, name, rounded), strict=True
            ):
                torch.testing.assert_close(output.float(), expected, rtol=1e-2, atol=1e-2)
            continue
        with pytest.raises(RuntimeError, match=" must be "):
            run(namespace, name, changed)


def test_another_shape_of_as_many_elements(served):
    namespace, name = served
    inputs, tensors = full_case(name)
    for argument, position in tensors.items():
        changed = inputs.copy()
        changed[position] = changed[position].unsqueeze(0)
        with pytest.raises(
            RuntimeError, match=f"{argument} has the shape .* where it must be |takes "
        ):
            run(namespace, name, changed)


@pytest.mark.parametrize(
    "served", [("dsmm", "dropout"), ("dsmm_shim", "dropout")], indirect=True, ids=" ".join
)
def test_a_rate_of_one_is_refused(served):
    x = torch.randn(3, 8)
    keys = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="p must be at least 0 and below 1"):
        run(*served, (x, 1.0, keys))
