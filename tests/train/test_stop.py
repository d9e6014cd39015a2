"""Signals leave a note first, and act the second time."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from covprop.train.stop import Interrupted, StopRequest


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_noted_and_handlers_come_back(signum: int) -> None:
    before = signal.getsignal(signum)
    with StopRequest() as stop:
        assert stop.signum == 0
        stop.stepped = True
        os.kill(os.getpid(), signum)
        assert stop.signum == signum
    assert signal.getsignal(signum) is before


def test_the_second_ctrl_c_acts_at_once() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("signum", "stepped", "said"),
    [
        (signal.SIGTERM, False, ""),
        (signal.SIGHUP, False, ""),
        (signal.SIGTERM, True, "noted True\n"),
        (signal.SIGHUP, True, "noted True\nthe second too\n"),
    ],
)
def test_sigterm_acts_at_once_while_no_step_is_done(signum: int, stepped: bool, said: str) -> None:
    """Whether the first step ends is not known then: what it waits for may be gone.

    Later a second SIGTERM acts at once, but a closed terminal sends SIGHUP twice by itself.
    """
    script = f"""
import os
from covprop.train.stop import StopRequest
with StopRequest() as stop:
    stop.stepped = {stepped}
    os.kill(os.getpid(), {signum})
    print("noted", stop.signum == {signum}, flush=True)
    os.kill(os.getpid(), {signum})
    print("the second too", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == (0 if "second" in said else -signum)
    assert done.stdout == said


def test_a_closed_terminal_is_still_nothing_to_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signum == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_threads_that_may_not_catch_signals_can_train() -> None:
    notes: list[int] = []

    def work() -> None:
        with StopRequest() as stop:
            notes.append(stop.signum)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert notes == [0]


def test_interrupted_ends_programs_that_do_not_know_it() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert not issubclass(Interrupted, Exception)
