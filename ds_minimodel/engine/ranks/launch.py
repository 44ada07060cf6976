"""Start of ranks with the deepspeed launcher, and the environment that training processes need."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.ranks import mpi
from ds_minimodel.engine.ranks.rendezvous import free_port
from ds_minimodel.engine.zero.start import launcher_arguments

# Variables that a process reads at its start. glibc gives large blocks back to the kernel and faults them in again at
# every step unless told otherwise: a fifth to a half of the time of a training step on a CPU. A thread of OpenMP that
# waits looks GOMP_SPINCOUNT times again before it sleeps (GNU's OpenMP, which torch brings; others know the policy
# only). To wake one takes time, so that two threads that spin are 1.1 to 1.4 times as fast as two that sleep; beside
# other work, which they keep from its cores as it keeps them from theirs, 0.1 to 0.4 times (benchmarks/threads.md).
CPU = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "100000",
    "DS_ACCELERATOR": "cpu",
}
BESIDE_OTHERS = {"GOMP_SPINCOUNT": "0"}
BUSY = 0.5  # cores
STAT = Path("/proc/stat")

# Number of ranks on this host: from torchrun, deepspeed, Open MPI, MPICH.
_RANKS_HERE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

# The least that a number can be in the variables of launchers.
_LEAST = {
    **dict.fromkeys(("RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK"), 0),
    **dict.fromkeys(("WORLD_SIZE", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", *_RANKS_HERE), 1),
    "LOCAL_RANK": -1,  # what some set for "no launcher"
}
# What others can be that libraries end at with a traceback.
_CHOICES = {
    "DS_ACCELERATOR": ("cpu", "cuda"),
    "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO", "DETAIL", "off", "info", "detail"),
}
_MEETING = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what a launcher sets beside RANK

THIS_PROGRAM = ("--module", "ds_minimodel")
# Names a file, on the disk that all hosts share, by which rank 0 says that a stopped run's state is saved.
STOP_NOTE = "DSMM_STOP_NOTE"
# Seconds for ranks to end after their launcher has; it grants them 30 itself.
GRACE = 45


def launched() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    return "RANK" in os.environ or mpi.started()


def check_environment() -> None:
    """UserError where a variable of launchers or libraries holds what none takes, or the current folder is gone."""
    try:
        os.getcwd()
    except OSError:
        raise UserError("the current folder is gone; change to one that is there") from None
    for name, least in _LEAST.items():
        text = os.environ.get(name)
        if text is not None and (not re.fullmatch(r"-?[0-9]{1,9}", text) or int(text) < least):
            raise UserError(f"{name}={text}: launchers set this variable to a number from {least} on; unset or mend it")
    interfaces = [name for _, name in socket.if_nameindex()]
    for name, known in {**_CHOICES, "GLOO_SOCKET_IFNAME": interfaces}.items():
        text = os.environ.get(name)
        if text is not None and not {*(text.split(",") if known is interfaces else [text])} <= {*known}:
            raise UserError(f"{name}={text}: it is {' or '.join(known)}; unset or mend it")
    os.environ["MPLBACKEND"] = "agg"  # nothing is shown on a screen, and matplotlib does not load with nonsense there


def check_meeting() -> None:
    """UserError where a rank is not told how many there are, or where to meet them."""
    missing = [name for name in _MEETING if name not in os.environ]
    if missing:
        raise UserError(f"RANK is set but not {', '.join(missing)}; unset it, or start with a launcher or --ranks")
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= size or port > 65535:
        wrong = f"RANK={rank} of WORLD_SIZE={size}" if rank >= size else f"MASTER_PORT={port}"
        raise UserError(f"{wrong}: no launcher sets that; unset or mend it")


def rank_of_environment() -> int:
    """This process's rank as its launcher has set it; 0 without a launcher."""
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, told without loading torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def gpus() -> list[str]:
    """Names, for CUDA_VISIBLE_DEVICES, of the GPUs that a process here sees; told without loading torch."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name not in ("", "-1")]
    devices = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*")]
    return [str(number) for number in range(sum(map(str.isdigit, devices)))]


def check_ranks(ranks: int) -> None:
    """Raise UserError for more ranks than this host has GPUs, if it has any and is to use them."""
    if os.environ.get("DS_ACCELERATOR") != "cpu" and 0 < len(gpus()) < ranks:
        raise UserError(
            f"--ranks {ranks}: this host shows {len(gpus())} GPUs, and every rank needs one of its "
            "own; DS_ACCELERATOR=cpu trains on the CPU"
        )


def name_the_cpu() -> None:
    """Without a GPU, name the CPU to DeepSpeed, which else warns on standard output, where tables and JSON go."""
    if not has_gpu():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def cpu_settings(starting: int = 0) -> dict[str, str]:
    """CPU, or what suits it where others compute on this machine now.

    starting: ranks that start beside this process, each of which may keep a core busy as long as that takes. Only what
    leaves the bits as they are may depend on all this, so never the number of threads.
    """
    return CPU | BESIDE_OTHERS if busy_cores() >= starting + BUSY else CPU


def busy_cores(seconds: float = 0.1) -> float:
    """How many of the cores that this process may use others keep busy, watched for some time; 0 if it is not told."""

    def ticks() -> dict[str, tuple[int, int]]:
        """{core: ticks that it was idle, all of its ticks}; what guests take is part of their host's."""
        lines = (line.split() for line in STAT.read_text().splitlines() if re.match(r"cpu\d", line))
        return {name: (int(counts[3]) + int(counts[4]), sum(map(int, counts[:8]))) for name, *counts in lines}

    try:
        before = ticks()
        time.sleep(seconds)
        after, found = ticks(), 0.0
        for core in (f"cpu{number}" for number in os.sched_getaffinity(0)):
            idle, all_of_it = (end - start for start, end in zip(before[core], after[core], strict=True))
            found += max(0.0, 1 - idle / all_of_it) if all_of_it else 0.0  # some sandboxes count nothing
        return found
    except (OSError, KeyError, ValueError, IndexError):
        return 0.0


def restart_with_cpu_settings() -> None:
    """Where there is no GPU, replace this process by one with `cpu_settings`, unless it has them.

    A rank that a launcher started without OMP_NUM_THREADS gets its share of the host's cores.
    """
    ranks_here = next((int(os.environ[name]) for name in _RANKS_HERE if name in os.environ), None)
    share = {}
    if ranks_here:
        cores = min((os.cpu_count() or 1) // ranks_here, len(os.sched_getaffinity(0)))
        share["OMP_NUM_THREADS"] = str(max(1, cores))
    if not has_gpu() and not {*CPU, *share} <= os.environ.keys():
        command = [sys.executable, "-m", "ds_minimodel", *sys.argv[1:]]
        os.execve(sys.executable, command, cpu_settings((ranks_here or 1) - 1) | share | os.environ)


def launch(arguments: Sequence[str], ranks: int) -> int:
    """Run `python -m ds_minimodel ARGUMENTS` on ranks here under DeepSpeed's launcher; return its exit code.

    SIGINT and SIGTERM go on to the ranks, which save and end; this process waits for them and exits. They
    save and end, too, when this process is gone, however that came.
    """
    environment = dict(os.environ)
    if not has_gpu():
        environment = cpu_settings() | environment
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    devices = (gpus() or [str(number) for number in range(ranks)])[:ranks]
    # A session of its own: the launcher would else die of Ctrl-C before its ranks have saved.
    process = subprocess.Popen(
        launcher_command({"localhost": devices}, 0, "127.0.0.1", free_port(), [*THIS_PROGRAM, *arguments]),
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )

    def pass_on(number: int, count: int) -> None:
        # SIGTERM first, always: until its ranks are started, DeepSpeed's launcher dies of SIGINT with a traceback. To
        # the ranks, SIGINT after SIGTERM means to end at once.
        os.killpg(process.pid, number if count > 1 else signal.SIGTERM)

    with passing_on(pass_on) as received:
        code = process.wait()
        deadline = time.monotonic() + GRACE
        while received and _alive(process.pid) and time.monotonic() < deadline:
            time.sleep(0.2)
    if received:
        if _alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        sys.exit(code_after(received, code))
    return exit_code(code)


def launcher_command(
    devices: Mapping[str, Sequence[object]],
    node_rank: int,
    address: str | None,
    port: object,
    program: Sequence[object],
) -> list:
    """Command that runs a program on the ranks of one host, and ends them when its standard input is closed.

    devices: {host: names of its devices, one for each rank}. node_rank: number of the host among them. address,
    port: where the ranks meet. program: what DeepSpeed's launcher takes, THIS_PROGRAM or a script, and arguments.
    """
    options = launcher_arguments(devices, node_rank, address, port)
    return [sys.executable, "-u", "-m", "ds_minimodel.engine.ranks.on_host", *options, *program]


def exit_code(code: int) -> int:
    """This program's exit code for a launcher's: 2 a user's mistake, 1 for any other of its or of ssh's (255)."""
    return code if code in (0, 2) else 1


def code_after(received: Sequence[int], code: int) -> int:
    """Exit code after signals: 0 where the first was SIGTERM and rank 0 has noted that the state is on disk.

    received: signals, in order. code: of the launcher, which knows nothing of how its ranks ended.
    """
    note = Path(os.environ[STOP_NOTE])
    saved = note.exists() or code == 0
    note.unlink(missing_ok=True)
    if not saved:
        print(
            "ds-minimodel: the ranks ended without saving; the same command goes on from the last checkpoint",
            file=sys.stderr,
        )
    return 0 if saved and received[0] == signal.SIGTERM else 1


def note_stop() -> None:
    """On rank 0: note for the process that launched the ranks that their state is saved."""
    if STOP_NOTE in os.environ and rank_of_environment() == 0:
        with contextlib.suppress(FileExistsError):  # and no link is followed
            Path(os.environ[STOP_NOTE]).touch(exist_ok=False)


@contextlib.contextmanager
def passing_on(send: Callable[[int, int], object]) -> Iterator[list[int]]:
    """Within the block, call send(number, count) for the count-th SIGINT or SIGTERM instead of ending.

    They are for the ranks, which save and end. Yields the list of the signals received so far.
    """
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        received.append(number)
        send(number, len(received))

    old = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _alive(group: int) -> bool:
    """Whether a process of the group runs; one that only waits to be reaped does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group_there = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group_there) == group and state != "Z":
                return True
    return False
