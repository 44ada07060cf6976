"""SIGINT and SIGTERM: training ends after the step, with its state saved."""

import ctypes
import logging
import signal
import threading
from types import FrameType
from typing import Any

from ds_minimodel.training.ranks.launch import rank_of_environment

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


class Stopped(Exception):
    """Training was asked to stop (SIGINT or SIGTERM); its state is saved."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


class StopSignals:
    """Records SIGINT or SIGTERM instead of ending the process; only a SIGINT after it stops at once.

    Launchers send SIGTERM after the terminal's SIGINT, which must not cut the saving short.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.old: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self.old = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None and rank_of_environment() == 0:
            log.warning("stopping after this step; the state is being saved")
        self.received = self.received or number


def end_with_launcher() -> None:
    """From now on send this rank SIGTERM when the process that started it is gone, however that came (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_undisturbed() -> None:
    """Ignore both signals from now on: the work of this process is done, and what it calls at its end is short."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
