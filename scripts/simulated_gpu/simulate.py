"""Run the CUDA kernels on a simulated V100, compare what comes out with references, count cycles,
and write the page:

    python scripts/simulated_gpu/simulate.py FOLDER run [KERNEL ...]
    python scripts/simulated_gpu/simulate.py FOLDER table > benchmarks/simulated_v100.md

FOLDER is what setup.sh made. `run` takes the cases of the KERNELs (all) that have no result yet,
one after another, each a few seconds to a minute of one core. Results are kept in
FOLDER/results.jsonl under a hash of what was simulated, so that a changed kernel is simulated
again.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc" / "cuda"
sys.path.insert(0, str(CSRC))
from compile_device_code import GPUS, Budget, Kernel, busy_pipes

C_TYPES = {"fp16": 2, "bf16": 2, "float": 4}  # bytes

# Changes to the simulator's V100: a sixteenth of its 80 processors and 32 memory channels, that few
# rows fill it; a launch costs nothing, and what was copied to the device lies in memory, not in the
# second-level cache.
MODEL = "SM7_QV100"
CONFIGURATION = {
    "gpgpu_n_clusters": 5,
    "gpgpu_n_mem": 2,
    "gpgpu_memory_partition_indexing": 0,
    "gpgpu_perf_sim_memcpy": 0,
    "gpgpu_kernel_launch_latency": 0,
    "gpgpu_runtime_stat": 1000000,
    "enable_ptx_file_line_stats": 0,
}


@dataclass(frozen=True)
class Case:
    """A kernel with its arguments."""

    kernel: str
    dtype: str
    rows: int
    width: int
    options: str = ""
    traffic: str = ""  # matrices of rows × width that it reads, and writes; of those that are timed

    @property
    def packs(self) -> int:
        """Packs of 16 bytes in a matrix."""
        return self.rows * self.width * C_TYPES[self.dtype] // 16

    @property
    def copy(self) -> "Case":
        """What moves the same bytes without work on them."""
        return Case("stream", "fp16", 1, self.packs, self.traffic)

    def __str__(self) -> str:
        return f"{self.kernel} {self.dtype} {self.rows}×{self.width} {self.options}".strip()


# What is compared with references: sizes, dtypes and options of each kernel. Rows of up to 1,024
# are in registers; rows that are no whole packs go element by element.
CHECKED = """
cross_entropy 5×4096:fp16,bf16,float 5×4096:fp16,bf16,float:4 5×1001:fp16
rotary 21×768:fp16,bf16,float
gated_forward 21×1024:bf16:gelu 21×1024:fp16:silu 21×1024:float:gelu_tanh
gated_backward 21×1024:bf16:gelu 21×1024:fp16:silu 21×1024:float:gelu_tanh
norm_forward 21×768:fp16,bf16,float 21×768:bf16:rms 7×2048:fp16 7×1001:fp16
norm_backward 21×768:fp16,bf16,float 21×768:fp16:frozen 21×768:bf16:rms 7×2048:fp16
dropout 21×768:fp16,bf16,float
softmax_forward 21×512:fp16,bf16,float 21×512:bf16:padded 7×2048:fp16
softmax_backward 21×512:fp16,bf16,float 21×512:bf16:padded 7×2048:fp16
gelu_forward 21×768:fp16,bf16,float
gelu_backward 21×768:fp16,bf16,float 21×768:fp16:frozen
"""
# What is timed, and how many matrices of that size it reads and writes. 256 rows on a sixteenth of
# a V100 are the 4,096 of a micro-batch on a whole one. Logits are as wide as the caches do not hold
# between the two passes.
TIMED = """
gelu_forward 128×3072:fp16::1:1 256×3072:fp16::1:1
norm_forward 256×768:fp16::2:2
cross_entropy 40×10240:fp16:4:2:1 10×40960:fp16::2:1
norm_backward 256×768:fp16::2:2 256×768:fp16:frozen:2:2
gated_forward 192×1024:bf16:gelu:2:1
gated_backward 192×1024:bf16:gelu:3:2
rotary 256×768:bf16::1:1
softmax_forward 384×512:fp16::1:2
softmax_backward 384×512:fp16::2:1
gelu_backward 128×3072:fp16::2:1
dropout 512×768:fp16::1:1
"""


def cases() -> list[Case]:
    """All cases, the checked ones first."""
    found = []
    for line in CHECKED.strip().splitlines() + TIMED.strip().splitlines():
        kernel, *sizes = line.split()
        for each in sizes:
            size, dtypes, options, traffic = [*each.split(":", 3), "", ""][:4]
            rows, width = map(int, size.split("×"))
            found += [
                Case(kernel, dtype, rows, width, options, traffic) for dtype in dtypes.split(",")
            ]
    return found


@dataclass(frozen=True)
class Program:
    """The driver of a kernel, compiled: what runs, the PTX for the simulator, and the machine
    code.
    """

    path: Path
    ptx: str
    sass: str
    registers: dict[str, int]  # by mangled name, as the machine code is


class Simulator:
    """What setup.sh made in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if not list(self.folder.glob("gpgpu-sim/lib/*/*/*/libcudart.so")):
            sys.exit(f"{folder}: no simulator; run setup.sh first")
        self.file = self.folder / "results.jsonl"
        kept = self.file.read_text().splitlines() if self.file.exists() else []
        self.results: dict[str, dict[str, Any]] = {one["key"]: one for one in map(json.loads, kept)}
        self.programs: dict[tuple[str, str], Program] = {}

    def run(self, *command: object, at: Path | None = None, check: bool = True) -> str:
        """Run a command among the simulator's tools; returns what it printed."""
        line = ["bash", "-c", '. "$0/env.sh" 2>/dev/null; exec "$@" 2>&1', self.folder, *command]
        done = subprocess.run(
            list(map(str, line)),
            cwd=at or self.folder,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if check and done.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}")
        return done.stdout

    def program(self, kernel: str, dtype: str) -> Program:
        """Compile the driver for a kernel."""
        if (kernel, dtype) in self.programs:
            return self.programs[kernel, dtype]
        folder = self.folder / "programs" / f"{kernel}-{dtype}"
        folder.mkdir(parents=True, exist_ok=True)
        launch = (CSRC / "launch.cu").read_text()
        (folder / "launch_templates.cu").write_text(
            re.sub(r"^DSMM_INSTANTIATE\(.*\n", "", launch, flags=re.MULTILINE)
        )
        flags = [
            "-allow-unsupported-compiler",
            "-std=c++17",
            "-O2",
            "-arch=sm_70",
            "-cudart=shared",
            "--keep",
        ]
        flags += [
            f"-I{CSRC}",
            f"-I{folder}",
            f"-DDTYPE={dtype}",
            f"-DKERNEL_{kernel}",
            "-DDSMM_HAS_PTX=1",
        ]
        sources = [*HERE.iterdir(), *CSRC.glob("**/*.cu*"), *CSRC.parent.glob("*.h")]
        driver, ptx, sass, usage = (folder / name for name in ("driver", "ptx", "sass", "usage"))
        if (
            not usage.exists()
            or max(path.stat().st_mtime for path in sources) > usage.stat().st_mtime
        ):
            self.run("nvcc", *flags, "--keep-dir", folder, "-o", driver, HERE / "driver.cu")
            ptx.write_text(as_assembled((folder / "driver.ptx").read_text()))
            sass.write_text(
                self.run("sh", "-c", f'"$CUOBJDUMP" -sass {folder / "driver.sm_70.cubin"}')
            )
            usage.write_text(
                self.run("sh", "-c", f'"$CUOBJDUMP" -res-usage {folder / "driver.sm_70.cubin"}')
            )
        registers = re.findall(r"Function (\w+):\s+REG:(\d+)", usage.read_text())
        made = Program(
            driver,
            ptx.read_text(),
            sass.read_text(),
            {name: int(number) for name, number in registers},
        )
        return self.programs.setdefault((kernel, dtype), made)

    def key(self, case: Case) -> str:
        """What names the result of a case."""
        simulated = (
            self.program(case.kernel, case.dtype).ptx
            + (CSRC / "launch.cu").read_text()
            + str(CONFIGURATION)
        )
        return f"{case} {hashlib.sha256(simulated.encode()).hexdigest()[:16]}"

    def simulate(self, case: Case) -> None:
        """Run a case, unless its result is kept."""
        key = self.key(case)
        program = self.program(case.kernel, case.dtype)
        if key in self.results:
            return
        folder = self.folder / "run"
        self.run("rm", "-rf", folder)
        folder.mkdir()
        (folder / "kernels.sm_70.ptx").write_text(program.ptx)
        text = (self.folder / f"gpgpu-sim/configs/tested-cfgs/{MODEL}/gpgpusim.config").read_text()
        for name, number in CONFIGURATION.items():
            text = re.sub(rf"^-{name} .*", f"-{name} {number}", text, flags=re.MULTILINE)
        (folder / "gpgpusim.config").write_text(text)
        started = time.monotonic()
        log = self.run(
            program.path, case.rows, case.width, *case.options.split(), at=folder, check=False
        )
        (folder / "log").write_text(log)
        result = re.search(
            r"^RESULT launch (\d+) compared (\d+) wrong (\d+) worst ([\d.]+)", log, re.MULTILINE
        )
        cycles = sum(map(int, re.findall(r"^gpu_sim_cycle = (\d+)", log, re.MULTILINE)))
        if not result or not cycles or result[1] != "0" or result[3] != "0":
            sys.exit(f"{case} failed:\n{log[-2000:]}")
        record = {
            "key": key,
            "cycles": cycles,
            "compared": int(result[2]),
            "worst": float(result[4]),
            "launched": list(dict.fromkeys(re.findall(r"^kernel_name = (\w+)", log, re.MULTILINE))),
            "seconds": round(time.monotonic() - started),
        }
        with self.file.open("a") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self.results[key] = record
        print(case, record["cycles"], "cycles", flush=True)


# PTX in an assembler's order. The simulator issues a warp's instructions as they stand in the PTX,
# where nvcc leaves chains of dependent ones one after another; ptxas interleaves them.

LATENCY = {
    "ld.global": 300,
    "ld.shared": 24,
    "ex2": 20,
    "rcp": 20,
    "rsqrt": 20,
    "div": 100,
    "shfl": 24,
    "mul.lo": 6,
}
GUARD = r"(@!?%\w+ )?"
JUMP = re.compile(GUARD + r"(bra|ret|exit|bar|barrier|call)\b")
SPLIT = re.compile(r"mov\.b32 \{(%\w+), (%\w+)\}, %\w+;")


def as_assembled(ptx: str) -> str:
    """Reorder the instructions of each basic block, and split words into halves where these are
    used.
    """
    ptx = re.sub(
        r"\{\s*((?:cvt|mov)[^;{}]*;)\s*\}", r"\1", ptx
    )  # inline assembly of one instruction
    ptx = re.sub(
        r"(shfl\S*\s+%\w+)\|%\w+", r"\1", ptx
    )  # a flag, which the simulator takes for the value
    out: list[str] = []
    for function in re.split(r"(?=^\.visible)", ptx, flags=re.MULTILINE):
        lines = [
            line
            for each in function.splitlines()
            if (line := " ".join(each.split("//")[0].split()))
        ]
        block: list[str] = []
        for line in _split_late(lines):
            if re.match(GUARD + r"[a-z]", line) and line.endswith(";") and not JUMP.match(line):
                block.append(line)
            else:
                out += [*_scheduled(block), line]
                block = []
        out += block
    return "\n".join(out) + "\n"


def _split_late(lines: list[str]) -> list[str]:
    """Move `mov {half, half}, word` from behind the load, for which a warp would wait, to the first
    use in a block.

    The machine has no such instruction: its conversions take either half of a register.
    """
    defined = Counter(
        name
        for line in lines
        if (found := re.match(GUARD + r"[a-z]\S* (\{[^}]*\}|[^,;\[]+)", line))
        for name in re.findall(r"%\w+", found[2])
    )
    splits = {
        half: line for line in lines if (found := SPLIT.fullmatch(line)) for half in found.groups()
    }
    splits = {
        half: line
        for half, line in splits.items()
        if all(defined[n] == 1 for n in re.findall(r"%\w+", line))
    }
    out: list[str] = []
    done: set[str] = set()
    for line in lines:
        if line in splits.values():
            continue
        if line.endswith(":"):
            done.clear()
        for half in re.findall(r"%rs\d+", line):
            if half in splits and splits[half] not in done:
                done.add(splits[half])
                out.append(splits[half])
        out.append(line)
        if JUMP.match(line):
            done.clear()
    return out


def _scheduled(block: list[str]) -> list[str]:
    """The instructions of a basic block, the longest chain first. Loads do not pass stores, nor
    shuffles each other.
    """
    after: list[dict[int, int]] = [
        {} for _ in block
    ]  # of an instruction: those that wait for it, and how long
    latencies = []
    last: dict[str, int] = {}  # writer of a register, of memory, last shuffle
    readers: dict[str, list[int]] = {}
    for i, text in enumerate(block):
        parts = re.fullmatch(GUARD + r"(\S+) ?(.*)", text)
        assert parts is not None
        guard, code, operands = parts.groups()
        stores = code.startswith(("st", "red", "atom"))
        loads = code.startswith("ld.") and "param" not in code
        target = "" if stores else re.match(r"\{[^}]*\}|[^,;]*", operands)[0]  # type: ignore[index]
        writes = set(re.findall(r"%\w+", target)) | ({"memory"} if stores else set())
        reads = set(re.findall(r"%\w+", operands[len(target) :] + (guard or ""))) | (
            {"memory"} if loads else set()
        )
        if guard:  # keeps the old value where the guard is false
            reads |= writes
        if code.startswith("shfl"):
            writes = writes | {"shuffle"}
            reads = reads | {"shuffle"}
        latencies.append(
            next((cycles for prefix, cycles in LATENCY.items() if code.startswith(prefix)), 4)
        )
        waits = [
            (last[name], latencies[last[name]] if name[0] == "%" else 1)
            for name in reads
            if name in last
        ]
        waits += [
            (j, 1)
            for name in writes
            for j in (*readers.get(name, ()), *([last[name]] if name in last else ()))
        ]
        for j, cycles in waits:
            if j != i:
                after[j][i] = max(cycles, after[j].get(i, 0))
        for name in reads:
            readers.setdefault(name, []).append(i)
        for name in writes:
            last[name], readers[name] = i, []
    height = list(latencies)
    open_waits = [0] * len(block)
    for i in reversed(range(len(block))):
        for j, cycles in after[i].items():
            height[i] = max(height[i], cycles + height[j])
            open_waits[j] += 1
    ready_at = [0] * len(block)
    pending = {i for i, n in enumerate(open_waits) if not n}
    order = []
    now = 0
    while pending:
        now = max(now, min(ready_at[i] for i in pending))
        best = min((i for i in pending if ready_at[i] <= now), key=lambda i: (-height[i], i))
        pending.remove(best)
        order.append(block[best])
        now += 1
        for j, cycles in after[best].items():
            ready_at[j] = max(ready_at[j], now - 1 + cycles)
            open_waits[j] -= 1
            if not open_waits[j]:
                pending.add(j)
    return order


def page(simulator: Simulator) -> str:
    """The page of the results that there are."""
    commit = simulator.run("git", "-C", "gpgpu-sim", "log", "-1", "--format=%h of %cs").strip()
    changes = "\n".join(f"-{name} {number}" for name, number in CONFIGURATION.items())
    found = [(case, simulator.results.get(simulator.key(case))) for case in cases()]
    checked: dict[str, list[str]] = {}
    timed = []
    for case, result in found:
        if result is None:
            continue
        about = f"{case.dtype} {case.rows}×{case.width} {case.options}".strip().replace(
            "float", "fp32"
        )
        checked.setdefault(case.kernel, []).append(f"{about} ({result['worst']:.2f})")
        copy = simulator.results.get(simulator.key(case.copy)) if case.traffic else None
        if copy is None:
            continue
        program = simulator.program(case.kernel, case.dtype)
        symbol = result["launched"][0]
        name = simulator.run("c++filt", symbol).removeprefix("void ").split("(")[0]
        kernel = Kernel.parse(name)
        gpu = GPUS["sm_70"]
        sass = program.sass.split(f"Function : {symbol}\n")[1].split("Function : ")[0]
        pipes = busy_pipes(sass, kernel, gpu)
        pipe = max(pipes, key=lambda one: pipes[one])
        under_way = Budget(program.registers[symbol], 0, 0, "").under_way(kernel, gpu)
        timed.append(
            f"| `{case.kernel}` | {about} | {case.traffic.replace(':', ' + ')} | "
            f"{result['cycles']:,} | "
            f"{copy['cycles'] / result['cycles']:.0%} | {f'{under_way:.1f}' if under_way else '–'} "
            "| "
            f"{pipe} {pipes[pipe]:.0%} |"
        )
    rows = "\n".join(f"| `{kernel}` | {', '.join(all)} |" for kernel, all in checked.items())
    number = sum(result["compared"] for _, result in found if result)
    return PAGE.format(
        commit=commit,
        changes=changes,
        number=number,
        rows=rows,
        timed="\n".join(timed),
        model=MODEL,
        date=time.strftime("%F", time.gmtime(simulator.file.stat().st_mtime)),
    )


PAGE = """# CUDA kernels on a simulated V100
**Simulated**: no GPU has run this. [GPGPU-Sim](https://github.com/gpgpu-sim/gpgpu-sim_distribution)
(branch dev, {commit}) runs the PTX that nvcc 11.8 makes of `csrc/cuda/launch.cu`, in an order such
as an assembler gives it, on a sixteenth of its V100: 5 processors, 2 channels of memory and their
cache. Debian 12, {date}:
```
bash scripts/simulated_gpu/setup.sh FOLDER
python scripts/simulated_gpu/simulate.py FOLDER run
python scripts/simulated_gpu/simulate.py FOLDER table > benchmarks/simulated_v100.md
```
The configuration is `{model}` but for
```
{changes}
```
setup.sh reads apt's lists of Debian's `contrib` and `non-free` into FOLDER and fetches nvcc from
there; the system stays as it is. CI does not run this.

## Results against references in double
Every element that a kernel wrote, {number:,} in all, was compared with a reference in double
precision (`scripts/simulated_gpu/driver.cu`), and none is wrong. In brackets the largest error, in
parts of what is allowed: one rounding to the dtype and a little of fp32's. Dropout of 0.1 where a
kernel has it; `4`: rows of logits in a block.

| kernel | dtype, rows × width (worst error) |
|---|---|
{rows}

## Cycles
Share of a copy: the cycles of a kernel that moves the same bytes (matrices read + written) without
work on them, over those of ours, start and end of the launch included. 256 rows here are 4,096 on
the whole V100. Beside it the two bounds of a roofline (`csrc/cuda/compile_device_code.py`): bytes
under way, of what keeps the memory busy (1 and more is enough); and the busiest pipe of the real
machine code (sm_70), its time over that of the copy.

| kernel | dtype, rows × width | moves | cycles | of a copy | under way | busiest pipe |
|---|---|---|---|---|---|---|
{timed}

The simulator runs PTX: no slow paths of divisions, no moves that an assembler adds. Shares differ
by 6 % with the order of the PTX alone; smaller gaps mean nothing. Cases of simulate.py that have
not run are left out.
"""


def main() -> None:
    """Run the cases, or print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    asked = parser.parse_args()
    simulator = Simulator(asked.folder)
    if asked.action == "table":
        print(page(simulator), end="")
    else:
        for case in cases():
            if not asked.kernels or case.kernel in asked.kernels:
                simulator.simulate(case)
                if case.traffic:
                    simulator.simulate(case.copy)


if __name__ == "__main__":
    main()
