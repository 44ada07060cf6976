"""Ranks under mpirun, on one host or many, that compute for the first of them; it alone reads and writes."""

from ds_minimodel.data.workers import in_order, process_pool
from ds_minimodel.errors import Elsewhere, UserError


class Ranks:
    """The processes of an MPI communicator. `is_main`: whether this one is the first."""

    def __init__(self, comm):
        self.comm, self.is_main, self.executor = comm, comm.rank == 0, None

    def from_main(self, compute):
        """The picklable value that `compute()` gives on rank 0, on every rank.

        The other ranks wait for it, without load on their cores, and compute what it hands to `ordered_map`.
        If it fails, every rank ends: rank 0 with the error, the others with Elsewhere.
        """
        from mpi4py.futures import MPICommExecutor      # not above: a worker process must not meet MPI

        state = value = error = None
        with MPICommExecutor(self.comm) as self.executor:       # the others stay in here until rank 0 leaves
            if self.is_main:
                try:
                    state, value = "ok", compute()
                except BaseException as caught:
                    state, error = "user error" if isinstance(caught, UserError) else "failed", caught
        state, value = self.comm.bcast((state, value))
        if error is not None:
            raise error
        if state != "ok":
            raise Elsewhere(0, state == "user error")
        return value

    def ordered_map(self, function, items):
        """Yield function(item) for each item, in order, computed on all ranks; on rank 0, within `from_main`.

        Two items a rank are under way at any time. An error in `function` is raised here in its item's turn.
        """
        here = []
        with process_pool(1) as pool:       # for rank 0's share: itself it hands out, reads and writes

            def submit(item):
                here[:] = [future for future in here if not future.done()]
                if len(here) < 2 or self.comm.size == 1:
                    here.append(pool.submit(function, item))
                    return here[-1]
                return self.executor.submit(function, item)

            yield from in_order(submit, items, 2 * self.comm.size)
