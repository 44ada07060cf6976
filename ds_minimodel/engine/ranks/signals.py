"""SIGINT and SIGTERM: training ends after the step, with its state saved."""

import logging
import signal
import threading
from types import FrameType
from typing import Any

from ds_minimodel.engine.ranks.launch import rank_of_environment

log = logging.getLogger(__name__)


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
