"""Exceptions that the command line knows."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping

# Of a message.
MAX_CHARACTERS = 1000


class UserError(Exception):
    """A mistake in a recipe, a file or a command line.

    The message is one line: what is wrong, where (file, key, line), what to do.
    The command line prints it without a traceback and exits with code 2.
    """

    def __str__(self) -> str:
        """Return the message as one printable line, without its middle where it is too long."""
        line = printable(re.sub(r"\s*\n\s*", " ", super().__str__()).strip())
        if len(line) <= MAX_CHARACTERS:
            return line
        half = MAX_CHARACTERS // 2
        return f"{line[:half]} … {line[3 - half :]}"


@contextlib.contextmanager
def one_line(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn any error of a foreign reader into a UserError; it asks nothing and prints nothing.

    A panic of Rust code is a BaseException, and Rust prints it to file descriptor 2 itself.

    Args:
        path: the file that is read, with which the message begins.
        what: what is wrong with it, which the message says next.
    """
    try:
        with _no_terminal():
            yield
    except (KeyboardInterrupt, SystemExit, MemoryError, UserError):
        raise
    except BaseException as error:
        # transformers takes an interrupt while it imports for a module that is missing.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            cause = cause.__cause__ or cause.__context__
        first_lines = " ".join(str(error).split("\n")[:2]).strip()
        reason = first_lines or type(error).__name__
        raise UserError(f"{path}: {what} ({reason:.200})") from None


@contextlib.contextmanager
def _no_terminal() -> Iterator[None]:
    """Let standard input and error lead to nothing, in this process and in what it starts."""
    stdin = sys.stdin
    # {descriptor: copy of what it led to}
    copies = {}
    with open(os.devnull, "r+") as nothing, contextlib.redirect_stderr(nothing):
        for descriptor in (0, 2):
            # A process may have been begun without one of them.
            with contextlib.suppress(OSError):
                copies[descriptor] = os.dup(descriptor)
                os.dup2(nothing.fileno(), descriptor)
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = stdin
            for descriptor, copy in copies.items():
                os.dup2(copy, descriptor)
                os.close(copy)


def reason_of(fault: Mapping[str, object]) -> str:
    """Return the message of one of pydantic's faults, without the prefix of our own checks."""
    return str(fault["msg"]).removeprefix("Value error, ")


def printable(text: str) -> str:
    """Return `text` with control characters, which a terminal would obey, as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


class OtherRankError(Exception):
    """Another rank has failed and said why, so this rank ends without a message.

    Args:
        rank: the rank that failed.
        is_users_mistake: whether it ended by a UserError.
    """

    def __init__(self, rank: int, *, is_users_mistake: bool) -> None:
        super().__init__(f"rank {rank} failed")
        self.is_users_mistake = is_users_mistake


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out: Python's, or torch's on a device or on the host."""
    if isinstance(error, RuntimeError):
        return re.search("out of memory|can't allocate memory", str(error)) is not None
    return isinstance(error, MemoryError)
