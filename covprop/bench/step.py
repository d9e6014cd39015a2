"""One training step of every method, each with every trick, against the fastest plain one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from covprop import methods
from covprop.bench import memory
from covprop.bench.subject import SIGMA, Subject
from covprop.bench.timing import Effort, Timing, interleaved
from covprop.bench.tricks import TRICKS, TrainingStep, Unavailable
from covprop.errors import CovpropError
from covprop.names import unknown
from covprop.train.diverge import finite
from covprop.train.optimize import optimizer
from covprop.train.options import TrainOptions

METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("gaussian", {}),
    "consistency": ("consistency", {"samples": 2}),
    "macer": ("macer", {"samples": 16}),
    "shared": ("radius", {"estimator": "shared", "mean": "noisy"}),
    "shared-detached": (
        "radius",
        {"estimator": "shared", "mean": "noisy", "detach_covariance": True},
    ),
    "calibrated": ("radius", {"estimator": "calibrated", "mean": "noisy"}),
    "linearized": ("radius", {"estimator": "linearized", "mean": "noisy"}),
}
"""Row of the table -> training method and its options. `shared` lets the gradient through Σ."""

# Small, so that hundreds of steps on random labels leave the weights ordinary numbers.
OPTIONS = TrainOptions(epochs=1, lr=1e-4)


@dataclass(frozen=True)
class Cell:
    """One method with one trick at one batch size, or why there is none."""

    method: str
    trick: str
    batch: int
    time: Timing | None = None
    plain: Timing | None = None
    """The fastest plain step, measured in turn with this one."""
    bytes: int | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Step time over the fastest plain step's."""
        return self.time.median / self.plain.median if self.time and self.plain else math.nan


Say = Callable[[Cell], None]


class Ready(NamedTuple):
    """A step that has been warmed up, its peak memory in bytes, and what it works on."""

    run: Callable[[], None]
    bytes: int
    base: TrainingStep


def training_step(method: str, subject: Subject, batch: int) -> TrainingStep:
    """The eager step of a method of the table, on a fresh model."""
    check_method(method)
    name, options = METHODS[method]
    model = subject.build()
    x, y = subject.batch(batch)
    return TrainingStep(
        method,
        subject,
        model,
        methods.build(name, sigma=SIGMA, input_shape=subject.image_shape, **options),
        optimizer(model, OPTIONS),
        x,
        y,
        torch.Generator(subject.device).manual_seed(0),
    )


def check_method(name: str) -> None:
    if name not in METHODS:
        raise unknown("step to measure", name, METHODS)


def check_trick(name: str) -> None:
    if name not in TRICKS:
        raise unknown("trick", name, TRICKS)


def measure(
    subject: Subject, methods: Sequence[str], batches: Sequence[int], tricks: Sequence[str],
    effort: Effort, say: Say = lambda cell: None,
) -> list[Cell]:  # fmt: skip
    """Every method with every trick at every batch size; `say` hears of each as it is done.

    At each batch size the plain step's tricks run against each other first. The fastest of them
    then runs in turn with every other cell, so a ratio never compares two distant moments, and
    only two steps hold memory at a time.
    """
    for trick in tricks:
        check_trick(trick)
    for method in methods:
        check_method(method)
    others = [method for method in methods if method != "plain"]
    cells: list[Cell] = []

    def done(cell: Cell) -> None:
        cells.append(cell)
        say(cell)

    for batch in batches:
        fastest = _plain(subject, batch, tricks, effort, done)
        for method in others:
            for trick in tricks:
                done(_cell(subject, method, batch, trick, fastest, effort))
    return cells


def _plain(
    subject: Subject, batch: int, tricks: Sequence[str], effort: Effort, done: Say
) -> Callable[[], None]:
    """Measure the plain step with every trick; the fastest is what all others are held against."""
    ready: dict[str, Ready] = {}
    for trick in tricks:
        try:
            ready[trick] = prepare("plain", subject, batch, trick)
        except CovpropError:
            raise
        except Exception as error:
            done(Cell("plain", trick, batch, note=reason(error)))
    if not ready:
        raise CovpropError(
            f"No plain step of {subject.model} with batch {batch} ran here, so there is nothing "
            "to compare with; take a smaller --batch, or --trick eager."
        )
    times = interleaved({k: one.run for k, one in ready.items()}, subject.device, effort)
    best = min(times, key=lambda trick: times[trick].median)
    for trick, time in times.items():
        done(Cell("plain", trick, batch, time, times[best], ready[trick].bytes))
    return ready[best].run


def _cell(
    subject: Subject, method: str, batch: int, trick: str, plain: Callable[[], None], effort: Effort
) -> Cell:
    """One method with one trick, in turn with the fastest plain step."""
    try:
        ready = prepare(method, subject, batch, trick)
        times = interleaved({"plain": plain, "this": ready.run}, subject.device, effort)
    except Exception as error:
        # One cell that does not fit the machine must not cost the others.
        return Cell(method, trick, batch, note=reason(error))
    note = "" if finite(ready.base.model) else "the weights diverged while it was measured"
    return Cell(method, trick, batch, times["this"], times["plain"], ready.bytes, note)


def prepare(
    method: str, subject: Subject, batch: int, trick: str,
    change: Callable[[TrainingStep], None] = lambda base: None,
) -> Ready:  # fmt: skip
    """Build a step, `change` it where asked to, warm it up and take its peak memory."""
    memory.settle()
    cuda = subject.device.type == "cuda"
    before = torch.cuda.memory_allocated() if cuda else 0
    base = training_step(method, subject, batch)
    change(base)
    step = TRICKS[trick](base)
    for _ in range(2):
        step()
    if not cuda:
        base.optimizer.zero_grad(set_to_none=True)
        return Ready(step, memory.cpu_peak(step, base.kept()), base)
    if "captured" not in trick:  # a graph allocates while it is captured, not when it runs
        memory.settle()
        step()
    return Ready(step, memory.cuda_peak(before), base)


def reason(error: Exception) -> str:
    """One short line for the table."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    text = str(error).strip().splitlines()
    first = text[0] if text else ""
    return first if isinstance(error, Unavailable) else f"{type(error).__name__}: {first}"[:160]
