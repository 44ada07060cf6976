"""Detection of lost ranks and hosts: without it the others would wait for them for hours.

Every rank holds a TCP connection to rank 0. The kernel probes them and breaks those to a host that does not
answer; a process that is killed breaks its own.
"""

import atexit
import contextlib
import os
import selectors
import socket
import struct
import sys
import threading
from typing import cast

import torch.distributed as dist

IDLE, INTERVAL, PROBES = 10, 5, 3  # seconds of silence, seconds between probes, probes without an answer
GRACE = 60  # seconds to end in, after another rank ended without being lost
_RANK, _GOODBYE = struct.Struct("!I"), b"."


def end_with_lost_ranks(rank: int, group: dist.ProcessGroup | None) -> None:
    """From now on end this process, with one line and exit code 1, when another rank is lost.

    Lost is who is killed or whose host or network goes down: noticed at once where a process was killed, else
    after IDLE + INTERVAL * PROBES seconds. Who ends on its own, well or with an error, is no longer waited for
    after GRACE seconds. group: a process group of all ranks on a host backend.
    """
    address, size = os.environ["MASTER_ADDR"], dist.get_world_size()
    server: socket.socket | None = None
    if rank == 0:
        server = socket.create_server(("", 0), family=socket.getaddrinfo(address, None)[0][0], backlog=size)
    facts: list = [None] * size
    dist.all_gather_object(facts, (socket.gethostname(), server and server.getsockname()[1]), group=group)
    names = [f"rank {number} on {host}" for number, (host, _) in enumerate(facts)]
    if server is not None:
        with server:
            lines = dict(_accept(server, names) for _ in range(size - 1))
    else:
        line = socket.create_connection((address, facts[0][1]))
        line.sendall(_RANK.pack(rank))
        lines = {line: names[0]}
    for line in lines:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, IDLE),
            (socket.TCP_KEEPINTVL, INTERVAL),
            (socket.TCP_KEEPCNT, PROBES),
        ):
            line.setsockopt(socket.IPPROTO_TCP, option, value)
    atexit.register(_say_goodbye, list(lines))
    threading.Thread(target=_watch, args=(lines,), daemon=True).start()


def _accept(server: socket.socket, names: list[str]) -> tuple[socket.socket, str]:
    line, _ = server.accept()
    return line, names[_RANK.unpack(line.recv(_RANK.size, socket.MSG_WAITALL))[0]]


def _say_goodbye(lines: list[socket.socket]) -> None:
    for line in lines:
        with contextlib.suppress(OSError):  # that rank is gone already
            line.sendall(_GOODBYE)


def _watch(lines: dict[socket.socket, str]) -> None:
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                line = cast(socket.socket, key.fileobj)
                name = lines[line]
                if _last_word(line) != _GOODBYE:
                    _end(f"{name} is lost (it was killed, or its host or network is down)")
                selector.unregister(line)
                timer = threading.Timer(GRACE, _end, [f"{name} has ended, and this rank waits for it"])
                timer.daemon = True
                timer.start()


def _last_word(line: socket.socket) -> bytes:
    try:
        return line.recv(1)
    except OSError:  # reset by the other host, or the kernel's probes were not answered
        return b""


def _end(reason: str) -> None:
    print(f"ds-minimodel: {reason}; the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
    os._exit(1)
