"""The usual certification loop, as a yardstick: Cohen et al. (2019) with its published defaults.

One image after the other, 1,000 copies in a forward pass in float32, torch's global generator,
and predictions brought to the host and counted there one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import beta, norm
from torch import Tensor

ABSTAIN = -1
BATCH = 1000


def sample_counts(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    sigma: float,
    n: int,
    num_classes: int,
) -> npt.NDArray[np.int64]:
    """How often each class came up in n noisy copies of one image [c, h, w]."""
    counts = np.zeros(num_classes, dtype=np.int64)
    with torch.no_grad():
        for _ in range(math.ceil(n / BATCH)):
            size = min(BATCH, n)
            n -= size
            copies = x.repeat((size, 1, 1, 1))
            noise = torch.randn_like(copies) * sigma
            for winner in model(copies + noise).argmax(1).cpu().numpy():
                counts[winner] += 1
    return counts


def certify_one(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    sigma: float,
    *,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    num_classes: int = 10,
) -> tuple[int, float]:
    """The prediction and the certified radius of one image; (−1, 0) abstains."""
    guess = int(sample_counts(model, x, sigma, n0, num_classes).argmax())
    count = int(sample_counts(model, x, sigma, n, num_classes)[guess])
    lower = float(beta.ppf(alpha, count, n - count + 1)) if count else 0.0
    if lower < 0.5:
        return ABSTAIN, 0.0
    return guess, sigma * float(norm.ppf(lower))
