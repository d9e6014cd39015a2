"""Ctrl-C, also where a library is in the way."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C as ever, and a note of it: a library that is just being imported may turn it into an
    error of its own, which says nothing to whoever pressed the keys."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(signum: int, frame: FrameType | None) -> None:
        noted.append(signum)
        signal.default_int_handler(signum, frame)

    ours = before is signal.default_int_handler  # in the background it may be ignored, and stays so
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
