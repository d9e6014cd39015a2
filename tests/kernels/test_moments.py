"""Closed-form moments against adaptive quadrature, and their hand-written derivatives."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import gaussian_expectation, normal_cdf, relative
from torch import Tensor

from covprop.kernels import moment_relu, tap_sum
from covprop.kernels.moments import (
    gelu_mean,
    hermite_coefficients,
    quadrature_mean,
    relu_mean,
)
from covprop.layers import MOST_DEGREE, HermiteActivation, hermite, relu_coefficients

SLOPE = 0.1


def relu(x: float) -> float:
    return max(x, 0.0)


def leaky(x: float) -> float:
    return x if x > 0 else SLOPE * x


def gelu(x: float) -> float:
    return x * normal_cdf(x)


def leaky_mean(mean: Tensor, std: Tensor, slope: float = SLOPE) -> Tensor:
    """Since leaky(x) = ax + (1 − a)relu(x)."""
    return slope * mean + (1 - slope) * relu_mean(mean, std)


CASES = [(relu, relu_mean), (leaky, leaky_mean), (gelu, gelu_mean)]
IDS = ["relu", "leaky", "gelu"]
RATIOS = [-40.0, -8.0, -3.0, -1.0, -0.1, 0.0, 0.3, 1.0, 2.5, 8.0, 40.0]


@pytest.mark.parametrize(("function", "mean"), CASES, ids=IDS)
@pytest.mark.parametrize("std", [1e-3, 0.5, 1.0, 4.0])
def test_means_equal_quadrature(function: Callable, mean: Callable, std: float) -> None:
    mu = torch.tensor(RATIOS, dtype=torch.float64) * std
    ours = mean(mu, torch.full_like(mu, std))
    for k, m in enumerate(mu.tolist()):
        expected = gaussian_expectation(function, m, std)
        assert abs(ours[k].item() - expected) <= 1e-10 * max(std, abs(expected))


@pytest.mark.parametrize(("function", "mean"), CASES, ids=IDS)
@pytest.mark.parametrize("std", [1e-3, 1.0, 4.0])
def test_float32_is_finite_and_close_out_to_forty_deviations(
    function: Callable, mean: Callable, std: float
) -> None:
    ratios = torch.linspace(-40, 40, 321)
    mu, s = ratios * std, torch.full_like(ratios, std)
    narrow, wide = mean(mu, s), mean(mu.double(), s.double())
    assert torch.isfinite(narrow).all()
    assert (narrow.double() - wide).abs().max() <= 1e-5 * wide.abs().max()


@pytest.mark.parametrize("mean", [-2.0, 0.0, 2.0])
def test_zero_deviation_is_the_activation_itself(mean: float) -> None:
    mu, zero = torch.tensor([mean]), torch.zeros(1)
    assert relu_mean(mu, zero).item() == pytest.approx(relu(mean), abs=1e-30)
    assert gelu_mean(mu, zero).item() == pytest.approx(gelu(mean), abs=1e-6)


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_moment_relu_gradcheck(slope: float) -> None:
    mean = torch.randn(3, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    std = (torch.rand(4, dtype=torch.float64) + 0.1).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda m, s: moment_relu(m, s, slope), (mean, std))
    assert torch.autograd.gradgradcheck(lambda m, s: moment_relu(m, s, slope), (mean, std))


@given(st.floats(0, 0.9), st.integers(1, 4))
def test_moment_relu_equals_reference(slope: float, batch: int) -> None:
    mean, std = torch.randn(batch, 3, 5, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    ours = moment_relu(mean, std, slope)
    torch.testing.assert_close(ours, leaky_mean(mean, std.view(1, 3, 1), slope))


@pytest.mark.parametrize("std", [0.0, 1e-38, 1e-20, 1e-6])
def test_gradients_stay_finite_as_the_deviation_vanishes(std: float) -> None:
    mean = torch.tensor([[-3.0, 0.0, 3.0]], requires_grad=True)
    deviation = torch.full((3,), std, requires_grad=True)
    moment_relu(mean, deviation).sum().backward()
    assert mean.grad is not None
    assert deviation.grad is not None
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(deviation.grad).all()
    assert mean.grad[0].tolist() == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("function", "scalar"),
    [
        (torch.tanh, math.tanh),
        (torch.nn.functional.silu, lambda x: x / (1 + math.exp(-x))),
        (torch.sigmoid, lambda x: 1 / (1 + math.exp(-x))),
        (torch.nn.functional.softplus, lambda x: math.log1p(math.exp(x))),
    ],
)
@pytest.mark.parametrize(
    ("std", "nodes", "tolerance"),
    [(0.1, 32, 1e-12), (1.0, 32, 1e-5), (2.0, 32, 1e-3), (2.0, 256, 1e-8)],
)
def test_quadrature_mean(
    function: Callable, scalar: Callable, std: float, nodes: int, tolerance: float
) -> None:
    """Gauss–Hermite is limited by the poles of f: exact for small s, 3e-4 at s = 2 for tanh."""
    mean = torch.tensor([-3.0, -0.5, 0.0, 1.0, 4.0], dtype=torch.float64)
    ours = quadrature_mean(function, mean, torch.full_like(mean, std), nodes)
    expected = [gaussian_expectation(scalar, m, std) for m in mean.tolist()]
    assert (ours - torch.tensor(expected, dtype=torch.float64)).abs().max() < tolerance


def test_hermite_polynomials_are_orthonormal_and_relu_starts_right() -> None:
    for j in range(6):
        for k in range(6):
            value = gaussian_expectation(
                lambda u, j=j, k=k: float(
                    hermite(torch.tensor([u], dtype=torch.float64), 6)[j]
                    * hermite(torch.tensor([u], dtype=torch.float64), 6)[k]
                ),
                0.0, 1.0,
            )  # fmt: skip
            assert value == pytest.approx(float(j == k), abs=1e-8)
        expected = gaussian_expectation(
            lambda u, j=j: relu(u) * float(hermite(torch.tensor([u], dtype=torch.float64), 6)[j]),
            0.0, 1.0,
        )  # fmt: skip
        assert relu_coefficients(6)[j] == pytest.approx(expected, abs=1e-10)


def test_hermite_coefficients_rebuild_the_function() -> None:
    layer = HermiteActivation(5).double()
    torch.nn.init.normal_(layer.coefficients)
    mean, std = torch.tensor([0.7], dtype=torch.float64), torch.tensor([1.7], dtype=torch.float64)
    a = hermite_coefficients(layer.coefficients, mean, std)
    u = torch.linspace(-3, 3, 13, dtype=torch.float64)
    rebuilt = sum(c * h for c, h in zip(a, hermite(u, 6), strict=True))
    torch.testing.assert_close(rebuilt, layer(mean + std * u))


@pytest.mark.parametrize("std", [0.1, 1.0, 2.0])
def test_hermite_coefficients_in_float32_hold_to_the_largest_degree(std: float) -> None:
    layer = HermiteActivation(MOST_DEGREE)
    mean = torch.linspace(-5, 5, 21)
    wide = mean.double(), torch.full_like(mean, std).double()
    exact = hermite_coefficients(layer.coefficients.double(), *wide)
    ours = hermite_coefficients(layer.coefficients, mean, torch.full_like(mean, std))
    assert relative(ours[0].double(), exact[0]) < 1e-5
    variance, expected = (sum(a**2 for a in found[1:]) for found in (ours, exact))
    torch.testing.assert_close(variance.double(), expected, rtol=1e-5, atol=0)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_tap_sum_gradcheck(out: int, taps: int, inner: int) -> None:
    weight = torch.randn(out, taps, inner, dtype=torch.float64, requires_grad=True)
    factor = torch.randn(inner, inner, dtype=torch.float64, requires_grad=True)

    def run(weight: Tensor, factor: Tensor) -> Tensor:
        return tap_sum(weight, factor @ factor.T)  # a covariance is symmetric

    expected = torch.einsum("oti,ij,ptj->op", weight, factor @ factor.T, weight)
    torch.testing.assert_close(run(weight, factor), expected)
    # A symmetric read-out, as every later rule is.
    assert torch.autograd.gradcheck(lambda w, f: (o := run(w, f)) + o.T, (weight, factor))
    assert torch.autograd.gradgradcheck(lambda w, f: (o := run(w, f)) + o.T, (weight, factor))


def test_tap_sum_in_bfloat16_is_close() -> None:
    weight = torch.randn(24, 9, 16, dtype=torch.float64, requires_grad=True)
    root = torch.randn(16, 16, dtype=torch.float64)
    cov = (root @ root.T).requires_grad_()
    grad = torch.randn(24, 24, dtype=torch.float64)
    grad = grad + grad.T
    exact = tap_sum(weight, cov)
    half = tap_sum(weight, cov, torch.bfloat16)
    assert half.dtype == torch.float64
    assert not torch.equal(half, exact)  # it did multiply in bfloat16
    expected = (exact, *torch.autograd.grad(exact, (weight, cov), grad))
    ours = (half, *torch.autograd.grad(half, (weight, cov), grad))
    for a, b in zip(ours, expected, strict=True):
        assert (a - b).norm() / b.norm() < 6e-3
