"""Progress on standard error: a line that renews itself on a terminal, in a file a line every 20
seconds.
"""

import contextlib
import sys

from tqdm import tqdm

tqdm.monitor_interval = 0  # a thread beside training, for bars that stand still


class _Lines:
    """Standard error that goes to a file: each state is a line, and a disk that is full ends no
    training.
    """

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if text.strip():
                print(text.strip(), file=sys.stderr, flush=True)


class Progress:
    """Progress of `total` units of work named `unit`, with rate and time left.

    `start` units were done by an earlier run and do not count for the rate. total=None: the end is
    unknown.
    """

    def __init__(
        self, label: str, total: int | None, unit: str, start: int = 0, quiet: bool = False
    ) -> None:
        shape = (
            dict(mininterval=0.2, dynamic_ncols=True)
            if sys.stderr.isatty()
            else dict(mininterval=20, file=_Lines())
        )
        self._bar = tqdm(
            desc=label,
            total=total,
            initial=start,
            unit=f" {unit}",
            disable=quiet,
            miniters=1,
            **shape,
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
