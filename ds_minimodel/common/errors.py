"""Exceptions that the command line knows."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

LONGEST = 1000  # characters of a message


class UserError(Exception):
    """A mistake in a recipe, a file or a command line.

    The message is one line: what is wrong, where (file, key, line), what to do.
    The command line prints it without a traceback and exits with code 2.
    """

    def __str__(self) -> str:
        """The message as one printable line; control characters in the names and texts that it
        quotes are escaped.
        """
        text = printable(re.sub(r"\s*\n\s*", " ", super().__str__()).strip())
        return (
            text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[3 - LONGEST // 2 :]}"
        )


@contextlib.contextmanager
def one_line(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn any error of a foreign reader into a UserError that begins with file and `what`, and
    drop what it writes to standard error.

    A panic of Rust's code is no Exception, and is said to the descriptor itself.
    """
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
            os.dup2(nothing.fileno(), 2)
            yield
    except (KeyboardInterrupt, SystemExit, MemoryError, UserError):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
        raise UserError(f"{path}: {what} ({reason:.200})") from None
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def reason_of(fault: Mapping[str, object]) -> str:
    """What is wrong by one of pydantic's faults; what a check of ours raised, as it raised it."""
    return str(fault["msg"]).removeprefix("Value error, ")


def printable(text: str) -> str:
    """`text` with what a terminal would obey instead of show, such as control characters in a name,
    as escapes.
    """
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


class OtherRankFailed(Exception):
    """Another rank failed and has said why; this one ends without a message."""

    def __init__(self, rank: int, is_users_mistake: bool) -> None:
        super().__init__(f"rank {rank} failed")
        self.is_users_mistake = is_users_mistake


def is_out_of_memory(error: Exception) -> bool:
    """Whether it is Python's, or torch's of a device or of the host."""
    if isinstance(error, RuntimeError):
        return re.search("out of memory|can't allocate memory", str(error)) is not None
    return isinstance(error, MemoryError)
