"""Compile all kernels to machine code for GPU architectures, without a GPU and without nvcc.

    python csrc/cuda/compile_device_code.py sm_70 sm_80 sm_90

NVRTC of CUDA 12.9 is the last that knows sm_70: pip install nvidia-cuda-nvrtc-cu12==12.9.86
nvidia-cuda-runtime-cu12==12.9.79. Exits with 3 where these are missing.
"""

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROW_KERNELS = ("norm_forward", "norm_backward", "softmax_forward", "softmax_backward")
# The others: their template arguments after dtype and pack.
COLUMN_KERNELS = {
    "norm_parameter_sums": ("",),
    "gelu_forward": ("",),
    "gelu_backward": (", true", ", false"),
    "cross_entropy": (", 1", ", 4"),
    "dropout_rows": ("",),
}
PACKS = {"float": 4, "dsmm::fp16": 8, "dsmm::bf16": 8}  # elements in 16 bytes


def instances() -> Iterator[str]:
    """Yield every kernel that launch.cu launches, as a name expression."""
    for dtype, pack in PACKS.items():
        shapes = [(1, 0), (pack, 0), *((pack, quarters * 8 // pack) for quarters in (1, 2, 3, 4))]
        for name in ROW_KERNELS:
            yield from (f"dsmm::cuda::{name}<{dtype}, {n}, {packs}>" for n, packs in shapes)
        for name, others in COLUMN_KERNELS.items():
            yield from (f"dsmm::cuda::{name}<{dtype}, {n}{other}>" for n in (1, pack) for other in others)


def package_folder(name: str) -> Path:
    """Folder of an installed package of NVIDIA's; exits with 3 where it is missing."""
    found = importlib.util.find_spec("nvidia") and importlib.util.find_spec(name)
    if not found:
        print(f"{name} is not installed (see {Path(__file__).name})", file=sys.stderr)
        sys.exit(3)
    return Path(next(iter(found.submodule_search_locations or ())))


@dataclass(frozen=True)
class Budget:
    """What a kernel takes on an architecture, and its code for the virtual one."""

    registers: int
    spilt_bytes: int
    shared_bytes: int
    ptx: str


def compile_all(architecture: str) -> dict[str, Budget]:
    """Compile the kernels to machine code; returns the budget of each name expression, or raises with the log."""
    nvrtc = ctypes.CDLL(str(next((package_folder("nvidia.cuda_nvrtc") / "lib").glob("libnvrtc.so.*"))))
    include = package_folder("nvidia.cuda_runtime") / "include"
    headers = sorted(path.name for path in (HERE / "kernels").glob("*.cuh"))
    source = "".join(f'#include "kernels/{name}"\n' for name in headers).encode()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None)
    for name in instances():
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"-I{HERE}", f"-I{include}", "--ptxas-options=-v"]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    if failed:
        raise RuntimeError(f"{architecture}: {log}")
    ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    found = {}
    for name in instances():
        lowered = ctypes.c_char_p()
        nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
        symbol = (lowered.value or b"").decode()
        said = log.split(f"Compiling entry function '{symbol}'")[1].split("Compiling entry function")[0]
        numbers = {
            key: int(match[1]) if (match := re.search(pattern, said)) else 0
            for key, pattern in (
                ("registers", r"Used (\d+) registers"),
                ("spilt_bytes", r"(\d+) bytes spill stores"),
                ("shared_bytes", r"(\d+) bytes smem"),
            )
        }
        found[name] = Budget(**numbers, ptx=ptx.split(f".entry {symbol}(")[1].split(".entry ")[0])
    return found


def _text(size_of: Any, copy: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    copy(program, text)
    return text.value.decode()


def main(architectures: Sequence[str]) -> None:
    """Compile for each architecture and print what came out."""
    for architecture in architectures:
        found = compile_all(architecture).values()
        print(
            f"{architecture}: {len(found)} kernels, at most {max(budget.registers for budget in found)} registers, "
            f"{sum(budget.spilt_bytes for budget in found)} bytes spilt"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or ["sm_70", "sm_75", "sm_80", "sm_90"])
