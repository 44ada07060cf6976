"""Start of ranks: here by torchrun's launcher, on other hosts by DeepSpeed's."""

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
from ds_minimodel.launch.process import STOPPING, number_in_environment

# Environment variables of a process that computes on the CPU, which reads them at its start. glibc
# gives large blocks back to the kernel and faults them in again at every step unless told
# otherwise: a fifth to a half of the time of a training step. A thread of OpenMP that waits spins
# GOMP_SPINCOUNT times before it sleeps (GNU's OpenMP, which torch brings; others know the policy
# only). Waking takes time: two threads that spin are 1.1 to 1.4 times as fast as two that sleep
# (benchmarks/threads.md).
CPU = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "100000",
    "DS_ACCELERATOR": "cpu",
}
# These replace the ones above where other processes compute on the same cores: threads that spin
# are only 0.1 to 0.4 times as fast there.
CPU_BESIDE_OTHERS = {"GOMP_SPINCOUNT": "0"}
# Other processes count as computing where this many cores are busy, or more.
MIN_BUSY_CORES = 0.5

# How many ranks are on this host, as torchrun and deepspeed set it.
_RANKS_HERE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")

# Beginnings of the names of variables that go with the ranks to the hosts of a hostfile, beside
# those that DeepSpeed takes there.
EXPORTED = (
    "DS_ DEEPSPEED_ DSMM_ NCCL_ GLOO_ TORCH_ OMP_ GOMP_ MKL_ MALLOC_ HF_ LD_LIBRARY_PATH".split()
)


# A host's name in a hostfile. ssh takes what begins with a dash for an option; pdsh reads lists,
# ranges and ways to connect.
_HOST = re.compile(r"(?:\w[\w.-]*@)?\w[\w.-]*", re.ASCII)

# How many slots a hostfile may give a host.
MAX_SLOTS = 4096
# The exit code after SIGINT.
INTERRUPTED = 1
# The exit code after SIGTERM, with the state saved: the command is to be started again.
PREEMPTED = os.EX_TEMPFAIL


def has_gpu() -> bool:
    """Return whether an NVIDIA GPU is here and to be used; told without loading torch."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not gpu_count():
        return False
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def gpu_count() -> int:
    """Return how many GPUs a process here sees; told without loading torch."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return sum(name not in ("", "-1") for name in os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


def check_ranks(ranks: int) -> None:
    """Raise UserError for more ranks than this host has GPUs, if it has any and is to use them."""
    if os.environ.get("DS_ACCELERATOR") != "cpu" and 0 < gpu_count() < ranks:
        raise UserError(
            f"--ranks {ranks}: this host shows {gpu_count()} GPUs, and every rank needs one of its "
            "own; DS_ACCELERATOR=cpu trains on the CPU"
        )


def name_the_cpu() -> None:
    """Name the CPU to DeepSpeed where there is no GPU.

    DeepSpeed warns of that otherwise, on standard output, where tables and JSON go.
    """
    if not has_gpu():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def cpu_settings(starting: int = 0) -> dict[str, str]:
    """Return environment variables for computing on the CPU, by whether others compute there now.

    Only what leaves the bits as they are may depend on that, so never the number of threads.

    Args:
        starting: how many ranks start beside this process; each may keep a core busy meanwhile.
    """
    if busy_cores() >= starting + MIN_BUSY_CORES:
        return CPU | CPU_BESIDE_OTHERS
    return CPU


def busy_cores() -> float:
    """Return how many of the cores that this process may use are busy, within 0.1 s."""
    busy = psutil.cpu_percent(0.1, percpu=True)
    return sum(busy[core] for core in os.sched_getaffinity(0) if core < len(busy)) / 100


def _program() -> list[str]:
    """Return Python's options that start this package.

    -P keeps another folder of its name, where the command was started, from being imported.
    """
    is_here = Path(__file__).parents[2] == Path.cwd()
    return ["-m", "ds_minimodel"] if is_here else ["-P", "-m", "ds_minimodel"]


def restart_with_cpu_settings() -> None:
    """Replace this process by one with `cpu_settings` where there is no GPU and they are not set.

    A rank that a launcher started without OMP_NUM_THREADS gets its share of the host's cores.
    """
    ranks_here = number_in_environment(*_RANKS_HERE)
    share = {}
    if ranks_here:
        cores = min((os.cpu_count() or 1) // ranks_here, len(os.sched_getaffinity(0)))
        share["OMP_NUM_THREADS"] = str(max(1, cores))
    if has_gpu() or {*CPU, *share} <= os.environ.keys():
        return
    command = [sys.executable, *_program(), *sys.argv[1:]]
    settings = cpu_settings(starting=max(0, ranks_here - 1)) | share
    os.execve(sys.executable, command, settings | os.environ)


def launch(arguments: Sequence[str], ranks: int) -> int:
    """Run `python -m ds_minimodel ARGUMENTS` on ranks of this host under torchrun's launcher.

    SIGINT and SIGTERM go on to the ranks, which save and end; this process waits for them and
    exits.

    Args:
        arguments: those of the command line.
        ranks: how many processes are started.

    Returns:
        The exit code: 2 where a rank ended by a user's mistake, which it has said; 1 for any other
        failure.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What the ranks say themselves is enough.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # Port 0 is any free one. Signals that are not named are passed on by this process.
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="ranks",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        signals_to_handle="SIGHUP,SIGQUIT",
    )
    settings = {}
    if not has_gpu():
        threads = max(1, (os.cpu_count() or 1) // ranks)
        settings = cpu_settings() | {"OMP_NUM_THREADS": str(threads)}
    # The program `env` sets the variables of each rank; those of the user come first.
    variables = [f"{name}={os.environ.get(name, value)}" for name, value in settings.items()]
    failures: dict[int, int] = {}
    with passed_on_to_children() as received:
        try:
            elastic_launch(config, "env")(*variables, sys.executable, "-u", *_program(), *arguments)
        except ChildFailedError as error:
            failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
    if received:
        if failures:
            _say("not all ranks have saved; the same command resumes from the last checkpoint")
        sys.exit(PREEMPTED if received[0] == signal.SIGTERM and not failures else 1)
    for rank, code in failures.items():
        # A negative code is a signal's; SIGTERM is what the launcher sends to the other ranks.
        if code < 0 and code != -signal.SIGTERM:
            name = signal.Signals(-code).name
            _say(
                f"rank {rank} was ended by {name}; the same command resumes from the last "
                "checkpoint"
            )
    if 2 in failures.values():
        return 2
    return 1 if failures else 0


@contextlib.contextmanager
def passed_on_to_children() -> Iterator[list[int]]:
    """Send SIGINT and SIGTERM, within the block, to this process's children, the ranks.

    The first goes on as SIGTERM, by which a rank saves and ends, and one that has not begun to
    train ends without a traceback. SIGINT after it tells a rank that is saving to end at once.

    Yields:
        The numbers of the signals that were received so far.
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

    handlers = {number: signal.signal(number, pass_on) for number in STOPPING}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ranks_on_hosts(hostfile: str, ranks: int | None, options: Sequence[str] = ()) -> int:
    """Return how many ranks `launch_on_hosts` starts, by the same arguments.

    Raises:
        UserError: the hostfile is missing or wrong, or a host has fewer slots than ranks.
    """
    slots = _slots_of(hostfile, options)
    for host, count in slots.items():
        if not _HOST.fullmatch(host):
            raise UserError(f"{hostfile}: {host} is no host's name; a line reads `HOST slots=N`")
        if count < (ranks or 1):
            raise UserError(f"{hostfile}: {host} has {count} slots for {ranks or 1} ranks")
    return sum(ranks or count for count in slots.values())


def _slots_of(hostfile: str, options: Sequence[str]) -> dict[str, int]:
    """Return {host: slots} of a hostfile, without what deepspeed's options leave out."""
    from deepspeed.launcher import runner

    choice = runner.parse_args([*options, "ds_minimodel"])
    try:
        slots: dict[str, int] | None = runner.fetch_hostfile(hostfile)
        if slots is None:
            raise UserError(
                f"--hostfile {hostfile}: no such file; a line of it reads `HOST slots=N`"
            )
        # DeepSpeed makes a list of each host's slots, however many those are.
        for host, count in slots.items():
            if count > MAX_SLOTS:
                raise ValueError(f"{host} has {count:,} slots; a host has {MAX_SLOTS:,} at most")
        if "\0" in Path(hostfile).read_text(encoding="utf-8"):
            raise ValueError("holds a NUL character")
        if choice.include or choice.exclude:
            chosen = runner.parse_inclusion_exclusion(slots, choice.include, choice.exclude)
            return {host: len(indices) for host, indices in chosen.items()}
        return slots
    except ValueError as error:
        raise UserError(f"{hostfile}: {error}") from None


def launch_on_hosts(
    arguments: Sequence[str], hostfile: str, ranks: int | None, options: Sequence[str]
) -> int:
    """Run `python -m ds_minimodel ARGUMENTS` on hosts under DeepSpeed's launcher.

    SIGINT and SIGTERM are DeepSpeed's meanwhile.

    Args:
        arguments: those of the command line.
        hostfile: hosts and their slots, a host a line.
        ranks: of each host; None: as many as it has slots.
        options: further ones of the command `deepspeed`.

    Returns:
        The exit code: 2 where a rank ended by a user's mistake, 1 for any other failure.

    Raises:
        UserError: the hostfile is wrong, or DeepSpeed refuses to start.
    """
    from deepspeed.launcher import runner

    ranks_on_hosts(hostfile, ranks, options)
    command = ["--hostfile", hostfile, "--force_multi", "--log_level", "error"]
    if ranks:
        command += ["--num_gpus", str(ranks)]
    # Without these ssh waits for hours for a host that is lost.
    alive = (
        "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
    )
    os.environ["PDSH_SSH_ARGS_APPEND"] = f"{os.environ.get('PDSH_SSH_ARGS_APPEND', '')} {alive}"
    # pdsh hands a line to the other hosts' shells; DeepSpeed quotes what has spaces, and nothing
    # else.
    words = [word if " " in word else shlex.quote(word) for word in arguments]
    command += [*options, "--module", "ds_minimodel", *words]
    runner.EXPORT_ENVS = sorted({*runner.EXPORT_ENVS, *EXPORTED})
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    code: object = 0
    try:
        runner.main(command)
    except SystemExit as end:
        code = end.code
    except (RuntimeError, ValueError, NotImplementedError, subprocess.CalledProcessError) as error:
        raise UserError(f"deepspeed: {error}") from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if isinstance(code, int) and code in (0, 2):
        return code
    _say(f"deepspeed ended with {code}; the same command resumes from the last checkpoint")
    return 1


def _say(line: str) -> None:
    """Print a line on standard error, as the command line does."""
    print(f"ds-minimodel: {line}", file=sys.stderr)
