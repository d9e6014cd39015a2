"""The yardstick must be a right one: exact where the answer is known."""

import pytest
import torch
from scipy.stats import beta, binom, norm
from torch import Tensor

from covprop.bench.cohen import ABSTAIN, certify_one, sample_counts


def half_space(x: Tensor) -> Tensor:
    """Class 1 where the first pixel is above 1/2."""
    first = x[:, 0, 0, 0]
    return torch.stack([0.5 - first, first - 0.5], 1)


def test_counts_are_binomial() -> None:
    x = torch.full((1, 2, 2), 0.6)
    counts = sample_counts(half_space, x, 0.2, 2500, 2)
    assert counts.sum() == 2500
    low, high = binom.ppf([1e-6, 1 - 1e-6], 2500, norm.cdf(0.5))
    assert low <= counts[1] <= high


def test_radius_of_a_half_space() -> None:
    guess, radius = certify_one(half_space, torch.full((1, 2, 2), 0.7), 0.2, n=4000, num_classes=2)
    assert guess == 1
    assert 0.15 < radius < 0.2  # the distance to the border, from below
    far, largest = certify_one(half_space, torch.ones(1, 2, 2), 0.01, n=100, num_classes=2)
    assert far == 1
    assert largest == pytest.approx(0.01 * norm.ppf(0.001 ** (1 / 100)))
    assert beta.ppf(0.001, 100, 1) == pytest.approx(0.001 ** (1 / 100))


def test_on_the_border_it_abstains() -> None:
    assert certify_one(half_space, torch.full((1, 2, 2), 0.5), 0.2, n=200, num_classes=2) == (
        ABSTAIN,
        0.0,
    )
