"""How this process was started, alone or as a rank by a launcher or by mpirun, and how signals end
it.
"""

import ctypes
import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

from ds_minimodel.common.errors import UserError

log = logging.getLogger(__name__)

_MEETING = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)  # what a launcher sets
# Open MPI; MPICH and its kin.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def processes_of_mpirun() -> int:
    """How many processes mpirun has started with this one, for the steps on MPI ranks; 0 without
    it.
    """
    return number_in_environment(*_MPI_SIZES)


def launched() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    return "RANK" in os.environ or processes_of_mpirun() > 0


def rank_of_environment() -> int:
    """This process's rank as its launcher has set it; 0 without a launcher."""
    return number_in_environment("RANK", *_MPI_RANKS)


def number_in_environment(*names: str) -> int:
    """What the first of these variables that is there says, as a launcher sets it; 0 without
    them.
    """
    name = next((name for name in names if name in os.environ), None)
    if name is not None and not os.environ[name].isdecimal():
        raise UserError(
            f"{name}={os.environ[name]}: no number, as a launcher would set; unset {name}"
        )
    return int(os.environ[name]) if name else 0


def check_meeting() -> None:
    """UserError where a rank is not told how many there are, or where to meet them."""
    missing = [name for name in _MEETING if name not in os.environ]
    if missing:
        raise UserError(
            f"a launcher has set no {', '.join(missing)}; start ranks by --ranks, torchrun or "
            "deepspeed (mpirun serves "
            "corpus, tokenizer and prepare alone), or unset RANK"
        )


class Stopped(Exception):
    """Training was asked to stop (SIGINT or SIGTERM); its state is saved."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


class StopSignals:
    """Records SIGINT or SIGTERM instead of ending the process; only a SIGINT after it stops at
    once.

    Launchers send SIGTERM after the terminal's SIGINT, which must not cut the saving short.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.old: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self.old = {
                number: signal.signal(number, self._receive)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None and rank_of_environment() == 0:
            log.warning("stopping after this step; the state is being saved")
        self.received = self.received or number


def end_with_launcher() -> None:
    """From now on send this rank SIGTERM when the process that started it is gone, however that
    came (Linux).
    """
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG of <linux/prctl.h>


def end_undisturbed() -> None:
    """Ignore both signals from now on: the work of this process is done, and what it calls at its
    end is short.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
