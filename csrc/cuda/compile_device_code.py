"""Compile all kernels to machine code for GPU architectures, without a GPU and without nvcc.

    python csrc/cuda/compile_device_code.py sm_70 sm_80 sm_90

NVRTC of CUDA 12.9 is the last that knows sm_70: pip install nvidia-cuda-nvrtc-cu12==12.9.86
nvidia-cuda-runtime-cu12==12.9.79. Exits with 3 where these are missing.
"""

import ctypes
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROW_KERNELS = (
    "norm_forward",
    "norm_backward",
    "gelu_forward",
    "gelu_backward",
    "softmax_forward",
    "softmax_backward",
    "cross_entropy",
    "dropout_rows",
)
SUM_KERNELS = ("norm_parameter_sums", "column_sums")
PACKS = {"float": 4, "dsmm::fp16": 8, "dsmm::bf16": 8}  # elements in 16 bytes


def instances() -> Iterator[str]:
    """Yield every kernel that launch.cu launches, as a name expression."""
    for dtype, pack in PACKS.items():
        yield from (f"dsmm::cuda::{name}<{dtype}, {n}>" for name in ROW_KERNELS for n in (1, pack))
        yield from (f"dsmm::cuda::{name}<{dtype}>" for name in SUM_KERNELS)


def package_folder(name: str) -> Path:
    """Folder of an installed package of NVIDIA's; exits with 3 where it is missing."""
    found = importlib.util.find_spec("nvidia") and importlib.util.find_spec(name)
    if not found:
        print(f"{name} is not installed (see {Path(__file__).name})", file=sys.stderr)
        sys.exit(3)
    return Path(next(iter(found.submodule_search_locations or ())))


def compile_for(nvrtc: ctypes.CDLL, include: Path, architecture: str) -> int:
    """Compile the kernels; returns the size of the machine code in bytes, or raises with the log."""
    headers = sorted(path.name for path in (HERE / "kernels").glob("*.cuh"))
    source = "".join(f'#include "kernels/{name}"\n' for name in headers).encode()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None)
    for name in instances():
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"-I{HERE}", f"-I{include}"]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{architecture}: {log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    return size.value


def main(architectures: Sequence[str]) -> None:
    """Compile for each architecture and print what came out."""
    library = next((package_folder("nvidia.cuda_nvrtc") / "lib").glob("libnvrtc.so.*"))
    include = package_folder("nvidia.cuda_runtime") / "include"
    nvrtc = ctypes.CDLL(str(library))
    for architecture in architectures:
        size = compile_for(nvrtc, include, architecture)
        print(f"{architecture}: {len(list(instances()))} kernels, {size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:] or ["sm_70", "sm_80", "sm_90"])
