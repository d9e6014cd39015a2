"""How accurate the estimators are: predicted over Monte Carlo variance of the margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput, UnsupportedModel
from covprop.estimate import ESTIMATORS, margin
from covprop.estimate.dense import check_size
from covprop.estimate.result import Margin
from covprop.mode import switched
from covprop.noise import seeded
from covprop.propagate.inputs import check_samples
from covprop.propagate.settings import PAPER
from covprop.propagate.tracing.trace import build
from covprop.radius import gap_between

DENSE_IMAGES = 8  # the dense estimator takes minutes on more


@dataclass(frozen=True)
class Truth:
    """One estimator on some images: quantiles of predicted/measured variance, and correlation.

    `correlation` is that of the logarithms over the images; NaN where either hardly varies.
    `note` says why an estimator could not be used.
    """

    estimator: str
    low: float = np.nan
    median: float = np.nan
    high: float = np.nan
    correlation: float = np.nan
    images: int = 0
    note: str = ""


def estimator_table(model: nn.Module, x: Tensor, sigma: float, samples: int) -> list[Truth]:
    """Every estimator's margin variance over the Monte Carlo one of the same two classes.

    The model is put in eval mode for the time of the call. `samples` fresh noisy copies of each
    image give the measured variance, with a relative error of about √(2/samples); the row
    `sampled` shows that error, since it is another Monte Carlo estimate. An estimator that cannot
    be used, such as those that propagate on a network with max pools, has a `note`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> rows = estimator_table(model, torch.rand(5, 1, 2, 2), sigma=0.5, samples=2000)
        >>> [row.estimator for row in rows]
        ['shared', 'calibrated', 'linearized', 'dense', 'sampled']
    """
    check_samples(samples)
    found: dict[str, Margin] = {}
    notes: dict[str, str] = {}
    with switched(model, training=False), seeded(0, x.device):
        for name in ESTIMATORS:
            try:
                found[name] = _ask(name, model, x, sigma, samples)
            except (InvalidInput, UnsupportedModel) as error:
                notes[name] = " ".join(str(error).split())  # faults come one a line
        measured = measured_variance(model, x, sigma, samples, list(found.values()))
    rows = dict(zip(found, measured, strict=True))
    return [
        _compare(name, found[name].var, rows[name])
        if name in found
        else Truth(name, note=notes[name])
        for name in ESTIMATORS
    ]


def _ask(name: str, model: nn.Module, x: Tensor, sigma: float, samples: int) -> Margin:
    options: dict[str, Any] = {"samples": samples} if name == "sampled" else {}
    images = x
    if name == "dense":
        images = x[:DENSE_IMAGES]
        check_size(largest(model, tuple(x.shape[1:])))
    with torch.no_grad():
        return margin(model, images, sigma, name, **options)


def largest(model: nn.Module, image_shape: tuple[int, ...]) -> int:
    """Units that the dense estimator must hold together, seen before it allocates for them."""
    steps = build(model, image_shape, PAPER).steps
    return max(math.prod(s.out_shape) + max(map(math.prod, s.shapes)) for s in steps if s.rule)


@torch.no_grad()
def measured_variance(
    model: nn.Module, x: Tensor, sigma: float, samples: int, asked: Sequence[Margin]
) -> list[Tensor]:
    """Monte Carlo variance of u_top − u_runner_up for the classes of each answer, float64."""
    first: list[Tensor] = []
    sums = [torch.zeros(2, len(m.var), dtype=torch.float64, device=x.device) for m in asked]
    for draw in range(samples):
        logits = model(x + sigma * torch.randn_like(x)).double()
        for k, m in enumerate(asked):
            gap = gap_between(logits[: len(m.var)], m.top, m.runner_up)
            if draw == 0:
                first.append(gap)  # a shift near the mean keeps the sum of squares accurate
            gap = gap - first[k]
            sums[k] += torch.stack([gap, gap * gap])
    return [(square - total**2 / samples) / (samples - 1) for total, square in sums]


def _compare(name: str, predicted: Tensor, measured: Tensor) -> Truth:
    p, m = predicted.double().cpu().numpy(), measured.cpu().numpy()
    good = (p > 0) & (m > 0) & np.isfinite(p) & np.isfinite(m)
    left_out = int((~good).sum())
    note = f"{left_out} images without variance left out" if left_out else ""
    if not good.any():
        return Truth(name, note=note)
    p, m = p[good], m[good]
    low, median, high = np.quantile(p / m, [0.1, 0.5, 0.9]).tolist()
    varies = len(p) > 2 and np.ptp(np.log(p)) > 1e-6 and np.ptp(np.log(m)) > 1e-6
    correlation = float(np.corrcoef(np.log(p), np.log(m))[0, 1]) if varies else np.nan
    return Truth(name, low, median, high, correlation, len(p), note)
