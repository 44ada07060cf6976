"""Start of DeepSpeed in a process: device and process group.

Neither DeepSpeed nor torch is loaded before.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def configure() -> None:
    """Load DeepSpeed, quiet, and without its shared-memory collectives.

    It is called before `init_distributed`.
    """
    import deepspeed

    # Loaded later, its functions would hold the group that there is by then.
    import torch.distributed.nn  # noqa: F401

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # torch says at every step of ZeRO 3 that the collectives that DeepSpeed calls have new names.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    # DeepSpeed builds no operator for this. To find out which it could, it would compile programs
    # and ask for GPUs at every start, and then on CPUs compile a shared-memory all-reduce: a minute
    # of work that fails without a compiler, hangs on a stale lock and leaks /dev/shm. gloo gives
    # the same sums.
    deepspeed.ops.__compatible_ops__ = {}


def check(settings: Mapping[str, Any]) -> None:
    """Let DeepSpeed read its JSON, which raises errors of many kinds for what it does not take."""
    configure()
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig(dict(settings))


def set_log_level(settings: Mapping[str, Any]) -> None:
    """Let DeepSpeed's log print what these settings ask of it; without them warnings only."""
    comms_logger = settings.get("comms_logger") or {}
    prints = (
        settings.get("steps_per_print")
        or settings.get("memory_breakdown")
        or comms_logger.get("verbose")
    )
    log = logging.getLogger("DeepSpeed")
    level = logging.INFO if prints else logging.WARNING
    log.setLevel(level)
    for handler in log.handlers:
        handler.setLevel(level)


def backend() -> str:
    """Return the name of torch.distributed's backend for this machine's devices: "nccl", "gloo"."""
    import deepspeed

    return deepspeed.get_accelerator().communication_backend_name()


def init_distributed() -> None:
    """Join the process group of the environment, or tell DeepSpeed of the one that exists."""
    import deepspeed

    deepspeed.init_distributed(verbose=False)


def end_distributed() -> None:
    """End the process groups and their threads, if there are any, while Python still runs.

    A thread of gloo's lets go of a collective's tensors some time after those who wait for it have
    gone on, and needs Python for that: where Python has begun to end by then, it aborts the
    process, whose work is done (pytorch#190489). DeepSpeed holds groups of its own, which must go
    for their threads to end.
    """
    import deepspeed
    import torch.distributed as dist

    if dist.is_initialized():
        deepspeed.comm.destroy_process_group()
        # Engines, which are cycles, hold groups too.
        gc.collect()


def device(local_rank: int) -> torch.device:
    """Return this rank's device."""
    import deepspeed
    import torch

    return torch.device(deepspeed.get_accelerator().device_name(local_rank))
