"""How this process was started, alone or as a rank of a launcher, and how signals end it."""

import ctypes
import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

from ds_minimodel.common.errors import UserError

log = logging.getLogger(__name__)

# A constant of <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1

STOPPING = (signal.SIGINT, signal.SIGTERM)

# The variables that a launcher sets for torch's rendezvous of the ranks.
_RENDEZVOUS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Variables of Open MPI, and of MPICH and its kin.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def processes_of_mpirun() -> int:
    """Return how many processes mpirun has started with this one; 0 without mpirun."""
    return number_in_environment(*_MPI_SIZES)


def launched() -> bool:
    """Return whether a launcher started this process as one of several ranks."""
    return "RANK" in os.environ or processes_of_mpirun() > 0


def rank_of_environment() -> int:
    """Return this process's rank, as its launcher has set it; 0 without a launcher."""
    return number_in_environment("RANK", *_MPI_RANKS)


def number_in_environment(*names: str) -> int:
    """Return the number in the first of these variables that is set; 0 where none is.

    Raises:
        UserError: the variable holds no number.
    """
    for name in names:
        value = os.environ.get(name)
        if value is None:
            continue
        if not value.isdecimal():
            raise UserError(f"{name}={value}: no number, as a launcher would set; unset {name}")
        return int(value)
    return 0


def check_rendezvous() -> None:
    """Raise UserError where a rank is not told how many there are, or where to meet them."""
    missing = [name for name in _RENDEZVOUS if name not in os.environ]
    if missing:
        raise UserError(
            f"a launcher has set no {', '.join(missing)}; start ranks by --ranks, torchrun or "
            "deepspeed (mpirun serves corpus, tokenizer and prepare alone), or unset RANK"
        )


class Stopped(Exception):
    """Training was asked to stop, by SIGINT or SIGTERM; its state is saved.

    Args:
        signal_number: the signal's.
        message: what is said of it.
    """

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


class StopSignals:
    """Context in which SIGINT or SIGTERM is recorded; only a SIGINT after it stops at once.

    Launchers send SIGTERM after the terminal's SIGINT, which must not cut the saving short.

    Attributes:
        received: the number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self.handlers = {number: signal.signal(number, self._receive) for number in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None and rank_of_environment() == 0:
            log.warning("stopping after this step; the state is being saved")
        self.received = self.received or number


def end_with_launcher() -> None:
    """Let Linux send this rank SIGTERM once the process that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_undisturbed() -> None:
    """Ignore both signals from now on: this process's work is done, and its end takes no time."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
