"""Answers as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from covprop.estimate.result import Margin
from covprop.kernels.moments import normal_cdf

MOST_DOTS = 400
MOST_CLASSES = 10


def number(value: float) -> float | str:
    """A number as JSON can hold it: a float32's seven digits, a sign for what is not finite."""
    if math.isfinite(value):
        return float(f"{value:.7g}")
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def numbers(values: Tensor) -> list[Any]:
    """A tensor as nested lists of `number`."""
    return [number(float(v)) if v.ndim == 0 else numbers(v) for v in values]


def margin_numbers(m: Margin, sigma: float) -> dict[str, Any]:
    """The margin of one image; the probability is Φ(radius/σ), that the first beats the second."""
    return {
        "top": int(m.top),
        "runner_up": int(m.runner_up),
        "mean": number(float(m.mean)),
        "sd": number(math.sqrt(float(m.var))),
        "probability": number(float(normal_cdf(m.radius / sigma))),
        "estimated_radius": number(float(m.radius)),
    }


def ellipse(mean: Tensor, cov: Tensor, pair: tuple[int, int]) -> dict[str, Any]:
    """Mean [2] and covariance [2, 2] of two of the channels."""
    chosen = list(pair)
    return {"mean": numbers(mean[chosen]), "cov": numbers(cov[chosen][:, chosen])}


def cloud(points: Tensor) -> dict[str, Any]:
    """Points [n, 2]: some of them to draw, and the moments of all that are finite."""
    kept = points[points.isfinite().all(1)]
    found: dict[str, Any] = {"dots": numbers(kept[:MOST_DOTS])}
    if len(kept) > 1:
        found |= {"mean": numbers(kept.mean(0)), "cov": numbers(torch.cov(kept.T))}
    return found


def votes(logits: Tensor) -> dict[str, Any]:
    """How often each class came first, the ten most frequent; NaN is no class."""
    broken = logits.isnan().any(1)
    counts = torch.bincount(logits[~broken].argmax(1), minlength=logits.shape[1])
    order = counts.argsort(descending=True, stable=True)[:MOST_CLASSES].tolist()
    return {"votes": [[k, int(counts[k])] for k in order], "nan": int(broken.sum())}
