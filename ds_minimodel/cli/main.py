"""`ds-minimodel`: the command line and its exit codes. Nothing heavy is imported before a command
needs it.
"""

import argparse
import contextlib
import difflib
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ds_minimodel import __version__
from ds_minimodel.cli import costs, hf, look, sample, serve, steps, streams
from ds_minimodel.common.errors import OtherRankFailed, UserError, is_out_of_memory
from ds_minimodel.common.retired import INSTEAD, retired
from ds_minimodel.launch import hosts as launch
from ds_minimodel.launch import process

USER_ERROR, FAILURE = 2, 1
_CONNECTION_LOST = "gloo/transport/tcp"  # in what gloo says of a connection that is broken


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 the user's mistake (one line), 75 saved after SIGTERM, 1
    anything else.
    """
    streams.open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of names in any bytes
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    rank = 0
    try:
        try:
            _check_environment()
            rank = process.rank_of_environment()
            sys.exit(_run(sys.argv[1:] if arguments is None else arguments))
        finally:
            if arguments is None:
                process.end_undisturbed()
    except UserError as error:
        streams.say(f"ds-minimodel: {f'rank {rank}: ' if rank else ''}{error}")
        sys.exit(USER_ERROR)
    except process.Stopped as stopped:
        if rank == 0:
            streams.say(f"ds-minimodel: {stopped}")
        ends = (
            0 if process.launched() else launch.PREEMPTED
        )  # a launcher takes what is not 0 for a failure of the rank
        sys.exit(ends if stopped.signal_number == signal.SIGTERM else launch.INTERRUPTED)
    except OtherRankFailed as error:
        sys.exit(USER_ERROR if error.is_users_mistake else FAILURE)
    except RuntimeError as error:
        if not (process.launched() and _CONNECTION_LOST in str(error)):
            raise
        streams.say(
            f"ds-minimodel: rank {rank}: another rank is gone; the same command goes on from the "
            "last checkpoint"
        )
        sys.exit(FAILURE)
    except KeyboardInterrupt:
        streams.say("ds-minimodel: interrupted; the same command goes on from what is complete")
        sys.exit(FAILURE)
    except BrokenPipeError:
        os._exit(FAILURE)


def _check_environment() -> None:
    """UserError where the current folder is gone."""
    try:
        os.getcwd()
    except OSError:
        raise UserError("the current folder is gone; change to one that is there") from None
    os.environ["MPLBACKEND"] = (
        "agg"  # nothing is shown on a screen, and matplotlib does not load with nonsense there
    )


def _run(arguments: Sequence[str]) -> int:
    """The exit code of a command that does not fail; UserError, too, where its answer cannot be
    printed.
    """
    with _clear_errors(), streams.checked_output():
        options = parse(arguments)
        return options.run(options) or 0


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn errors without a message of their own, of files that cannot be used or of memory, into a
    UserError.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise UserError(
                f"{os.fsdecode(error.filename)}: {error.strerror}; fix this and run again"
            ) from error
        if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
            raise UserError(
                f"{error.object:.200}: not a name in UTF-8, as all must have that is noted; rename "
                "it"
            ) from None
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"out of memory ({str(error).partition(chr(10))[0]}); halve engine.micro_batch_size, "
            "which changes no result, or lower the model's sizes; `ds-minimodel plan` says which "
            "sizes fit"
        ) from error


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # --rank is no --ranks

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Where an option is no command's but nearly one, that is said, and not what else is
        missing.
        """
        known, words = self._option_string_actions, [] if self._subparsers else list(args or ())
        for place, word in enumerate(words):
            name = word.partition("=")[0]
            near = difflib.get_close_matches(name, known, 1, 0.75)
            if name.startswith("--") and name not in known and near:
                self.error(
                    f"unrecognized arguments: {' '.join(words[place : place + 2])} (did you mean "
                    f"{near[0]}?)"
                )
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` shows what there is")

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse passes over a disk that is full


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line into options, of which `run` is the function that takes them and does
    the command.

    Overrides (key=value) may stand anywhere after the recipe, between options too, which argparse
    does not do.
    """
    parser = _Parser(
        prog="ds-minimodel",
        description="Extend a pretrained language model to new languages by mini-model adaptation.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # the deepspeed launcher adds it
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for part in (steps, look, costs, sample, hf, serve):
        part.add_arguments(commands)
    try:
        options, rest = parser.parse_known_args(arguments)
    except UserError:
        if said := _retired(arguments):
            raise UserError(said) from None
        raise
    overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    unknown = [text for text in rest if text not in overrides]
    if unknown or (overrides and not hasattr(options, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(unknown or overrides)}")
    if overrides:
        options.overrides = [*options.overrides, *overrides]
    return options


def _retired(arguments: Sequence[str]) -> str | None:
    """What is said of a command line that earlier commits knew; None of any other."""
    for name in INSTEAD:
        program, *words = name.split()
        if program == "ds-minimodel" and words[0] == arguments[0] and {*words} <= {*arguments}:
            return f"{name} {retired(name)}"
    return None
