"""Compile all kernels to machine code for GPU architectures, without a GPU and without nvcc.

    python csrc/cuda/compile_device_code.py sm_70 sm_80 sm_90

NVRTC of CUDA 12.9 is the last that knows sm_70: pip install nvidia-cuda-nvrtc-cu12==12.9.86
nvidia-cuda-runtime-cu12==12.9.79. Exits with 3 where these are missing.

What bounds the speed of a kernel: the bytes that its warps have under way, over those that the
memory needs (bandwidth times latency); and the time of its instructions, by the pipe that takes
them, over that of a copy of the bytes that it moves (scripts/simulated_gpu has the machine code, of
sm_70).
"""

import ctypes
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    "gated_forward": (", 0", ", 1", ", 2"),
    "gated_backward": (", 0", ", 1", ", 2"),
    "rotary": ("",),
    "cross_entropy": (", 1", ", 4"),
    "dropout_rows": ("",),
}
# Of disassembled code: place, code, operands
INSTRUCTION = r"/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+ )?\s*([A-Z][\w.]*) ?([^;]*);"
PACKS = {"float": 4, "dsmm::fp16": 8, "dsmm::bf16": 8}  # elements in 16 bytes


@dataclass(frozen=True)
class Gpu:
    """What a prediction takes of a GPU; for one processor where it does not say otherwise."""

    name: str
    processors: int
    clock: float  # Hz
    bandwidth: float  # of the whole memory, bytes a second
    latency: float  # of the memory, seconds
    warps: int  # resident at once

    @property
    def bytes_needed(self) -> float:
        """Bytes that have to be under way to keep the memory busy."""
        return self.bandwidth * self.latency / self.processors


# Data sheets; latencies as microbenchmarks of others found them.
GPUS = {
    "sm_70": Gpu("V100", 80, 1.53e9, 0.9e12, 0.5e-6, 64),
    "sm_75": Gpu("T4", 40, 1.59e9, 0.32e12, 0.5e-6, 32),
    "sm_80": Gpu("A100", 108, 1.41e9, 2.0e12, 0.6e-6, 64),
    "sm_90": Gpu("H200", 132, 1.75e9, 4.8e12, 0.8e-6, 64),
}


# The pipes of a quarter of a Volta processor: cycles for the 32 lanes of a warp, and the
# instructions that go there. One is issued a cycle.
PIPES = {
    "special": (8, "MUFU|F2F|I2F|F2I|POPC|FLO"),  # conversions to 16 bits too
    "half": (2, r"H[A-Z]+2"),
    "float": (2, "FFMA|FMUL|FADD|IMAD|IMUL"),
    "integer": (
        2,
        "LOP|SHF|IADD|ISETP|FSETP|FMNMX|SEL|FSEL|PRMT|LEA|IMNMX|PLOP|MOV|VOTE|IABS|FCHK|BFE|SHL|SHR",
    ),
    "memory": (2, "LD|ST|SHFL|ATOM|RED|BAR"),
}


@dataclass(frozen=True)
class Traffic:
    """How a kernel moves the elements of its matrices."""

    reads: int  # of an element, with all that the kernel can be asked for
    writes: int
    ahead: (
        int  # packs that a lane has under way at once; for rows in registers, of each pack of a row
    )
    threads: int = 128  # of a block


TRAFFIC = {
    "norm_forward": Traffic(2, 2, 2),
    "norm_backward": Traffic(2, 2, 2),
    "norm_backward_with_sums": Traffic(2, 2, 2, 256),
    "softmax_forward": Traffic(1, 2, 1),
    "softmax_backward": Traffic(2, 1, 2),
    "norm_parameter_sums": Traffic(2, 0, 8, 256),
    "gelu_forward": Traffic(1, 1, 2, 256),
    "gelu_backward": Traffic(2, 1, 2, 256),
    "gated_forward": Traffic(2, 1, 4, 256),
    "gated_backward": Traffic(3, 2, 3, 256),
    "rotary": Traffic(1, 1, 2, 256),  # what another lane reads too, and the table, come from caches
    "cross_entropy": Traffic(
        2, 1, 4, 384
    ),  # logits of four rows and every processor are beyond the caches
    "dropout_rows": Traffic(1, 1, 1),
}


def instances() -> Iterator[str]:
    """Yield every kernel that launch.cu launches, as a name expression."""
    for dtype, pack in PACKS.items():
        held = [f"{pack}, {quarters * 8 // pack}" for quarters in (1, 2, 3, 4)]
        shapes = {"softmax": ["1, 0", f"{pack}, 0", *held]}
        shapes["norm"] = [*(f"{shape}, false" for shape in ("1, 0", *held)), f"{held[-1]}, true"]
        for name in ROW_KERNELS:
            yield from (
                f"dsmm::cuda::{name}<{dtype}, {shape}>" for shape in shapes[name.partition("_")[0]]
            )
        yield from (f"dsmm::cuda::norm_backward_with_sums<{dtype}, {shape}>" for shape in held)
        for name, others in COLUMN_KERNELS.items():
            yield from (
                f"dsmm::cuda::{name}<{dtype}, {n}{other}>" for n in (1, pack) for other in others
            )


def package_folder(name: str) -> Path:
    """Folder of an installed package of NVIDIA's; exits with 3 where it is missing."""
    found = importlib.util.find_spec("nvidia") and importlib.util.find_spec(name)
    if not found:
        print(f"{name} is not installed (see {Path(__file__).name})", file=sys.stderr)
        sys.exit(3)
    return Path(next(iter(found.submodule_search_locations or ())))


@dataclass(frozen=True)
class Kernel:
    """An instance of a kernel: its name and template arguments."""

    name: str
    dtype: str
    pack: int
    others: tuple[str, ...]

    @staticmethod
    def parse(expression: str) -> "Kernel":
        found = re.fullmatch(r"dsmm::cuda::(\w+)<(.*)>", expression)
        assert found
        dtype, pack, *others = found[2].split(", ")
        return Kernel(found[1], dtype, int(pack), tuple(others))

    @property
    def in_registers(self) -> bool:
        """Whether rows lie in registers."""
        return self.name in (*ROW_KERNELS, "norm_backward_with_sums") and self.others[0] != "0"

    @property
    def ahead(self) -> int:
        """Packs that a lane has under way at once; 0 for the slow ways, of rows that are wide, odd
        or few.
        """
        one_row = self.name == "cross_entropy" and self.others == ("1",)
        if self.pack == 1 or one_row or (self.name in ROW_KERNELS and not self.in_registers):
            return 0
        return TRAFFIC[self.name].ahead * (int(self.others[0]) if self.in_registers else 1)


@dataclass(frozen=True)
class Budget:
    """What a kernel takes on an architecture, and its code in PTX."""

    registers: int
    spilt_bytes: int
    shared_bytes: int
    ptx: str

    def under_way(self, kernel: Kernel, gpu: Gpu) -> float:
        """The bytes that the warps of `kernel` have under way on `gpu`, over those that keep its
        memory busy.
        """
        warps = TRAFFIC[kernel.name].threads // 32
        of_block = -(-self.registers // 8) * 8 * 32 * warps
        blocks = min(65536 // of_block, gpu.warps // warps)
        if (
            kernel.name.startswith("norm_") and kernel.in_registers
        ):  # sum_slices of launch.cu, of 8 warps
            blocks = min(
                blocks, (4 if int(kernel.others[0]) * kernel.pack * 32 <= 256 else 2) * 8 // warps
            )
        return blocks * warps * kernel.ahead * 16 * 32 / gpu.bytes_needed


def busy_pipes(sass: str, kernel: Kernel, gpu: Gpu) -> dict[str, float]:
    """The time of the machine instructions of `kernel` on each pipe of `gpu`, over that of a copy
    of what it moves.
    """
    codes = _repeated(sass)
    counts = Counter(
        next((pipe for pipe, (_, named) in PIPES.items() if re.match(named, code)), "")
        for code in codes
    )
    # The code works on as many packs as it stores of each result, or reads of each matrix where it
    # has none.
    traffic = TRAFFIC[kernel.name]
    accesses = sum(
        code.startswith("STG" if traffic.writes else "LDG") and ".128" in code for code in codes
    )
    packs = accesses / (traffic.writes or traffic.reads)
    copy = (
        (traffic.reads + traffic.writes)
        * 16
        * 32
        * packs
        / (gpu.bandwidth / gpu.processors / gpu.clock)
    )
    cycles = {"issue": len(codes)} | {
        pipe: counts[pipe] * cost for pipe, (cost, _) in PIPES.items()
    }
    return {pipe: number / 4 / copy for pipe, number in cycles.items()}


def _repeated(sass: str) -> list[str]:
    """The codes of the instructions in the loops over packs, or of all where there are none."""
    lines = [(int(at, 16), code, rest) for at, code, rest in re.findall(INSTRUCTION, sass)]
    looped: set[int] = set()
    for at, code, rest in lines:
        if code.startswith("BRA") and (target := int(rest.split()[-1].strip("`()"), 16)) < at:
            inside = {place for place, _, _ in lines if target <= place <= at}
            if any(
                re.match(r"(LD|ST)G.*\.128", inner) for place, inner, _ in lines if place in inside
            ):
                looped |= inside
    return [code for at, code, _ in lines if not looped or at in looped]


def compile_all(architecture: str, names: Iterable[str] | None = None) -> dict[Kernel, Budget]:
    """Compile the kernels (`names`: some) to machine code; returns the budget of each, or raises
    with the log.
    """
    names = list(instances() if names is None else names)
    nvrtc = ctypes.CDLL(
        str(next((package_folder("nvidia.cuda_nvrtc") / "lib").glob("libnvrtc.so.*")))
    )
    include = package_folder("nvidia.cuda_runtime") / "include"
    headers = sorted(path.name for path in (HERE / "kernels").glob("*.cuh"))
    source = "".join(f'#include "kernels/{name}"\n' for name in headers).encode()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None)
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        f"-I{HERE}",
        f"-I{include}",
        "--ptxas-options=-v",
    ]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    if failed:
        raise RuntimeError(f"{architecture}: {log}")
    ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    found = {}
    for name in names:
        lowered = ctypes.c_char_p()
        nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
        symbol = (lowered.value or b"").decode()
        said = log.split(f"Compiling entry function '{symbol}'")[1].split(
            "Compiling entry function"
        )[0]
        numbers = {
            key: int(match[1]) if (match := re.search(pattern, said)) else 0
            for key, pattern in (
                ("registers", r"Used (\d+) registers"),
                ("spilt_bytes", r"(\d+) bytes spill stores"),
                ("shared_bytes", r"(\d+) bytes smem"),
            )
        }
        code = ptx.split(f".entry {symbol}(")[1].split(".entry ")[0]
        found[Kernel.parse(name)] = Budget(**numbers, ptx=code)
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
        found = compile_all(architecture)
        print(
            f"{architecture}: {len(found)} kernels, at most "
            f"{max(budget.registers for budget in found.values())} "
            f"registers, {sum(budget.spilt_bytes for budget in found.values())} bytes spilt"
        )
        under_way: dict[str, list[float]] = {}
        for kernel, budget in found.items():
            if kernel.ahead:
                under_way.setdefault(kernel.name, []).append(
                    budget.under_way(kernel, GPUS[architecture])
                )
        print(
            f"  bytes under way, of what {GPUS[architecture].name} needs: "
            + ", ".join(
                f"{name} {min(found):.1f} to {max(found):.1f}" for name, found in under_way.items()
            )
        )


if __name__ == "__main__":
    main(sys.argv[1:] or ["sm_70", "sm_75", "sm_80", "sm_90"])
