"""Processes that mpirun started, for `prepare`. mpi4py is imported here alone, and only under mpirun."""

import os
from typing import Any

from ds_minimodel.common.errors import UserError

# Open MPI; MPICH and its kin.
SIZES, RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def started() -> bool:
    """Whether mpirun started this process."""
    return any(name in os.environ for name in SIZES)


def rank() -> int:
    """This process's rank as mpirun has set it; 0 without mpirun."""
    return int(next((os.environ[name] for name in RANKS if name in os.environ), 0))


def world() -> Any:
    """MPI's communicator of all processes; UserError where mpi4py is missing or of another MPI than mpirun.

    Call `end` where all processes end well; one that ends without it makes mpirun end the others.
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
    started_processes = int(next(os.environ[name] for name in SIZES if name in os.environ))
    if MPI.COMM_WORLD.size != started_processes:
        raise UserError(
            f"mpirun started {started_processes} processes, of which mpi4py sees "
            f"{MPI.COMM_WORLD.size}: it loads another MPI ({_line(MPI.Get_library_version())})"
        )
    return MPI.COMM_WORLD


def end() -> None:
    """Finalise MPI; returns when all processes have called it."""
    from mpi4py import MPI

    MPI.Finalize()


def _line(text: object) -> str:
    return str(text).strip().splitlines()[0]
