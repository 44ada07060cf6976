"""Rendezvous of the ranks: the variables that mpirun does not set, and gloo's network interface."""

import fcntl
import os
import socket
import struct

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.ranks import mpi

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network interface


def prepare_rendezvous() -> None:
    """Set what torch.distributed reads from the environment, where the launcher has not."""
    if "RANK" not in os.environ:
        _ask_mpi()
    interface = _interface_of(source_address(os.environ["MASTER_ADDR"]))
    if interface:
        # Unless told, gloo takes the address of the host's own name, which on Debian is 127.0.1.1.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def source_address(destination: str) -> str | None:
    """This host's IPv4 address on the route to `destination` (nothing is sent); None where there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _ask_mpi() -> None:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT from MPI, which is then left alone."""
    comm = mpi.world()
    names = comm.allgather(socket.gethostname())
    meeting = None
    if comm.rank == 0:
        meeting = (os.environ.get("MASTER_ADDR") or _own_address(names), os.environ.get("MASTER_PORT") or free_port())
    address, port = comm.bcast(meeting)
    rank, size = comm.rank, comm.size
    mpi.end()
    if address is None:
        raise UserError(
            f"mpirun: {names[0]} finds no way to the other hosts by their names; say which address "
            f"of {names[0]} they reach: mpirun -x MASTER_ADDR=ADDRESS …"
        )
    local_rank = names[:rank].count(names[rank])
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _own_address(names: list[str]) -> str | None:
    other = next((name for name in names if name != names[0]), "127.0.0.1")
    return source_address(other)


def _interface_of(address: str | None) -> str | None:
    """Name of the network interface with this IPv4 address; None where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
