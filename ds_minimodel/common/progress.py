"""Progress on standard error: a line that renews itself on a terminal, in a file a line every 20 seconds."""

import contextlib
import os
import sys
import time


class Progress:
    """Progress of `total` units of work named `unit`, with rate and time left.

    `start` units were done by an earlier run and do not count for the rate. total=None: the end is unknown.
    """

    def __init__(self, label: str, total: int | None, unit: str, start: int = 0, quiet: bool = False) -> None:
        self.label, self.total, self.unit, self.start, self.quiet = label, total, unit, start, quiet
        self.done, self.began, self.shown = start, time.monotonic(), 0.0
        self.printed: int | None = None  # what was done, by the last line
        self.on_terminal = sys.stderr.isatty()

    def update(self, done: int, note: str = "") -> None:
        """Show that `done` units are done, if the last line is old enough."""
        self.done = done
        now = time.monotonic()
        if not self.quiet and now - self.shown >= (0.2 if self.on_terminal else 20):
            self.shown = now
            self._print(now, note)

    def close(self, note: str = "") -> None:
        """Show the last state, where no line has shown it, and end the line."""
        if not self.quiet:
            if note or self.printed != self.done:
                self._print(time.monotonic(), note)
            if self.on_terminal:
                print(file=sys.stderr)

    def _print(self, now: float, note: str) -> None:
        self.printed = self.done
        elapsed = now - self.began
        rate = (self.done - self.start) / elapsed if elapsed else 0.0
        total = f"/{self.total:,}" if self.total else ""
        left = f", {clock((self.total - self.done) / rate)} left" if self.total and 0 < rate else ""
        line = f"{self.label}: {self.done:,}{total} {self.unit}, {rate:,.1f}/s{left}{', ' + note if note else ''}"
        with contextlib.suppress(OSError):  # a full disk that standard error goes to ends no training
            print(
                f"\r{line[: _width() - 1]}\033[K" if self.on_terminal else line,  # a longer one would not renew itself
                end="" if self.on_terminal else "\n",
                file=sys.stderr,
                flush=True,
            )


def _width() -> int:
    """Columns of the terminal that standard error is; standard output may go elsewhere."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds, 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
