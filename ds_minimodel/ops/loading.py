"""Loading of the compiled kernels, which register themselves in the place of the torch references.

The kernels are optional: without them, or where a build does not load, the references serve (for
attention two products around masked_softmax), and `backend` says why. Dtypes that the kernels do
not take go to the references too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend

# The names carry the version of the schemas, so that a build of older sources is not taken.
# setup.py reads them here.
LIBRARIES = {"cpu": "_kernels_cpu_v5", "cuda": "_kernels_cuda_v5"}
COMPILED_DTYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}
OPS = (
    "residual_norm",
    "bias_gelu",
    "gated",
    "rotary",
    "masked_softmax",
    "attention",
    "window_attention",
    "linear_cross_entropy",
    "dropout",
)
INSTRUCTION_SETS = ("portable", "avx2", "avx512", "avx512_bf16")

# {device: what serves there}; not functools.cache, into which torch.compile would trace.
_serving: dict[str, str] = {}
_meta_device: ContextVar[str] = ContextVar("meta_device", default="cpu")


@contextmanager
def meta_stands_for(device: str) -> Iterator[None]:
    """Serve tensors without memory (device "meta"), in this context, as those of a device.

    Args:
        device: "cpu" or "cuda".
    """
    token = _meta_device.set(device)
    try:
        yield
    finally:
        _meta_device.reset(token)


def device_type(device: torch.device) -> str:
    """Return the type of a device; of "meta" the type that it stands for."""
    return _meta_device.get() if device.type == "meta" else device.type


def load_kernels(device: str) -> str:
    """Load the kernels for "cpu" or "cuda", once.

    Returns:
        What serves the operators there, and why, in words.
    """
    if device not in _serving:
        _serving[device] = _load(device)
    return _serving[device]


def _load(device: str) -> str:
    if os.environ.get("DSMM_OPS") == "reference":
        return "torch (kernels switched off by DSMM_OPS=reference)"
    library = next(Path(__file__).parent.parent.glob(f"{LIBRARIES[device]}*.so"), None)
    if library is None:
        return "torch (kernels not built, or from older sources)"
    try:
        torch.ops.load_library(library)
    except OSError as error:
        return f"torch (kernels do not load: {error})"
    if device != "cpu":
        return "compiled"
    return f"compiled ({INSTRUCTION_SETS[torch.ops.dsmm_cpu_isa.get()]})"


def backend(op: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> str:
    """Say in words what serves an operator: compiled kernels, or torch and why.

    Args:
        op: the operator's name, one of OPS.
        device: where its tensors are.
        dtype: of its tensors.
    """
    device = torch.device(device)
    kind = device_type(device)
    if op.endswith("attention") and kind == "cuda":
        if op == "window_attention":
            causal = f"{_torchs_kernel(device, dtype)} where causal"
            return f"torch ({causal}, else memory-efficient; with dropout products in fp32)"
        return (
            f"torch ({_torchs_kernel(device, dtype)}, with padding memory-efficient; with dropout "
            "two products around masked_softmax)"
        )
    serving = load_kernels(kind)
    if not serving.startswith("compiled"):
        return serving
    if dtype not in COMPILED_DTYPES[kind]:
        return f"torch (kernels do not take {dtype})"
    if device.type == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability(device)
        if not torch.ops.dsmm_cuda.has_code(major, minor):
            return f"torch (kernels built without code for sm_{major}{minor})"
    return serving


def _torchs_kernel(device: torch.device, dtype: torch.dtype) -> str:
    """Say which kernel torch takes for attention without a mask."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return "flash or cuDNN"
    heads = torch.empty(1, 2, 128, 64, device=device, dtype=dtype)
    chosen = torch._fused_sdp_choice(heads, heads, heads, is_causal=True)
    return SDPBackend(chosen).name.removesuffix("_ATTENTION").lower()
