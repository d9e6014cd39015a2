"""Time several callables side by side, so that drift of the machine hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch

from covprop.errors import InvalidInput

Work = Callable[[], object]


@dataclass(frozen=True)
class Effort:
    """How long to measure: warm-up calls, rounds over all sides, and seconds a sample lasts.

    A sample is so many calls in a row that it lasts about `sample_seconds`: on a GPU the queue is
    then full, as it is in training, and the host's launch cost shows only where it is the limit.
    """

    warmup: int = 5
    rounds: int = 30
    sample_seconds: float = 0.03

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warmup < 0:
            raise InvalidInput(
                f"A measurement takes at least one round and no negative warm-up, "
                f"not {self.rounds} and {self.warmup}."
            )


QUICK = Effort(warmup=1, rounds=2, sample_seconds=0.0)
"""Enough to see that everything runs; the figures mean nothing."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call: median, 10 % and 90 % quantile over `rounds` samples of `calls` calls."""

    median: float
    low: float
    high: float
    rounds: int
    calls: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def seconds_of(work: Work, device: torch.device, calls: int = 1) -> float:
    """Seconds a call of `calls` calls in a row, by device events on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / calls
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - begin) / calls


def interleaved(
    sides: Mapping[str, Work], device: torch.device, effort: Effort
) -> dict[str, Timing]:
    """Time all sides in turn, A B C A B C …, after warming each up.

    Example:
        >>> from covprop.bench.timing import QUICK
        >>> a = torch.ones(8, 8)
        >>> times = interleaved({"add": lambda: a + a}, torch.device("cpu"), QUICK)
        >>> times["add"].rounds
        2
    """
    calls = {}
    for name, work in sides.items():
        for _ in range(effort.warmup):
            work()
        calls[name] = 1
        if effort.sample_seconds:
            once = max(seconds_of(work, device), 1e-9)
            calls[name] = int(np.clip(effort.sample_seconds / once, 1, 1000))
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(effort.rounds):
        for name, work in sides.items():
            samples[name].append(seconds_of(work, device, calls[name]))
    return {name: summary(values, calls[name]) for name, values in samples.items()}


def summary(samples: list[float], calls: int = 1) -> Timing:
    """Median and spread of samples in seconds."""
    low, median, high = np.quantile(samples, [0.1, 0.5, 0.9]).tolist()
    return Timing(median, low, high, len(samples), calls)
