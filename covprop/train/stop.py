"""Being asked to stop: finish the step, write a checkpoint, then go."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop and left a checkpoint; the same command continues it."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum


class StopRequest:
    """Within this context Ctrl-C, SIGTERM and SIGHUP are only noted.

    A second Ctrl-C or SIGTERM acts at once. A closed terminal sends SIGHUP, unless it is to be
    ignored (`nohup`), and sends it twice, so that one never does. But a SIGTERM or SIGHUP before
    the first step has `stepped` acts at once: there is nothing to save yet, and as the compiler's
    processes get the signal too, that step might wait for them for ever.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.stepped = False
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._note)
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        if signum == signal.SIGHUP and self.stepped:
            return  # the shell sends one, and when it is gone, the kernel another
        signal.signal(signum, self._before[signum])
        if signum != signal.SIGINT and not self.stepped:
            signal.raise_signal(signum)

    def __exit__(self, *exception: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
