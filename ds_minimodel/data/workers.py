"""A parallel map over processes that keeps the order and holds few items at once."""

import collections
import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from ds_minimodel.errors import UserError


def ordered_map(function, items, workers):
    """Yield function(item) for each item, in order, computed by `workers` processes (1: in this one).

    Two items a worker are under way at any time. Raises UserError where a worker was killed; an error
    in `function` is raised here in its item's turn.
    """
    if workers == 1:
        yield from map(function, items)
        return
    with process_pool(workers) as pool:
        yield from in_order(functools.partial(pool.submit, function), items, 2 * workers)


def in_order(submit, items, window):
    """Yield the results of submit(item), a Future, for each item, in order; `window` at most at a time."""
    pending = collections.deque()
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


@contextlib.contextmanager
def process_pool(workers):
    """Yield a pool of worker processes; UserError where one of them was killed."""
    context = multiprocessing.get_context("spawn")       # fork is not safe beside the threads of torch
    with ProcessPoolExecutor(workers, context, initializer=_follow_parent) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            raise UserError("a worker process was killed (out of memory?); what is complete is kept: "
                            "run again, with fewer data.workers") from None


def _follow_parent():
    """Leave Ctrl-C to the parent, and end when it ends: a killed one cannot tell its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch():
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
