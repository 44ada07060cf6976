"""`ds-minimodel`: the command line and its exit codes. Nothing heavy is imported before a command
needs it.
"""

import argparse
import difflib
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ds_minimodel import __version__
from ds_minimodel.cli import costs, hf, look, sample, serve, steps, streams
from ds_minimodel.common.errors import OtherRankError, UserError, is_out_of_memory
from ds_minimodel.common.retired import INSTEAD, retired
from ds_minimodel.launch import hosts as launch
from ds_minimodel.launch import process

USER_ERROR = 2
FAILURE = 1
_CONNECTION_LOST = "gloo/transport/tcp"  # in what gloo says of a connection that is broken


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 the user's mistake (one line), 75 saved after SIGTERM, 1
    anything else.
    """
    streams.open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of names in any bytes
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    # Nothing is shown on a screen, and matplotlib does not load with nonsense there.
    os.environ["MPLBACKEND"] = "agg"
    rank = 0
    try:
        try:
            rank = process.rank_of_environment()
            options = parse(sys.argv[1:] if arguments is None else arguments)
            sys.exit(options.run(options) or 0)
        finally:
            if arguments is None:
                process.end_undisturbed()
            sys.stdout.flush()
    except process.Stopped as stopped:
        if rank == 0:
            streams.say(f"ds-minimodel: {stopped}")
        ends = (
            0 if process.launched() else launch.PREEMPTED
        )  # a launcher takes what is not 0 for a failure of the rank
        sys.exit(ends if stopped.signal_number == signal.SIGTERM else launch.INTERRUPTED)
    except OtherRankError as error:
        sys.exit(USER_ERROR if error.is_users_mistake else FAILURE)
    except KeyboardInterrupt:
        streams.say("ds-minimodel: interrupted; the same command goes on from what is complete")
        sys.exit(FAILURE)
    except Exception as error:
        if not isinstance(error, BrokenPipeError):
            said = f"rank {rank}: {_line_of(error)}" if rank else _line_of(error)
            streams.say(f"ds-minimodel: {said}")
        is_fault = isinstance(error, BrokenPipeError) or _CONNECTION_LOST in str(error)
        streams.exit_unwritten(FAILURE if is_fault else USER_ERROR)


def _line_of(error: Exception) -> str:
    """What is said of an error in place of a traceback; raises one that is a fault of the program.

    What the system and libraries say of files that cannot be used is said as they do.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{place}{error.strerror or error}; fix this and run again"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object:.200}: {error.reason} in UTF-8; rename it"
    if is_out_of_memory(error):
        return (
            f"out of memory ({str(error).partition(chr(10))[0]}); halve engine.micro_batch_size, "
            "which changes no result, or lower the model's sizes; `ds-minimodel plan` says which "
            "sizes fit"
        )
    if process.launched() and _CONNECTION_LOST in str(error):
        return "another rank is gone; the same command goes on from the last checkpoint"
    raise error


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # --rank is no --ranks

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Where an option is no command's but nearly one, that is said, and not what else is
        missing.
        """
        known = self._option_string_actions
        words = [] if self._subparsers else list(args or ())
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
    if hasattr(options, "rest_of"):
        more = [text for text in rest if not text.startswith("-")]
        setattr(options, options.rest_of, [*getattr(options, options.rest_of), *more])
        rest = [text for text in rest if text not in more]
    overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    unknown = [text for text in rest if text not in overrides]
    if unknown and (said := _retired(arguments)):
        raise UserError(said)
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
