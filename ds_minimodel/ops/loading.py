"""Loading of the compiled kernels, which register themselves in the place of the torch references.

The kernels are optional: without them, or where a build does not load, the references serve (for attention two
products around masked_softmax), and `backend` says why. Dtypes that the kernels do not take go to the references too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

# The names carry the version of the schemas, so that a build of older sources is not taken.
# setup.py reads them here.
LIBRARIES = {"cpu": "_kernels_cpu_v4", "cuda": "_kernels_cuda_v4"}
COMPILED_DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.float32, torch.float16, torch.bfloat16)}
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
# What attention in Triton takes: GPUs for which Triton has tensor-core code, and whose products are fast in the dtypes;
# widths of a head, which are padded to 16, 32, 64 or 128.
TRITON_CAPABILITY = (8, 0)
TRITON_DTYPES = (torch.float16, torch.bfloat16)
TRITON_WIDTHS = range(16, 129)

Capability = tuple[int, int]


_serving: dict[str, str] = {}  # not functools.cache, into which torch.compile would trace
_capabilities: dict[torch.device, Capability] = {}
_meta_device: ContextVar[tuple[str, Capability | None]] = ContextVar("meta_device", default=("cpu", None))


@contextmanager
def meta_stands_for(device: str, capability: Capability | None = None) -> Iterator[None]:
    """Serve tensors without memory (device "meta") as those of `device` ("cpu", "cuda") would be, in this context.

    capability: the compute capability of the GPU, (8, 0) for sm_80; by default that of this machine's, if it has one.
    """
    token = _meta_device.set((device, capability))
    try:
        yield
    finally:
        _meta_device.reset(token)


def device_type(device: torch.device) -> str:
    """The type of a device; of "meta" the type that it stands for."""
    return _meta_device.get()[0] if device.type == "meta" else device.type


def load_kernels(device: str) -> str:
    """Load the kernels for "cpu" or "cuda", once; say in words what serves the operators there, and why."""
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
    return f"compiled ({INSTRUCTION_SETS[torch.ops.dsmm_cpu_isa.get()]})" if device == "cpu" else "compiled"


def why_not_triton(device: torch.device, dtype: torch.dtype, width: int | None = None) -> str:
    """Why Triton cannot serve attention with heads of `width` (None: some), in words; empty where it can."""
    planned = _meta_device.get()[1] if device.type == "meta" else None
    if device_type(device) != "cuda" or (planned is None and not torch.cuda.is_available()):
        return "no GPU for Triton"
    capability = planned or _capability(device)
    if capability < TRITON_CAPABILITY:
        return "Triton needs sm_{}{}, this is sm_{}{}".format(*TRITON_CAPABILITY, *capability)
    if dtype not in TRITON_DTYPES:
        return f"Triton takes fp16 and bf16, not {dtype}"
    if width is not None and width not in TRITON_WIDTHS:
        return f"Triton takes heads {TRITON_WIDTHS[0]} to {TRITON_WIDTHS[-1]} wide, not {width}"
    return "" if planned else load_triton()  # GPUs that are planned for have what comes with torch


def _capability(device: torch.device) -> Capability:
    if device not in _capabilities:
        _capabilities[device] = torch.cuda.get_device_capability(device if device.type == "cuda" else None)
    return _capabilities[device]


def load_triton() -> str:
    """Load attention's kernels in Triton, once; say in words why they cannot serve this machine's GPU, or nothing."""
    if "triton" not in _serving:
        _serving["triton"] = _load_triton()
    return _serving["triton"]


def _load_triton() -> str:
    if os.environ.get("DSMM_OPS") == "reference":
        return "Triton switched off by DSMM_OPS=reference"
    try:
        from triton.runtime import driver

        from . import attention_triton  # noqa: F401

        driver.active.get_current_device()  # builds what starts kernels, which takes a C compiler
    except Exception as error:  # a part of it that is missing may raise anything
        return f"Triton does not load: {' '.join(str(error).split())[:200] or type(error).__name__}"
    return ""


def backend(op: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> str:
    """The implementation of an operator, in words: compiled kernels with their instruction set, or torch and why."""
    if op not in OPS:
        raise KeyError(f"no operator {op}; there are {', '.join(OPS)}")
    device = torch.device(device)
    kind = device_type(device)
    if kind not in LIBRARIES:
        return "torch (no kernels for this device)"
    if op.endswith("attention") and kind == "cuda":
        refusal, windowed = why_not_triton(device, dtype), op == "window_attention"
        if not refusal:
            return "Triton" if windowed else "Triton (without dropout and padding torch's flash)"
        if windowed:
            return f"torch (memory-efficient; with dropout products in fp32; {refusal})"
        return f"torch (flash or memory-efficient; with dropout two products around masked_softmax; {refusal})"
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
