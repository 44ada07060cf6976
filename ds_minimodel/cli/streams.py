"""Standard output and standard error: closed ones, and lines that show throughout."""

import contextlib
import os
import sys
from typing import NoReturn

from ds_minimodel.common.errors import printable


def open_closed() -> None:
    """Open the standard streams that are closed, whose numbers the next files would get."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115  (to the end)


def exit_unwritten(code: int) -> NoReturn:
    """End the process; what standard output does not take, Python would else try again."""
    try:
        sys.stdout.flush()
    except OSError:
        os._exit(code)
    sys.exit(code)


def say(line: str) -> None:
    """Print a line, printable throughout, on standard error; nothing more can be done where that
    fails.
    """
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)
