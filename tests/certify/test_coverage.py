"""How often certificates are wrong, from the noise to the answer, where the truth is known."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from covprop.certify import certify, predict

IMAGES, SAMPLES, ALPHA = 800, 200, 0.2


def _half_space(x: Tensor) -> Tensor:
    """Class 0 above ½ in the first pixel: at x = ½ both classes have p = ½, and no radius is."""
    score = x[:, 0, 0, 0] - 0.5
    return torch.stack([score, -score], 1)


def _at(pixel: float) -> Tensor:
    return torch.full((IMAGES, 1, 1, 1), pixel)


def _certified(fast: bool, **options: Any) -> np.ndarray:
    given: dict[str, Any] = {"n0": SAMPLES, "n": SAMPLES, "alpha": ALPHA, **options}
    found = certify(_half_space, _at(0.5), sigma=0.5, num_classes=2, fast=fast, **given)
    return found.radius.numpy()


def _most(share: float) -> float:
    """What a count of errors stays below, all but once in 10,000 times."""
    return share * IMAGES + 3.7 * math.sqrt(share * IMAGES)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"n": 1000, "delta": 0.1}, {"n": 1000, "at_least": [0.02, 0.2]}, {"soft": True}],
    ids=["fixed", "delta", "at_least", "soft"],
)
def test_no_radius_is_certified_on_the_boundary(fast: bool, options: dict[str, Any]) -> None:
    """A guess that shared samples with its bound would be wrong twice as often."""
    wrong = (_certified(fast, **options) > 0).sum()
    assert wrong <= _most(ALPHA)
    if not options:  # nor is the bound looser than it must be
        exact = stats.binom.isf(ALPHA, SAMPLES, 0.5)
        share = stats.binom.sf(exact, SAMPLES, 0.5)
        assert abs(wrong - share * IMAGES) < 3.7 * math.sqrt(share * IMAGES)


@pytest.mark.parametrize("fast", [False, True])
def test_counts_of_images_are_independent_binomials(fast: bool) -> None:
    """Copies of one image, whose noise has nothing in common: not with another image's, another
    seed's, nor that of the guess."""
    p = stats.norm.cdf(1.0)  # so that class 0 comes first in every count
    asked = {"sigma": 0.5, "n": SAMPLES, "num_classes": 2, "fast": fast}
    found = [predict(_half_space, _at(1.0), seed=seed, **asked) for seed in (0, 1)]
    found += [certify(_half_space, _at(1.0), **asked)]
    rows = [answer.count.numpy() for answer in found]
    z = np.array([(row - SAMPLES * p) / math.sqrt(SAMPLES * p * (1 - p)) for row in rows])
    bound = 3.9 / math.sqrt(IMAGES)
    assert (abs(z.mean(1)) < bound).all()
    assert (abs(z.var(1) - 1) < math.sqrt(2) * bound).all()
    assert (abs(np.corrcoef(z) - np.eye(3)) < bound).all()
    neighbours = [np.corrcoef(row[1:], row[:-1])[0, 1] for row in z]
    assert (np.abs(neighbours) < bound).all()
