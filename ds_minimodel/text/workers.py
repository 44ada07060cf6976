"""Parallel maps, over processes of this host or MPI ranks, keep the order and hold few items."""

from __future__ import annotations

import collections
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import ModuleType
from typing import Any, TypeVar

from ds_minimodel.common.errors import OtherRankError, UserError

# Chunks of text for which no other process is started.
FEW_CHUNKS = 8
Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, few: int = 0
) -> Generator[Result, None, None]:
    """Yield function(item) for each item, in order; two items a worker are under way at any time.

    Args:
        function: an error in it is raised here in its item's turn.
        items: are taken as they are needed.
        workers: processes; with one the work is done in this one.
        few: where there are at most so many items, the work is done in this process.

    Raises:
        UserError: A worker was killed.
    """
    items = iter(items)
    first = [*itertools.islice(items, few + 1)]
    items = itertools.chain(first, items)
    if workers == 1 or len(first) <= few:
        yield from map(function, items)
        return
    with process_pool(workers) as pool:
        yield from results_in_order(lambda item: pool.submit(function, item), items, 2 * workers)


def results_in_order(
    submit: Callable[[Item], Future[Result]], items: Iterable[Item], window: int
) -> Iterator[Result]:
    """Yield the result of submit(item) for each item, in order.

    Args:
        submit: begins the work on an item.
        items: are taken as they are needed.
        window: how many are under way at most.

    Raises:
        UserError: A worker was killed.
    """
    pending: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) == window:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed (out of memory?); what is complete is kept: run again, "
            "with fewer data.workers"
        ) from None
    finally:
        for future in pending:
            future.cancel()


class _Pool(ProcessPoolExecutor):
    """Processes that import what they call, and never the main script.

    Without a guard it would run in each of them.
    """

    def submit(self, *call: Any, **named: Any) -> Future[Any]:
        """Call in a process, with a main module of nothing, which multiprocessing looks at."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return super().submit(*call, **named)
        finally:
            sys.modules["__main__"] = main


def process_pool(workers: int) -> Executor:
    """Start processes, which are not forked, as libraries have threads here.

    Ctrl-C is left to this process.
    """
    return _Pool(workers, multiprocessing.get_context("spawn"), _be_worker)


def _be_worker() -> None:
    # A chunk's lists of ids are thousands of young objects without a cycle.
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End where the parent was killed: concurrent.futures would wait for its calls for good."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0]


class MpiRanks:
    """The ranks under mpirun, on one host or many, compute for rank 0, which reads and writes.

    Attributes:
        comm: the communicator.
        is_main: whether this one is rank 0.
    """

    def __init__(self, comm: Any):
        self.comm = comm
        self.is_main = comm.rank == 0
        self.executor: Any = None

    @classmethod
    def join(cls, processes: int) -> MpiRanks:
        """Meet all of the `processes` that mpirun has started; mpi4py is imported here alone.

        Call `end` where all processes end well; one that ends without makes mpirun end the others.

        Raises:
            UserError: mpi4py is missing or of another MPI.
        """
        try:
            import mpi4py

            # Else a process that failed would wait at its exit for all others.
            mpi4py.rc.finalize = False
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise UserError(
                "mpirun: ranks are found through mpi4py, which does not load "
                f"({_first_line(error)}); pip install 'ds_minimodel[mpi]'"
            ) from None
        if MPI.COMM_WORLD.size != processes:
            raise UserError(
                f"mpirun started {processes} processes, of which mpi4py sees "
                f"{MPI.COMM_WORLD.size}: it loads another MPI "
                f"({_first_line(MPI.Get_library_version())})"
            )
        return cls(MPI.COMM_WORLD)

    @staticmethod
    def end() -> None:
        """Finalise MPI; returns when all processes have called it."""
        from mpi4py import MPI

        MPI.Finalize()

    def broadcast_from_rank0(self, compute: Callable[[], Result]) -> Result:
        """Return on every rank the picklable value that `compute()` gives on rank 0.

        The other ranks wait for it, without load on their cores, and compute what it hands to
        `ordered_map`. If it fails, every rank ends: rank 0 with the error, the others with
        OtherRankError.
        """
        # Not at the top: a worker process must not meet MPI.
        from mpi4py.futures import MPICommExecutor

        state: Any = None
        value: Any = None
        error: BaseException | None = None
        # The others stay in here until rank 0 leaves.
        with MPICommExecutor(self.comm) as self.executor:
            if self.is_main:
                try:
                    value = compute()
                    state = "ok"
                except BaseException as caught:
                    error = caught
                    state = "user error" if isinstance(caught, UserError) else "failed"
        state, value = self.comm.bcast((state, value))
        if error is not None:
            raise error
        if state != "ok":
            raise OtherRankError(0, is_users_mistake=state == "user error")
        return value

    def ordered_map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[Result, None, None]:
        """Yield function(item) for each item, in order, computed on all ranks.

        It is called on rank 0, in `broadcast_from_rank0`. Two items a rank are under way at any
        time. An error in `function` is raised here in its item's turn.
        """
        # Rank 0 hands out items, reads and writes: its share of the work is done by a worker.
        here: list[Future[Result]] = []
        with process_pool(1) as pool:

            def submit(item: Item) -> Future[Result]:
                here[:] = [future for future in here if not future.done()]
                if len(here) < 2 or self.comm.size == 1:
                    here.append(pool.submit(function, item))
                    return here[-1]
                return self.executor.submit(function, item)

            yield from results_in_order(submit, items, 2 * self.comm.size)
