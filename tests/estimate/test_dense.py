"""Covariances after an activation, pair by pair, against integrals and closed forms."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import bivariate_relu_covariance, gaussian_expectation, random_covariance
from torch import nn

from covprop.estimate.dense import relu_covariance, series_covariance


@given(st.floats(-4, 4), st.floats(-4, 4), st.floats(-0.999, 0.999), st.integers(0, 20))
def test_pairwise_relu_moments(mx: float, my: float, rho: float, seed: int) -> None:
    scale = np.random.default_rng(seed).uniform(0.2, 3.0, 2)
    mean = np.array([mx, my]) * scale
    cov = np.outer(scale, scale) * np.array([[1, rho], [rho, 1]])
    ours = relu_covariance(torch.from_numpy(mean), torch.from_numpy(cov))[0, 1].item()
    expected = bivariate_relu_covariance(mean, cov)
    assert abs(ours - expected) < 1e-8 * scale[0] * scale[1]


def test_pairwise_relu_diagonal_is_the_variance() -> None:
    cov = random_covariance(6)
    mean = torch.linspace(-2, 2, 6, dtype=torch.float64)
    ours = torch.diagonal(relu_covariance(mean, cov))
    expected = []
    for m, v in zip(mean.tolist(), torch.diagonal(cov).tolist(), strict=True):
        first = gaussian_expectation(lambda x: max(x, 0.0), m, v**0.5)
        second = gaussian_expectation(lambda x, c=first: (max(x, 0.0) - c) ** 2, m, v**0.5)
        expected.append(second)
    torch.testing.assert_close(
        ours, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-10
    )


def test_pairwise_relu_of_a_unit_without_noise() -> None:
    cov = torch.diag(torch.tensor([0.0, 0.5], dtype=torch.float64))
    mean = torch.tensor([1.0, 0.2], dtype=torch.float64)
    ours = relu_covariance(mean, cov)
    alone = relu_covariance(mean[1:], cov[1:, 1:])
    torch.testing.assert_close(ours, torch.diag(torch.cat([torch.zeros(1), alone[0]]).double()))


def test_series_equals_the_closed_form_of_a_polynomial() -> None:
    """x² under a Gaussian: Cov = 2C² + 4 μμᵀC, E[f′] = 2μ."""
    cov, mean = random_covariance(3), torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    first, second, slope = series_covariance(torch.square, mean, cov)
    torch.testing.assert_close(first, mean**2 + torch.diagonal(cov))
    torch.testing.assert_close(second, 2 * cov**2 + 4 * mean[:, None] * mean[None, :] * cov)
    torch.testing.assert_close(slope, 2 * mean)


def test_series_sees_of_a_saturated_unit_what_its_page_says() -> None:
    """Against the integral, cut at both bends; the shares are those of the module's docstring."""
    hardtanh = nn.Hardtanh()
    for away, lost in ((0, 0.07), (1, 0.07), (2, 0.07), (3, 0.07), (4, 0.15), (5, 0.25), (6, 0.34)):
        std, mean = 5.0, 1.0 + 5.0 * away
        u = torch.linspace(-14, 14, 1_400_001, dtype=torch.float64)
        weight = torch.exp(-0.5 * u * u) / (2 * np.pi) ** 0.5
        below = hardtanh(mean + std * u) - 1  # near 0 in the flat part, so that squares are exact
        first, second = (torch.trapezoid(weight * below**power, u) for power in (1, 2))
        at = torch.tensor([mean], dtype=torch.float64)
        _, cov, _ = series_covariance(hardtanh, at, torch.tensor([[std**2]], dtype=torch.float64))
        assert 1 - lost < float(cov) / float(second - first**2) < 1.01
