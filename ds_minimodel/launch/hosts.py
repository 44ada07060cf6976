"""Start of ranks, here by torchrun's launcher and on hosts by DeepSpeed's, and the environment that
they need.
"""

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from ds_minimodel.common.errors import UserError
from ds_minimodel.launch.process import number_in_environment

# Variables that a process reads at its start. glibc gives large blocks back to the kernel and
# faults them in again at every step unless told otherwise: a fifth to a half of the time of a
# training step on a CPU. A thread of OpenMP that waits spins GOMP_SPINCOUNT times before it sleeps
# (GNU's OpenMP, which torch brings; others know the policy only). Waking takes time: two threads
# that spin are 1.1 to 1.4 times as fast as two that sleep; but only 0.1 to 0.4 times where other
# processes compute on the same cores (benchmarks/threads.md).
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

_RANKS_HERE = (
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
)  # number of ranks on this host: torchrun's, deepspeed's

# Beginnings of the names of variables that go with the ranks to the hosts of a hostfile, beside
# those that DeepSpeed takes there.
EXPORTED = (
    "DS_ DEEPSPEED_ DSMM_ NCCL_ GLOO_ TORCH_ OMP_ GOMP_ MKL_ MALLOC_ HF_ LD_LIBRARY_PATH".split()
)


# Of a hostfile. ssh takes what begins with a dash for an option; pdsh reads lists, ranges and ways
# to connect.
_HOST = re.compile(r"(?:\w[\w.-]*@)?\w[\w.-]*", re.ASCII)

MAX_SLOTS = 4096  # of a host, by a hostfile
INTERRUPTED = 1  # the exit code after SIGINT
PREEMPTED = (
    os.EX_TEMPFAIL
)  # the exit code of what SIGTERM has ended, its state saved: to be started again


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU that is to be used, told without loading torch."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not gpus():
        return False
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def gpus() -> int:
    """How many GPUs a process here sees; told without loading torch."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return sum(name not in ("", "-1") for name in os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


def check_ranks(ranks: int) -> None:
    """Raise UserError for more ranks than this host has GPUs, if it has any and is to use them."""
    if os.environ.get("DS_ACCELERATOR") != "cpu" and 0 < gpus() < ranks:
        raise UserError(
            f"--ranks {ranks}: this host shows {gpus()} GPUs, and every rank needs one of its "
            "own; DS_ACCELERATOR=cpu trains on the CPU"
        )


def name_the_cpu() -> None:
    """Without a GPU, name the CPU to DeepSpeed, which else warns on standard output, where tables
    and JSON go.
    """
    if not has_gpu():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def cpu_settings(starting: int = 0) -> dict[str, str]:
    """CPU, or what suits it where others compute on this machine now.

    starting: ranks that start beside this process, each of which may keep a core busy as long as
    that takes. Only what leaves the bits as they are may depend on all this, so never the number of
    threads.
    """
    return CPU | BESIDE_OTHERS if busy_cores() >= starting + BUSY else CPU


def busy_cores() -> float:
    """How many of the cores that this process may use others keep busy, within 0.1 s; 0 if it is
    not told.
    """
    busy = psutil.cpu_percent(0.1, percpu=True)
    return sum(busy[core] for core in os.sched_getaffinity(0) if core < len(busy)) / 100


def _program() -> list[str]:
    """Python's options that start this package, also where the folder in which it was started has
    one of its name.
    """
    own = Path(__file__).parents[2]
    return [*([] if own == Path.cwd() else ["-P"]), "-m", "ds_minimodel"]


def restart_with_cpu_settings() -> None:
    """Where there is no GPU, replace this process by one with `cpu_settings`, unless it has them.

    A rank that a launcher started without OMP_NUM_THREADS gets its share of the host's cores.
    """
    ranks_here = number_in_environment(*_RANKS_HERE)
    share = {}
    if ranks_here:
        cores = min((os.cpu_count() or 1) // ranks_here, len(os.sched_getaffinity(0)))
        share["OMP_NUM_THREADS"] = str(max(1, cores))
    if not has_gpu() and not {*CPU, *share} <= os.environ.keys():
        command = [sys.executable, *_program(), *sys.argv[1:]]
        os.execve(sys.executable, command, cpu_settings((ranks_here or 1) - 1) | share | os.environ)


def launch(arguments: Sequence[str], ranks: int) -> int:
    """Run `python -m ds_minimodel ARGUMENTS` on ranks of this host under torchrun's launcher;
    return the exit code.

    2 where a rank ended by a user's mistake, which it has said, 1 for any other failure. SIGINT and
    SIGTERM go on to the ranks, which save and end; this process waits for them and exits.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # what the ranks say is enough
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="ranks",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # a free port
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        signals_to_handle="SIGHUP,SIGQUIT",  # the others are passed_on
    )
    settings = {}
    if not has_gpu():
        settings = cpu_settings() | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))}
    given = [
        f"{name}={value}" for name, value in (settings | os.environ).items() if name in settings
    ]
    failures: dict[int, int] = {}
    with passed_on_to_children() as received:
        try:
            elastic_launch(config, "env")(*given, sys.executable, "-u", *_program(), *arguments)
        except ChildFailedError as error:
            failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
    if received:
        if failures:
            _say("not all ranks have saved; the same command goes on from the last checkpoint")
        sys.exit(PREEMPTED if received[0] == signal.SIGTERM and not failures else 1)
    for rank, code in failures.items():
        if code < 0 and code != -signal.SIGTERM:  # which the launcher sends to the others
            name = signal.Signals(-code).name
            _say(
                f"rank {rank} was ended by {name}; the same command goes on from the last "
                "checkpoint"
            )
    return 2 if 2 in failures.values() else min(1, len(failures))


@contextlib.contextmanager
def passed_on_to_children() -> Iterator[list[int]]:
    """Within the block, send SIGINT and SIGTERM to this process's children, the ranks, which save
    and end.

    The first goes on as SIGTERM, which ends a rank that has not begun to train without a traceback;
    to one that is saving, SIGINT after it means to end at once. Yields the list of the signals
    received so far.
    """
    received: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        ranks = psutil.Process().children()
        if not ranks:
            raise KeyboardInterrupt
        received.append(number)
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.send_signal(number if len(received) > 1 else signal.SIGTERM)

    old = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def ranks_on_hosts(hostfile: str, ranks: int | None, options: Sequence[str] = ()) -> int:
    """How many ranks launch_on_hosts starts; UserError for a hostfile that is wrong or has fewer
    slots than ranks.
    """
    from deepspeed.launcher import runner

    own = runner.parse_args([*options, "ds_minimodel"])
    try:
        slots: dict[str, int] | None = runner.fetch_hostfile(hostfile)
        for host, number in (slots or {}).items():  # of which lists are made below
            if number > MAX_SLOTS:
                raise ValueError(f"{host} has {number:,} slots; a host has {MAX_SLOTS:,} at most")
        if slots and "\0" in Path(hostfile).read_text(encoding="utf-8"):
            raise ValueError("holds a NUL character")
        if own.include or own.exclude:
            active = runner.parse_inclusion_exclusion(slots, own.include, own.exclude)
            slots = {host: len(places) for host, places in active.items()}
    except ValueError as error:
        raise UserError(f"{hostfile}: {error}") from None
    if slots is None:
        raise UserError(f"--hostfile {hostfile}: no such file; a line of it reads `HOST slots=N`")
    for host, number in slots.items():
        if not _HOST.fullmatch(host):
            raise UserError(f"{hostfile}: {host} is no host's name; a line reads `HOST slots=N`")
        if number < (ranks or 1):
            raise UserError(f"{hostfile}: {host} has {number} slots for {ranks or 1} ranks")
    return sum(ranks or number for number in slots.values())


def launch_on_hosts(
    arguments: Sequence[str], hostfile: str, ranks: int | None, options: Sequence[str]
) -> int:
    """Run `python -m ds_minimodel ARGUMENTS` in the slots of a hostfile under DeepSpeed's launcher;
    the exit code.

    ranks: of each host; None: as many as it has slots. options: further ones of the command
    `deepspeed`. SIGINT and SIGTERM are DeepSpeed's.
    """
    from deepspeed.launcher import runner

    ranks_on_hosts(hostfile, ranks, options)
    own = ["--hostfile", hostfile, "--force_multi", "--log_level", "error"]
    own += ["--num_gpus", str(ranks)] if ranks else []
    # Without these ssh waits for hours for a host that is lost.
    alive = (
        "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
    )
    os.environ["PDSH_SSH_ARGS_APPEND"] = f"{os.environ.get('PDSH_SSH_ARGS_APPEND', '')} {alive}"
    # pdsh hands a line to the other hosts' shells; DeepSpeed quotes what has spaces, and nothing
    # else.
    words = [word if " " in word else shlex.quote(word) for word in arguments]
    runner.EXPORT_ENVS = sorted({*runner.EXPORT_ENVS, *EXPORTED})
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    code: object = 0
    try:
        runner.main([*own, *options, "--module", "ds_minimodel", *words])
    except SystemExit as end:
        code = end.code
    except (RuntimeError, ValueError, NotImplementedError, subprocess.CalledProcessError) as error:
        raise UserError(f"deepspeed: {error}") from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code not in (0, 2):
        _say(f"deepspeed ended with {code}; the same command goes on from the last checkpoint")
    return code if isinstance(code, int) and code in (0, 2) else 1


def _say(line: str) -> None:
    print(f"ds-minimodel: {line}", file=sys.stderr)
