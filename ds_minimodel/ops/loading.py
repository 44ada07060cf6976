"""Finds the compiled kernels and puts them in the place of the torch references.

The kernels are optional: without them, or where a build does not load, the references serve, and
`backend` says why. They take float32 and bfloat16; other dtypes go to the references.
"""
import functools
import os
from pathlib import Path

import torch

from .library import NAMESPACE, REFERENCES

COMPILED_DTYPES = (torch.float32, torch.bfloat16)
COMPILED_OPS = ("residual_layer_norm", "residual_layer_norm_backward", "bias_gelu", "bias_gelu_backward",
                "masked_softmax", "masked_softmax_backward", "cross_entropy_", "dropout")
INSTRUCTION_SETS = ("portable", "avx2", "avx512")


def _choose(compiled, reference):
    """The compiled operator for dtypes that it takes, else the reference."""

    def run(first, *rest):
        return (compiled if first.dtype in COMPILED_DTYPES else reference)(first, *rest)

    return run


@functools.cache
def load_cpu_kernels():
    """Load the CPU kernels, once; returns what serves from then on, or why they do not."""
    if os.environ.get("DSMM_OPS") == "reference":
        return "torch (kernels switched off by DSMM_OPS=reference)"
    library = next(Path(__file__).parent.parent.glob("_kernels_cpu*.so"), None)
    if library is None:
        return "torch (kernels not built)"
    namespace = f"{NAMESPACE}_cpu"
    for name in COMPILED_OPS:
        signature = str(getattr(getattr(torch.ops, NAMESPACE), name).default._schema).split("(", 1)[1]
        torch.library.define(f"{namespace}::{name}", "(" + signature)
    try:
        torch.ops.load_library(library)
    except OSError as error:
        return f"torch (kernels do not load: {error})"
    for name in COMPILED_OPS:
        compiled = getattr(getattr(torch.ops, namespace), name).default
        torch.library.impl(f"{NAMESPACE}::{name}", "CPU", _choose(compiled, REFERENCES[name]))
    return f"compiled ({INSTRUCTION_SETS[torch.ops.dsmm_cpu_isa.get()]})"


def backend(op, device="cpu", dtype=torch.float32):
    """What serves an operator, in words: compiled kernels with their instruction set, or torch and why."""
    if op not in REFERENCES:
        raise KeyError(f"no operator {op}; there are {', '.join(sorted(REFERENCES))}")
    if torch.device(device).type != "cpu":
        return "torch (no kernels for this device)"
    serving = load_cpu_kernels()
    if serving.startswith("compiled"):
        if dtype not in COMPILED_DTYPES:
            return f"torch (kernels do not take {dtype})"
        if op not in COMPILED_OPS:
            return f"torch's products around cross_entropy_, {serving}"
    return serving
