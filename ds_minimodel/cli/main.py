"""`ds-minimodel`: the command line and its exit codes.

Nothing heavy is imported before a command needs it.
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
from ds_minimodel.cli import costs, decoders, hf, look, sample, steps, streams
from ds_minimodel.common.errors import OtherRankError, UserError, is_out_of_memory
from ds_minimodel.common.retired import INSTEAD, retired
from ds_minimodel.launch import hosts as launch
from ds_minimodel.launch import process

USER_ERROR = 2
FAILURE = 1
_CONNECTION_LOST = "gloo/transport/tcp"  # part of gloo's messages of a broken connection


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit.

    The codes are 0: done; 2: the user's mistake, explained in one line; 75: saved after SIGTERM;
    1: anything else.
    """
    streams.open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files may have bytes that are no UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
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
        if stopped.signal_number != signal.SIGTERM:
            sys.exit(launch.INTERRUPTED)
        # A launcher takes a code other than 0 for a failure of the rank.
        sys.exit(0 if process.launched() else launch.PREEMPTED)
    except OtherRankError as error:
        sys.exit(USER_ERROR if error.is_users_mistake else FAILURE)
    except KeyboardInterrupt:
        streams.say("ds-minimodel: interrupted; the same command resumes from what is complete")
        sys.exit(FAILURE)
    except Exception as error:
        if not isinstance(error, BrokenPipeError):
            of_rank = f"rank {rank}: " if rank else ""
            streams.say(f"ds-minimodel: {of_rank}{_line_of(error)}")
        is_fault = isinstance(error, BrokenPipeError) or _CONNECTION_LOST in str(error)
        streams.exit_unwritten(FAILURE if is_fault else USER_ERROR)


def _line_of(error: Exception) -> str:
    """Return what is printed of an error in place of a traceback.

    Messages of the system and of libraries about files are passed on. An error that is a fault of
    the program is raised again.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        file = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{file}{error.strerror or error}; fix this and run again"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object:.200}: {error.reason} in UTF-8; rename it"
    if is_out_of_memory(error):
        return (
            f"out of memory ({str(error).partition(chr(10))[0]}); halve engine.micro_batch_size, "
            "which changes no result, or lower the model's sizes; `ds-minimodel plan` says which "
            "sizes fit"
        )
    if process.launched() and _CONNECTION_LOST in str(error):
        return "another rank is gone; the same command resumes from the last checkpoint"
    raise error


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        # Without abbreviations --rank is not taken for --ranks.
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; an option that is nearly a known one is reported first."""
        known = self._option_string_actions
        words = [] if self._subparsers else list(args or ())
        for index, word in enumerate(words):
            name = word.partition("=")[0]
            near = difflib.get_close_matches(name, known, 1, 0.75)
            if name.startswith("--") and name not in known and near:
                self.error(
                    f"unrecognized arguments: {' '.join(words[index : index + 2])} (did you mean "
                    f"{near[0]}?)"
                )
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` shows what there is")

    def _print_message(self, message: str, file: Any = None) -> None:
        # Argparse would pass over a full disk.
        (file or sys.stderr).write(message)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line into options; their attribute `run` is the function of the command.

    Overrides (key=value) may stand anywhere after the recipe, also between options, which argparse
    does not allow.
    """
    parser = _Parser(
        prog="ds-minimodel",
        description="Add languages to pretrained models by mini-model adaptation.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    # DeepSpeed's launcher adds this option.
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for part in (steps, look, costs, sample, hf, decoders):
        part.add_arguments(commands)
    try:
        options, rest = parser.parse_known_args(arguments)
    except UserError:
        if advice := _retired(arguments):
            raise UserError(advice) from None
        raise
    if hasattr(options, "rest_of"):
        # add_options names a positional argument there whose values may stand after an option.
        more = [text for text in rest if not text.startswith("-")]
        setattr(options, options.rest_of, [*getattr(options, options.rest_of), *more])
        rest = [text for text in rest if text not in more]
    overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    unknown = [text for text in rest if text not in overrides]
    if unknown and (advice := _retired(arguments)):
        raise UserError(advice)
    if unknown or (overrides and not hasattr(options, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(unknown or overrides)}")
    if overrides:
        options.overrides = [*options.overrides, *overrides]
    return options


def _retired(arguments: Sequence[str]) -> str | None:
    """Return advice for a command line that earlier versions knew; None for any other."""
    for name in INSTEAD:
        program, *words = name.split()
        if program == "ds-minimodel" and words[0] == arguments[0] and {*words} <= {*arguments}:
            return f"{name} {retired(name)}"
    return None
