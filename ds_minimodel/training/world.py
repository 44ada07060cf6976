"""The ranks that train together, whoever started them: --ranks, torchrun or deepspeed."""

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import psutil
import torch
import torch.distributed as dist

from ds_minimodel.common.errors import OtherRankError, UserError
from ds_minimodel.launch.process import check_rendezvous, launched
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.gpu import refuse, why_no_code
from ds_minimodel.ops.parallel import SOLO, Group, split_world
from ds_minimodel.training.run import replicas_of
from ds_minimodel.training.zero import start

log = logging.getLogger(__name__)
# Seconds for the ranks to meet, before one says that it waits.
PATIENCE = 60.0
STILL_WAITING = (
    "ds-minimodel: %s still waits for the other ranks at %s; without a launcher unset RANK and "
    "WORLD_SIZE"
)
# For collectives on the host: a rank may wait for another that reads, scores or hashes for hours.
HOST_TIMEOUT = timedelta(days=7)
# Seconds of silence before a probe, seconds between probes, and milliseconds for which a host may
# leave anything unanswered.
TCP_OPTIONS = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_USER_TIMEOUT: 60_000}

Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """The ranks that train together.

    Attributes:
        rank: of this process, from 0.
        size: number of ranks.
        device: of this rank.
        host_group: carries small numbers between hosts without the device.
        data: the ranks among which samples are divided, each with a replica of the model, or with
            the same part of one.
        tensor: the ranks that hold the parts of one replica, and see the same samples.
    """

    rank: int
    size: int
    device: torch.device
    host_group: dist.ProcessGroup | None
    data: Group
    tensor: Group

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files and speaks to the user."""
        return self.rank == 0

    def sum(self, *numbers: int) -> tuple[int, ...]:
        """Return the sums over ranks of host integers; never waits for the device."""
        if self.size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(total, group=self.host_group)
        return tuple(total.tolist())

    def broadcast_from_rank0(self, compute: Callable[[], Value]) -> Value:
        """Return on every rank the picklable value that `compute()` gives on rank 0.

        If it fails, every rank ends.
        """
        return cast(Value, self.all_gather_object(lambda: compute() if self.is_main else None)[0])

    def all_gather_object(self, compute: Callable[[], Value]) -> list[Value]:
        """Return on every rank the picklable values of `compute()`, in the order of ranks.

        Where it fails on some ranks, every rank ends: those with their error, the others with
        OtherRankError, so that none waits for another that is gone.
        """
        if self.size == 1:
            return [compute()]
        value = None
        error = None
        state = "ok"
        try:
            value = compute()
        except Exception as caught:
            error = caught
            state = "user error" if isinstance(error, UserError) else "failed"
        outcomes: list[Any] = [None] * self.size
        dist.all_gather_object(outcomes, (state, value), group=self.host_group)
        if error is not None:
            raise error
        for rank, (state, _) in enumerate(outcomes):
            if state != "ok":
                raise OtherRankError(rank, is_users_mistake=state == "user error")
        return [value for _, value in outcomes]

    def replicated(self, compute: Callable[[], Value]) -> Value:
        """Return the value of `compute()`, which has the same outcome on every rank.

        Each computes it for itself, and nothing is exchanged. A UserError is raised on rank 0
        alone; the other ranks raise OtherRankError.
        """
        try:
            return compute()
        except UserError:
            if self.is_main:
                raise
            raise OtherRankError(0, is_users_mistake=True) from None


def join_ranks(tensor_parallel: int = 1) -> World:
    """Join the ranks, or make a world of one where no launcher is involved.

    Args:
        tensor_parallel: number of ranks that hold one replica.

    Raises:
        UserError: the ranks do not meet, or tensor_parallel does not divide them.
    """
    start.configure()
    if not dist.is_initialized():
        if not launched():
            dist.init_process_group(start.backend(), store=dist.HashStore(), rank=0, world_size=1)
            os.environ.setdefault("LOCAL_RANK", "0")
        else:
            check_rendezvous()
            name_interface()
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        rank_and_size = (
            f"RANK={os.environ.get('RANK')} of WORLD_SIZE={os.environ.get('WORLD_SIZE')}"
        )
        waiting = threading.Timer(PATIENCE, log.warning, [STILL_WAITING, rank_and_size, place])
        waiting.daemon = True
        waiting.start()
        try:
            start.init_distributed()
        except dist.DistError as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"the ranks do not meet at {place} ({reason})") from None
        finally:
            waiting.cancel()
        atexit.register(start.end_distributed)
    device = start.device(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        configure_cpu()
    rank = dist.get_rank()
    size = dist.get_world_size()
    host_group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
    world = World(rank, size, device, host_group, Group(rank, size), SOLO)
    if size > 1:
        break_dead_connections()
    if device.type == "cuda":
        reasons = world.all_gather_object(lambda: why_no_code(device))
        world.replicated(lambda: refuse(reasons))
    world.replicated(lambda: replicas_of(size, tensor_parallel))
    data, tensor = split_world(rank, size, tensor_parallel)
    return replace(world, data=data, tensor=tensor)


def name_interface() -> None:
    """Name gloo the network interface on the way to where the ranks meet, unless the user has.

    It else takes the address of the host's own name, which on Debian is 127.0.1.1.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent, whatever the port.
            probe.connect((os.environ["MASTER_ADDR"], 9))
        except OSError:
            # There is no way there, which is said when the ranks meet.
            return
        address_here = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if address_here in (address.address for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def break_dead_connections() -> None:
    """Have the kernel break connections of this process whose other host is silent for a minute.

    TCP would else try for a quarter of an hour, and gloo wait as long as a collective may take. To
    be called again where groups have been made since.
    """
    for connection in psutil.Process().net_connections("tcp"):
        with socket.socket(fileno=os.dup(connection.fd)) as copy:
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in TCP_OPTIONS.items():
                copy.setsockopt(socket.IPPROTO_TCP, option, value)
