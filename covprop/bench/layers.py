"""The passes of the propagation against a plain forward pass: by batch, by layer and by depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from covprop.bench.step import prepare
from covprop.bench.subject import SIGMA, Subject
from covprop.bench.timing import Effort, Timing, interleaved
from covprop.bench.tricks import capture
from covprop.propagate.plan import full_precision, stand_in
from covprop.propagate.propagator import Propagator

FORWARD, SIGMA_PASS, MEAN_PASS, BOTH = (
    "plain forward",
    "covariance pass",
    "mean pass, Σ cached",
    "both passes",
)
CAPTURED = "covariance pass, captured"
FORWARD_ONLY, WITH_BACKWARD = "forward", "forward and backward"
Cost = Literal["layers", "flops"]
DEPTHS = ("preact_resnet18", "preact_resnet34", "preact_resnet50", "preact_resnet101")


@dataclass(frozen=True)
class Passes:
    """The passes at one batch size, timed in turn."""

    batch: int
    times: dict[str, Timing]

    def ratio(self, side: str) -> float:
        return self.times[side].median / self.times[FORWARD].median


@dataclass(frozen=True)
class Depth:
    """The covariance pass of one network of a family."""

    model: str
    layers: int
    work: str  # FORWARD_ONLY or WITH_BACKWARD
    flops: int
    time: Timing
    captured: bool = False  # run as a CUDA graph


@dataclass(frozen=True)
class Fit:
    """seconds = start + slope · cost by least squares, and the share of variance it explains."""

    slope: float
    start: float
    r_squared: float
    residuals: tuple[float, ...]
    """Measured less fitted seconds, a network each."""


@dataclass(frozen=True)
class LayerTime:
    """The covariance pass through one step of the network."""

    name: str
    kind: str
    channels: int
    time: Timing


def propagator(subject: Subject) -> Propagator:
    """A propagator over the subject in eval mode."""
    return Propagator(subject.build().eval(), SIGMA, subject.image_shape)


@torch.no_grad()
def passes(subject: Subject, batch: int, effort: Effort) -> Passes:
    """Plain forward, covariance pass, mean pass with Σ cached, and both, in turn."""
    prop = propagator(subject)
    x, _ = subject.batch(batch)

    def in_precision(work: Callable[[Tensor], object]) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad(), subject.autocast():
                work(x)

        return run

    with propagator(subject).frozen() as cached:
        sides: dict[str, Callable[[], object]] = {
            FORWARD: in_precision(prop.model),
            SIGMA_PASS: no_grad(partial(sigma_pass, prop, subject)),
            MEAN_PASS: in_precision(cached),
            BOTH: in_precision(prop),
        }
        if subject.device.type == "cuda":
            sides[CAPTURED] = capture(sides[SIGMA_PASS])
        return Passes(batch, interleaved(sides, subject.device, effort))


def depth(subject: Subject, names: Sequence[str], effort: Effort) -> list[Depth]:
    """The covariance pass of networks of growing depth, with and without its backward, in turn;
    on a GPU as a CUDA graph, since the host's launches are not what is asked for."""
    props = {name: propagator(subject.but(model=name)) for name in names}
    works: dict[str, dict[str, Callable[[], object]]] = {
        FORWARD_ONLY: {n: no_grad(partial(sigma_pass, prop, subject)) for n, prop in props.items()},
        WITH_BACKWARD: {
            n: partial(sigma_pass_and_backward, prop, subject) for n, prop in props.items()
        },
    }
    flops = {(w, n): count_flops(side) for w, sides in works.items() for n, side in sides.items()}
    captured = dict.fromkeys(works, False)
    if subject.device.type == "cuda":
        for work, sides in works.items():
            works[work], captured[work] = as_graphs(sides)
    named = {f"{n}/{work}": side for work, sides in works.items() for n, side in sides.items()}
    times = interleaved(named, subject.device, effort)
    return [
        Depth(n, weighted(props[n]), work, flops[work, n], times[f"{n}/{work}"], captured[work])
        for work in works
        for n in names
    ]


def as_graphs(
    sides: dict[str, Callable[[], object]],
) -> tuple[dict[str, Callable[[], object]], bool]:
    """All as CUDA graphs, or all as they are where one cannot be: a line is through one kind."""
    try:
        return {name: capture(side) for name, side in sides.items()}, True
    except RuntimeError:
        return sides, False


def sigma_pass(prop: Propagator, subject: Subject) -> Tensor:
    """The covariance of the logits, in the precision that a training step takes it in."""
    with subject.autocast():
        return prop.logit_covariance()


def sigma_pass_and_backward(prop: Propagator, subject: Subject) -> None:
    """The covariance pass and the gradient of the output's trace in every weight."""
    # Not .backward(): what adds to .grad may belong to another stream, which a capture forbids.
    weights = [weight for weight in prop.parameters() if weight.requires_grad]
    # Nor .trace(): its backward reads a number back to the host, which a capture forbids as well.
    trace = sigma_pass(prop, subject).diagonal().sum()
    torch.autograd.grad(trace, weights, allow_unused=True)


def linear_fit(points: Sequence[Depth], by: Cost = "layers") -> Fit:
    """Time against the number of layers, or against the work in them.

    Example:
        >>> t = lambda s: Timing(s, s, s, 1, 1)
        >>> points = [Depth("a", 10, FORWARD_ONLY, 0, t(1.0))]
        >>> found = linear_fit([*points, Depth("b", 20, FORWARD_ONLY, 0, t(2.0))])
        >>> round(found.slope, 3), round(found.r_squared, 3)
        (0.1, 1.0)
    """
    cost = np.array([getattr(point, by) for point in points], dtype=float)
    seconds = np.array([point.time.median for point in points])
    slope, start = np.polyfit(cost, seconds, 1)
    left = seconds - (start + slope * cost)
    spread = ((seconds - seconds.mean()) ** 2).sum()
    explained = 1.0 - float((left**2).sum() / spread) if spread > 0 else 1.0
    return Fit(float(slope), float(start), explained, tuple(left.tolist()))


@torch.no_grad()
def by_layer(subject: Subject, effort: Effort) -> list[LayerTime]:
    """How long each step of the covariance pass takes by itself, all in turn.

    In the precision of the pass as a whole: Σ itself is never under autocast, but with autocast
    the propagator takes its products in half.
    """
    prop = propagator(subject)
    half = subject.precision == "bf16"
    settings = prop.settings.but(products="bfloat16") if half else prop.settings
    with subject.autocast():
        steps, covs = prop.plan.steps, prop.covariances()[:1]
    assert covs[0] is not None
    values: list[Any] = [stand_in(covs[0], prop.plan.input_shape)]
    with full_precision(covs[0]):
        prop.plan.extend_covariances(covs, values, len(steps), settings)
    noisy = {slot: step for slot, step in enumerate(steps, start=1) if step.rule is not None}
    sides: dict[str, Callable[[], object]] = {
        str(slot): no_grad(partial(step.covariance, step.layer(values), covs, values, settings))
        for slot, step in noisy.items()
    }
    times = interleaved(sides, subject.device, replace(effort, sample_seconds=0.0))
    found = []
    for slot, step in noisy.items():
        found.append(LayerTime(step.name, step.operation.__name__, step.channels, times[str(slot)]))
    return found


def memory_ratio(subject: Subject, batch: int) -> tuple[int, int]:
    """Peak bytes of a plain training step, and of a `shared` one with gradient through Σ."""
    plain, shared = (prepare(name, subject, batch, "eager").bytes for name in ("plain", "shared"))
    return plain, shared


def weighted(prop: Propagator) -> int:
    """Convolutions and linear layers, the usual way to count a network's layers."""
    weights = (getattr(step.target, "weight", None) for step in prop.plan.steps)
    return sum(isinstance(weight, Tensor) and weight.ndim > 1 for weight in weights)


def count_flops(work: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions in `work`."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def no_grad(work: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return work()

    return run
