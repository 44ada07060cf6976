"""Standard streams and the encoding of this process: usable however it was started."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator

from ds_minimodel.common.errors import UserError, printable

# Of a write to standard output; those to files come with the file's name, by clear_write_errors.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def restart_in_utf8() -> None:
    """Replace a process whose locale is not UTF-8 (LC_ALL=POSIX) by one in Python's UTF-8 mode.

    Names in command lines, recipes and file systems are UTF-8, and what is printed is; Python itself does so unless
    it is told otherwise.
    """
    if sys.getfilesystemencoding() != "utf-8":
        command = [sys.executable, "-m", "ds_minimodel", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONUTF8": "1"})


def configure() -> None:
    """Give a process that was started without some of its standard streams empty ones; print names of any bytes.

    A file opened later would else take their place, and what libraries print would go into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is that of the stream. Standard output's is only for reading: what a command
            # prints there must not get lost unsaid.
            descriptor = os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Write out, at the end of the block, what was printed in it; UserError where standard output takes no more."""
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
        raise UserError(f"standard output: cannot write: {error.strerror}; what was asked for is not shown") from None


def say(line: str) -> None:
    """Print a line, printable throughout, on standard error; nothing more can be done where that fails."""
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)
