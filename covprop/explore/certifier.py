"""Certificates in the background, and whose turn it is to compute.

A certificate takes thousands of passes. It runs in a thread of its own, gives way between two
passes to whatever the page is waiting for, tells how far it is, and can be stopped.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from covprop.certify.bounds import sample_warning
from covprop.certify.inputs import check_options
from covprop.certify.noise import block_size
from covprop.certify.smooth import Certificate, certify
from covprop.errors import CovpropError, InvalidInput
from covprop.explore.compute import Explorer
from covprop.explore.plain import number

N0 = 100


class Turns:
    """One computation at a time; those that the page waits for go before the background."""

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), threading.Lock()
        self._waiting = 0
        self._free = threading.Event()
        self._free.set()

    @contextmanager
    def front(self) -> Iterator[None]:
        """For what the page is waiting for."""
        self._announce(1)
        try:
            with self._lock:
                yield
        finally:
            self._announce(-1)

    @contextmanager
    def background(self) -> Iterator[None]:
        """For one short piece of what can wait."""
        self._free.wait()
        with self._lock:
            yield

    def finish(self, seconds: float) -> None:
        """Wait at most so long until nothing is being computed."""
        if self._lock.acquire(timeout=seconds):
            self._lock.release()

    def _announce(self, change: int) -> None:
        with self._count:
            self._waiting += change
            if self._waiting:
                self._free.clear()
            else:
                self._free.set()


class Stopped(Exception):
    """The certificate is no longer wanted."""


@dataclass
class Job:
    """A certificate asked for: the settings it holds for, how far it is, how it ended."""

    number: int
    index: int
    label: int
    sigma: float
    n: int
    alpha: float
    passes: int
    state: str = "running"  # then done, stopped or failed
    done: int = 0
    error: str = ""
    seconds: float = 0.0
    certificate: Certificate | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def status(self) -> dict[str, Any]:
        """The job for the page; the certified radius is there only when it is done."""
        state = self.state  # once: the thread may end the job meanwhile
        found: dict[str, Any] = {
            "job": self.number,
            "state": state,
            "index": self.index,
            "label": self.label,
            "sigma": self.sigma,
            "n0": N0,
            "n": self.n,
            "alpha": self.alpha,
            "progress": min(1.0, self.done / self.passes),
        }
        if state == "failed":
            found["error"] = self.error
        c = self.certificate
        if state == "done" and c is not None:
            found |= {
                "prediction": int(c.prediction),  # −1 abstains
                "certified_radius": number(float(c.radius)),
                "p_lower": number(float(c.p_lower)),
                "count": int(c.count),
                "seconds": number(self.seconds),
            }
        return found


class _Counted:
    """The model, which counts its samples, waits for its turn, and can be stopped.

    No module: while torch.fx traces in another thread it catches the call of any module, so none
    may be called except in its turn.
    """

    def __init__(self, model: nn.Module, job: Job, turns: Turns) -> None:
        self.model, self.job, self.turns = model, job, turns

    def __call__(self, x: Tensor) -> Tensor:
        if self.job.stop.is_set():
            raise Stopped
        with self.turns.background():
            logits = self.model(x)
        self.job.done += len(x)
        return logits


class Certifier:
    """Runs one certificate at a time; asking for another stops the one before."""

    def __init__(self, explorer: Explorer, turns: Turns) -> None:
        self.explorer, self.turns = explorer, turns
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._thread: threading.Thread | None = None

    def start(self, index: int, sigma: float, n: int, alpha: float) -> dict[str, Any]:
        """Begin to certify one image with n0 = 100 and n samples at confidence 1 − alpha."""
        check_options(sigma, N0, n, alpha)
        if message := sample_warning(n, alpha, sigma):
            raise InvalidInput(message)
        x = self.explorer.image(index)
        block = block_size(tuple(x.shape[1:]))
        passes = sum(math.ceil(samples / block) * block for samples in (N0, n))
        with self._lock:
            before = self._job
            if before is not None:
                before.stop.set()
            following = before.number + 1 if before else 1
            label = int(self.explorer.images.labels[index])
            job = Job(following, index, label, sigma, n, alpha, passes)
            self._job = job
            self._thread = threading.Thread(target=self._run, args=(job, x), daemon=True)
            self._thread.start()
        return job.status()

    def status(self, job: int) -> dict[str, Any]:
        """How far a job is; one that another has replaced counts as stopped."""
        current = self._job
        if current is None or current.number < job:
            raise InvalidInput(f"there is no certificate {job}.")
        return current.status() if current.number == job else {"job": job, "state": "stopped"}

    def stop(self, job: int) -> dict[str, Any]:
        """Give a job up."""
        current = self._job
        if current is not None and current.number == job:
            current.stop.set()
        return self.status(job)

    def close(self) -> None:
        """Stop and wait until the thread has ended."""
        with self._lock:
            if self._job is not None and self._thread is not None:
                self._job.stop.set()
                self._thread.join(timeout=10)

    def _run(self, job: Job, x: Tensor) -> None:
        start = time.perf_counter()
        try:
            # The noise is that of `covprop certify RUN` for this image: seed 0, its index.
            job.certificate = certify(
                _Counted(self.explorer.model, job, self.turns),
                x[0],
                sigma=job.sigma,
                n0=N0,
                n=job.n,
                alpha=job.alpha,
                num_classes=self.explorer.images.num_classes,
                index=job.index,
            )
            job.seconds = time.perf_counter() - start
            job.state = "done"
        except Stopped:
            job.state = "stopped"
        except CovpropError as error:
            job.error, job.state = str(error), "failed"
        except Exception:
            traceback.print_exc(file=sys.stderr)
            job.error, job.state = "the certificate failed; the terminal says why.", "failed"
