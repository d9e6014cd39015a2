"""Both passes compiled, and run concurrently on a GPU: Σ ahead of the mean, on its own stream.

Σ needs no image, and its products are too small to fill a GPU. The mean pass needs one vector of it
for each nonlinear layer. So both passes are cut into the same parts, each compiled separately, and
a part of the mean waits for the same part of Σ. Autograd runs each backward on the stream of its
forward, so the backward passes overlap too. In a CUDA graph the two passes are two branches.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covprop.gaussian import Gaussian
from covprop.kernels.half import inverse_of
from covprop.propagate.plan import Deviation, Plan, full_precision, stand_in
from covprop.propagate.settings import Settings
from covprop.propagate.step import Step

Ready = tuple[list[Deviation], torch.cuda.Event | None]
"""The deviations of a part's steps, and the event that says they are computed."""

SHARES = (0.12, 0.35, 0.65)
"""Where to cut, as shares of the nonlinear steps. The first part is small: the mean waits for it,
and its backward remains when the mean's backward has ended."""


class Part(NamedTuple):
    """Steps start .. stop − 1, the slots they read of earlier parts, and those later ones read."""

    start: int
    stop: int
    reads: tuple[int, ...]
    leaves: tuple[int, ...]


def live_after(plan: Plan, stop: int) -> tuple[int, ...]:
    """Slots written by the first `stop` steps that a later step, or the caller, reads."""
    later = {slot for step in plan.steps[stop:] for slot in step.reads}
    return tuple(sorted(slot for slot in later | {plan.output} if slot <= stop))


def places(plan: Plan) -> list[int]:
    """Where to cut: after a nonlinear step whose input is read again, if no other noisy value is
    alive there; if there is no such place, wherever a single noisy value is alive."""
    noisy = {0} | {k for k, step in enumerate(plan.steps, start=1) if step.rule is not None}
    alive = {stop: noisy.intersection(live_after(plan, stop)) for stop in range(1, len(plan.steps))}
    steps = dict(enumerate(plan.steps, start=1))
    beside = [
        stop
        for stop, slots in alive.items()
        if steps[stop].read_again and slots == {stop, steps[stop].random[0]}
    ]
    return beside or [stop for stop, slots in alive.items() if len(slots) == 1]


def cut(plan: Plan) -> list[Part]:
    """Parts with about these shares of the nonlinear steps."""
    nonlinear = [step.rule is not None and step.rule.mean is not None for step in plan.steps]
    stops: list[int] = []
    for share in SHARES:
        wanted = share * sum(nonlinear)
        near = min(places(plan), key=lambda stop: abs(sum(nonlinear[:stop]) - wanted), default=0)
        if near > (stops[-1] if stops else 0):
            stops.append(near)
    ends = [0, *stops, len(plan.steps)]
    return [
        Part(a, b, live_after(plan, a) if a else (0,), live_after(plan, b))
        for a, b in itertools.pairwise(ends)
    ]


def placed(slots: tuple[int, ...], items: tuple[Any, ...], count: int) -> list[Any]:
    """A list of `count` slots with the items in their places and None elsewhere."""
    full: list[Any] = [None] * count
    for slot, item in zip(slots, items, strict=True):
        full[slot] = item
    return full


def spread(step: Step, covs: list[Tensor | None]) -> Deviation:
    """The deviations at a step, with their inverses where a kernel multiplies by them: here they
    are computed once a channel, in the kernel they would be once for every number."""
    std = step.deviation(covs)
    if std is None or step.rule is None or step.rule.beside is None:
        return std
    return std, inverse_of(std)


class Parts:
    """A plan's passes in compiled parts; called with images, it gives their Gaussian."""

    def __init__(self, plan: Plan, device: torch.device, backend: str = "inductor") -> None:
        self.plan, self.parts = plan, cut(plan)
        # High priority: its kernels are small, and the mean waits for them.
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        if self.stream is not None:  # weights get gradients from both streams, as intended
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        self.covariances = torch.compile(self._covariances, dynamic=False, backend=backend)
        self.means = torch.compile(self._means, dynamic=False, backend=backend)

    def __call__(self, x: Tensor, cov: Tensor, settings: Settings) -> Gaussian:
        if self.stream is None:
            with full_precision(x):
                deviations, output = self._all_covariances(cov, settings)
        else:
            here = torch.cuda.current_stream(x.device)
            self.stream.wait_stream(here)
            cov.record_stream(self.stream)
            with torch.cuda.stream(self.stream), full_precision(x):
                deviations, output = self._all_covariances(cov, settings)
        values: tuple[Any, ...] = (x,)
        for part, (stds, ready) in zip(self.parts, deviations, strict=True):
            if ready is not None:
                here.wait_event(ready)
                for std in stds:
                    for tensor in std if isinstance(std, tuple) else (std,):
                        if tensor is not None:  # or its memory might be reused too early
                            tensor.record_stream(here)
            values = self.means(part, values, stds, settings)
        if self.stream is not None:
            here.wait_stream(self.stream)
            output.record_stream(here)
        return Gaussian(values[0], output)

    def _all_covariances(self, cov: Tensor, settings: Settings) -> tuple[list[Ready], Tensor]:
        covs: tuple[Any, ...] = (cov,)
        values: tuple[Any, ...] = (stand_in(self.plan.typed(cov), self.plan.input_shape),)
        done: list[Ready] = []
        for part in self.parts:
            covs, values, stds = self.covariances(part, covs, values, settings)
            done.append((stds, self.stream.record_event() if self.stream else None))
        return done, self.plan.logit_covariance(covs[0])

    def _covariances(
        self, part: Part, covs: tuple[Any, ...], values: tuple[Any, ...], settings: Settings
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Deviation]]:
        all_covs = placed(part.reads, covs, part.start + 1)
        all_values = placed(part.reads, values, part.start + 1)
        self.plan.extend_covariances(all_covs, all_values, part.stop, settings)
        stds = [spread(step, all_covs) for step in self.plan.steps[part.start : part.stop]]
        left = [tuple(row[slot] for slot in part.leaves) for row in (all_covs, all_values)]
        return left[0], left[1], stds

    def _means(
        self, part: Part, values: tuple[Any, ...], stds: list[Deviation], settings: Settings
    ) -> tuple[Any, ...]:
        full = placed(part.reads, values, part.start + 1)
        self.plan.extend_means(full, stds, settings)
        return tuple(full[slot] for slot in part.leaves)
