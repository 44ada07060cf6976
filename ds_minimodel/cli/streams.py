"""Standard streams: closed ones are opened, lines are made printable."""

import contextlib
import os
import sys
from typing import NoReturn

from ds_minimodel.common.errors import printable


def open_closed() -> None:
    """Open the standard streams that are closed: the next files would get their numbers."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115  (it stays open to the end)


def exit_unwritten(code: int) -> NoReturn:
    """End the process without another try to write what standard output does not take."""
    try:
        sys.stdout.flush()
    except OSError:
        os._exit(code)
    sys.exit(code)


def say(line: str) -> None:
    """Print a line on standard error, with control characters escaped.

    Where that fails, nothing more can be done.
    """
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)
