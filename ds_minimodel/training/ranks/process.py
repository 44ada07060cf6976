"""How this process was started, alone or as a rank by a launcher or by mpirun, and how signals end it.

mpi4py is imported here alone, and only under mpirun, which starts ranks of `prepare`.
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

_MEETING = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what a launcher sets
# Open MPI; MPICH and its kin.
_MPI_SIZES, _MPI_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def started_by_mpirun() -> bool:
    """Whether mpirun started this process."""
    return any(name in os.environ for name in _MPI_SIZES)


def launched() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    return "RANK" in os.environ or started_by_mpirun()


def rank_of_environment() -> int:
    """This process's rank as its launcher has set it; 0 without a launcher."""
    return int(next((os.environ[name] for name in ("RANK", *_MPI_RANKS) if name in os.environ), 0))


def check_meeting() -> None:
    """UserError where a rank is not told how many there are, or where to meet them."""
    missing = [name for name in _MEETING if name not in os.environ]
    if missing:
        raise UserError(
            f"a launcher has set no {', '.join(missing)}; start ranks by --ranks, torchrun or deepspeed (mpirun: of "
            "`prepare` alone), or unset RANK"
        )


def join_mpi() -> Any:
    """MPI's communicator of all processes; UserError where mpi4py is missing or of another MPI than mpirun.

    Call `end_mpi` where all processes end well; one that ends without it makes mpirun end the others.
    """
    try:
        import mpi4py

        mpi4py.rc.finalize = False  # else a process that failed would wait at its exit for all others
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpirun: ranks are found through mpi4py, which does not load ({_line(error)}); "
            "pip install 'ds_minimodel[mpi]'"
        ) from None
    started_processes = int(next(os.environ[name] for name in _MPI_SIZES if name in os.environ))
    if MPI.COMM_WORLD.size != started_processes:
        raise UserError(
            f"mpirun started {started_processes} processes, of which mpi4py sees "
            f"{MPI.COMM_WORLD.size}: it loads another MPI ({_line(MPI.Get_library_version())})"
        )
    return MPI.COMM_WORLD


def end_mpi() -> None:
    """Finalise MPI; returns when all processes have called it."""
    from mpi4py import MPI

    MPI.Finalize()


def _line(text: object) -> str:
    return str(text).strip().splitlines()[0]


class Stopped(Exception):
    """Training was asked to stop (SIGINT or SIGTERM); its state is saved."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


class StopSignals:
    """Records SIGINT or SIGTERM instead of ending the process; only a SIGINT after it stops at once.

    Launchers send SIGTERM after the terminal's SIGINT, which must not cut the saving short.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.old: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self.old = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
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
    """From now on send this rank SIGTERM when the process that started it is gone, however that came (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG of <linux/prctl.h>


def end_undisturbed() -> None:
    """Ignore both signals from now on: the work of this process is done, and what it calls at its end is short."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
