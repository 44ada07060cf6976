"""Parallel maps that keep the order and hold few items at once: over processes of this host, or over MPI ranks."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ds_minimodel.common.errors import OtherRankFailed, UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """Yield function(item) for each item, in order, computed by `workers` processes (1: in this one).

    Two items a worker are under way at any time. Raises UserError where a worker was killed; an error
    in `function` is raised here in its item's turn.
    """
    if workers == 1:
        yield from map(function, items)
        return
    with contextlib.closing(ProcessPool(workers)) as pool:
        yield from results_in_order(lambda item: pool.submit(function, item), items, 2 * workers)


def results_in_order(submit: Callable[[Item], Future[Result]], items: Iterable[Item], window: int) -> Iterator[Result]:
    """Yield the results of submit(item), a Future, for each item, in order; `window` at most at a time."""
    pending: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) == window:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


class ProcessPool:
    """Worker processes that call functions. A worker imports what a function needs, and never the main script."""

    def __init__(self, workers: int):
        self._threads = ThreadPoolExecutor(workers)  # one for each worker, which it starts and waits for
        self._own = threading.local()
        self._workers: list[subprocess.Popen[bytes]] = []

    def submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        """The result of function(item), both picklable; UserError where its worker is killed."""
        return self._threads.submit(self._call, function, item)

    def close(self) -> None:
        """Wait for what is under way, and end the workers."""
        self._threads.shutdown()
        for worker in self._workers:
            with contextlib.suppress(BrokenPipeError), worker:  # closes its pipes and waits for it
                pass

    def _call(self, function: Callable[[Item], Result], item: Item) -> Result:
        if not hasattr(self._own, "worker"):
            self._own.worker = subprocess.Popen(
                [sys.executable, "-P", "-c", _WORKER, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._workers.append(self._own.worker)
        requests, replies = self._own.worker.stdin, self._own.worker.stdout
        request = pickle.dumps((function, item))
        try:
            requests.write(request)
            requests.flush()
            result, error = pickle.load(replies)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise UserError(
                "a worker process was killed (out of memory?); what is complete is kept: "
                "run again, with fewer data.workers"
            ) from None
        if error is not None:
            raise error
        return result


# Ctrl-C is left to the parent; -P and the parent's sys.path: modules are those that the parent would find.
_WORKER = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import sys
sys.path[:] = sys.argv[1:]
from ds_minimodel.data.workers import answer_requests
answer_requests()
"""


def answer_requests() -> None:
    """Be a worker process: answer requests of standard input on standard output until the parent ends."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no reply
    # A killed parent leaves the end of the file, at times within a request, or nobody who reads.
    with contextlib.suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):
        while True:
            function, item = pickle.load(requests)
            try:
                reply = pickle.dumps((function(item), None))
            except Exception as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                reply = pickle.dumps((None, error))
            replies.write(reply)
            replies.flush()


# Ranks under mpirun, on one host or many, that compute for rank 0; it alone reads and writes.


class MpiRanks:
    """The processes of an MPI communicator. `is_main`: whether this one is rank 0."""

    def __init__(self, comm: Any):
        self.comm, self.is_main = comm, comm.rank == 0
        self.executor: Any = None

    def from_main(self, compute: Callable[[], Result]) -> Result:
        """The picklable value that `compute()` gives on rank 0, on every rank.

        The other ranks wait for it, without load on their cores, and compute what it hands to `ordered_map`.
        If it fails, every rank ends: rank 0 with the error, the others with OtherRankFailed.
        """
        from mpi4py.futures import MPICommExecutor  # not above: a worker process must not meet MPI

        state: Any = None
        value: Any = None
        error: BaseException | None = None
        with MPICommExecutor(self.comm) as self.executor:  # the others stay in here until rank 0 leaves
            if self.is_main:
                try:
                    state, value = "ok", compute()
                except BaseException as caught:
                    state, error = "user error" if isinstance(caught, UserError) else "failed", caught
        state, value = self.comm.bcast((state, value))
        if error is not None:
            raise error
        if state != "ok":
            raise OtherRankFailed(0, state == "user error")
        return value

    def ordered_map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Yield function(item) for each item, in order, computed on all ranks; on rank 0, within `from_main`.

        Two items a rank are under way at any time. An error in `function` is raised here in its item's turn.
        """
        here: list[Future[Result]] = []  # what this rank's own worker computes
        with contextlib.closing(
            ProcessPool(1)
        ) as pool:  # for rank 0's share: the rank itself hands out items, reads and writes

            def submit(item: Item) -> Future[Result]:
                here[:] = [future for future in here if not future.done()]
                if len(here) < 2 or self.comm.size == 1:
                    here.append(pool.submit(function, item))
                    return here[-1]
                return self.executor.submit(function, item)

            yield from results_in_order(submit, items, 2 * self.comm.size)
