"""Standard output and standard error: what cannot be printed there, and lines that show
throughout.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from ds_minimodel.common.errors import UserError, printable

# Of a write to standard output; those to files come with the file's name, by clear_write_errors.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def open_closed() -> None:
    """Open the standard streams that are closed, whose numbers the next files would get; an answer
    is not taken.
    """
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Write out, at the end of the block, what was printed in it; UserError where standard output
    takes no more.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _NOT_WRITTEN:
            raise
        with contextlib.suppress(OSError, ValueError):  # Python would else try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UserError(
            f"standard output: cannot write: {error.strerror}; what was asked for is not shown"
        ) from None


def say(line: str) -> None:
    """Print a line, printable throughout, on standard error; nothing more can be done where that
    fails.
    """
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)
