"""Progress on standard error: one line on a terminal, in a file a line every 20 seconds."""

import contextlib
import sys

from tqdm import tqdm

# tqdm's thread, which renews bars that stand still, is not to run beside training.
tqdm.monitor_interval = 0


class _Lines:
    """Standard error that goes to a file: each state is a line, and a full disk ends no run."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if text.strip():
                print(text.strip(), file=sys.stderr, flush=True)


class Progress:
    """Progress of some work, with its rate and the time that is left.

    Args:
        label: what the work is.
        total: how many units it has; None: the end is unknown.
        unit: what a unit is called.
        start: units that an earlier run has done, which do not count for the rate.
        quiet: nothing is shown.
    """

    def __init__(
        self, label: str, total: int | None, unit: str, start: int = 0, *, quiet: bool = False
    ) -> None:
        on_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            desc=label,
            total=total,
            initial=start,
            unit=f" {unit}",
            disable=quiet,
            miniters=1,
            mininterval=0.2 if on_terminal else 20,
            dynamic_ncols=on_terminal,
            file=None if on_terminal else _Lines(),
        )
        self.done = start

    def update(self, done: int, note: str = "") -> None:
        """Show that `done` units are done, if the last line is old enough."""
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self.done)
        self.done = done

    def close(self, note: str | None = None) -> None:
        """Show the last state, with its note or another, and end the line."""
        if note is not None:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.close()
