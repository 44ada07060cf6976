"""Start of DeepSpeed in a process: device, process group, launcher. Neither it nor torch is loaded before."""

from __future__ import annotations

import gc
import logging
import re
import signal
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ds_minimodel.common.errors import UserError

if TYPE_CHECKING:
    import torch

# Of a hostfile. ssh takes what begins with a dash for an option; pdsh reads lists, ranges and ways to connect.
_HOST = re.compile(r"(?:\w[\w.-]*@)?\w[\w.-]*", re.ASCII)


def configure() -> None:
    """Load DeepSpeed, quiet, and without its shared-memory collectives. Before `init_distributed`."""
    import deepspeed
    import torch.distributed.nn  # noqa: F401  (loaded later, its functions would hold the group that there is by then)

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # torch says at every step of ZeRO 3 that the collectives that DeepSpeed calls have new names.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    # DeepSpeed builds no operator for this. To find out which it could, it would compile programs and ask for GPUs at
    # every start, and then on CPUs compile a shared-memory all-reduce: a minute of work that fails without a compiler,
    # hangs on a stale lock and leaks /dev/shm. gloo gives the same sums.
    deepspeed.ops.__compatible_ops__ = {}


def check(settings: Mapping[str, Any]) -> None:
    """Let DeepSpeed read its JSON, which raises errors of many kinds for what it does not take."""
    configure()
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig(dict(settings))


def set_log_level(settings: Mapping[str, Any]) -> None:
    """Let DeepSpeed's log print what these settings ask of it; without them warnings only."""
    asked = settings.get("steps_per_print") or settings.get("memory_breakdown")
    asked = asked or (settings.get("comms_logger") or {}).get("verbose")
    log, level = logging.getLogger("DeepSpeed"), logging.INFO if asked else logging.WARNING
    log.setLevel(level)
    for handler in log.handlers:
        handler.setLevel(level)


def backend() -> str:
    """Name of torch.distributed's backend for this machine's devices: "nccl", "gloo"."""
    import deepspeed

    return deepspeed.get_accelerator().communication_backend_name()


def init_distributed() -> None:
    """Join the process group that the environment describes, or tell DeepSpeed of the one that exists."""
    import deepspeed

    deepspeed.init_distributed(verbose=False)


def end_distributed() -> None:
    """End the process groups and their threads, if there are any; to be called while Python still runs.

    A thread of gloo's lets go of a collective's tensors some time after those who wait for it have gone on, and needs
    Python for that: where Python has begun to end by then, it aborts the process, whose work is done
    (pytorch#190489). DeepSpeed holds groups of its own, which must go for their threads to end.
    """
    import deepspeed
    import torch.distributed as dist

    if dist.is_initialized():
        deepspeed.comm.destroy_process_group()
        gc.collect()  # engines, which are cycles, hold groups too


def device(local_rank: int) -> torch.device:
    """This rank's device."""
    import deepspeed
    import torch

    return torch.device(deepspeed.get_accelerator().device_name(local_rank))


def version() -> str:
    """DeepSpeed's version."""
    import deepspeed

    return deepspeed.__version__


def slots_of(hostfile: str) -> dict[str, int]:
    """{host: slots} of a hostfile, as DeepSpeed's launcher reads it; UserError for one that it does not take."""
    from deepspeed.launcher import runner

    try:
        slots: dict[str, int] | None = runner.fetch_hostfile(hostfile)
        if slots is None:
            raise UserError(f"--hostfile {hostfile}: no such file; a line of it reads `HOST slots=N`")
        with open(hostfile) as file:
            for number, line in enumerate(file, 1):
                host = [*line.split(), "#"][0]
                if not host.startswith("#") and not _HOST.fullmatch(host):
                    raise UserError(f"{hostfile}:{number}: {host} is no host's name; a line reads `HOST slots=N`")
    except ValueError as error:
        raise UserError(f"{hostfile}: {error}") from None
    return slots


def run_on_hosts(options: Sequence[str], exported: Sequence[str]) -> int:
    """Run the command `deepspeed` with these options; its exit code. UserError where it cannot start.

    exported: beginnings of names of variables that it takes to other hosts, beside its own.
    """
    from deepspeed.launcher import runner

    own, runner.EXPORT_ENVS = runner.EXPORT_ENVS, [*runner.EXPORT_ENVS, *exported]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        runner.main(list(options))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except (RuntimeError, ValueError, NotImplementedError, subprocess.CalledProcessError) as error:
        raise UserError(f"deepspeed: {error}") from None
    finally:
        runner.EXPORT_ENVS = own
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0
