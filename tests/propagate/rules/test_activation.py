"""Activations: means through the propagator, slopes against a grid, Mehler against quadrature."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import gaussian_expectation, is_psd, random_covariance, relative
from torch import Tensor, nn

from covprop import (
    PAPER,
    HermiteActivation,
    InvalidInput,
    Settings,
    UnsupportedModel,
    check,
    elementwise,
)
from covprop.estimate.ibp import ibp
from covprop.propagate.channels import channel_std
from covprop.propagate.registry import find, rule
from covprop.propagate.rules.activation import hermite, hermite_mean

ACTIVATIONS = [
    nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(1.5), nn.GELU(), nn.GELU(approximate="tanh"),
    nn.SiLU(), nn.Mish(), nn.Tanh(), nn.Sigmoid(), nn.LogSigmoid(), nn.Softplus(),
    nn.Softplus(beta=3), nn.Softsign(), nn.Softshrink(), nn.Tanhshrink(), nn.ELU(), nn.ELU(2.5),
    nn.CELU(), nn.SELU(), nn.ReLU6(), nn.Hardtanh(), nn.Hardsigmoid(), nn.Hardswish(), nn.PReLU(),
    nn.RReLU().eval(), nn.RReLU(-3.0, 1.0).eval(),
]  # fmt: skip
KINKED = (nn.Softshrink, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softsign)
KINKED += (nn.ELU, nn.CELU, nn.SELU)


@pytest.mark.parametrize("layer", [*ACTIVATIONS, nn.ELU(-3.0)], ids=str)
def test_covariance_is_the_largest_slope_squared(layer: nn.Module) -> None:
    x = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    x = torch.cat([x, torch.tensor([-1e-12, 1e-12], dtype=torch.float64)]).requires_grad_(True)
    (slopes,) = torch.autograd.grad(layer.double()(x).sum(), x)
    steepest = slopes.abs().max()
    entry = find(type(layer))
    assert entry is not None
    cov = random_covariance(3)
    ours = entry.cov(layer, cov, PAPER)
    assert relative(ours, steepest**2 * cov) < 1e-7


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("std", [0.05, 0.5, 1.0])
def test_mean_equals_quadrature(layer: nn.Module, std: float) -> None:
    layer = layer.double()
    entry = find(type(layer))
    assert entry is not None
    assert entry.mean is not None
    mean = torch.tensor([[-2.0, -0.4, 0.0, 0.7, 3.0]], dtype=torch.float64)
    ours = entry.mean(layer, mean, torch.full_like(mean[0], std), PAPER).detach().flatten()

    def scalar(x: float) -> float:
        return float(layer(torch.tensor([x], dtype=torch.float64)).detach())

    expected = torch.tensor([gaussian_expectation(scalar, m, std) for m in mean[0].tolist()])
    # Gauss–Hermite converges slowly across a kink: within 2 % of s, as `elementwise` says.
    tolerance = 2e-2 * std if isinstance(layer, KINKED) else 2e-5
    assert (ours - expected).abs().max() < tolerance


def test_functional_and_module_agree() -> None:
    cov, mean = random_covariance(4), torch.randn(2, 4, 3, 3, dtype=torch.float64)
    std = channel_std(cov, 4)
    from covprop.propagate.registry import Call

    pairs = [(nn.ReLU(), F.relu, ()), (nn.ELU(2.0), F.elu, (2.0,)), (nn.GELU(), F.gelu, ())]
    pairs += [(nn.LeakyReLU(0.3), F.leaky_relu, (0.3,)), (nn.SiLU(), F.silu, ())]
    pairs += [(nn.ReLU6(), torch.clamp, (0.0, 6.0)), (nn.Hardtanh(), Tensor.clip, (-1.0, 1.0))]
    for layer, function, options in pairs:
        a, b = find(type(layer)), find(function)
        assert a is not None
        assert b is not None
        call = Call(function, (None, *options), {}, 0)
        torch.testing.assert_close(a.cov(layer, cov, PAPER), b.cov(call, cov, PAPER))
        torch.testing.assert_close(a.mean(layer, mean, std, PAPER), b.mean(call, mean, std, PAPER))


def test_relu_floor() -> None:
    entry = find(nn.ReLU)
    assert entry is not None
    cov = random_covariance(3)
    ours = entry.cov(nn.ReLU(), cov, Settings(relu_floor=0.1))
    torch.testing.assert_close(ours, cov + 0.1 * torch.eye(3, dtype=torch.float64))


def test_hermite_moments_are_exact_for_a_gaussian() -> None:
    layer = HermiteActivation(4).double()
    nn.init.normal_(layer.coefficients)
    cov = random_covariance(2, seed=3)
    mean = torch.tensor([[0.4, -1.1]], dtype=torch.float64)
    # Two-dimensional Gauss–Hermite is exact for polynomials of this degree.
    points, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    u, v = np.meshgrid(points, points, indexing="ij")
    w = torch.from_numpy(np.outer(weights, weights)).flatten()
    factor = torch.linalg.cholesky(cov)
    draws = mean + torch.from_numpy(np.stack([u.ravel(), v.ravel()], 1)) @ factor.T
    values = layer(draws).detach()
    first = (w[:, None] * values).sum(0)
    second = (w[:, None] * (values - first)).T @ (values - first)
    ours = hermite_mean(layer, mean, channel_std(cov, 2), PAPER).detach()
    torch.testing.assert_close(ours[0], first)
    torch.testing.assert_close(hermite(layer, cov, PAPER, mean, (2,)).detach(), second)


def test_hermite_shared_covariance_is_the_average_and_psd() -> None:
    layer = HermiteActivation(3).double()
    cov, means = random_covariance(3), torch.randn(5, 3, 2, 2, dtype=torch.float64)
    shared = hermite(layer, cov, PAPER, means, (3, 2, 2)).detach()
    pixels = means.permute(0, 2, 3, 1).reshape(-1, 3)
    each = [hermite(layer, cov, PAPER, pixel[None], (3,)).detach() for pixel in pixels]
    torch.testing.assert_close(shared, torch.stack(each).mean(0))
    assert is_psd(shared)


def test_hermite_of_a_channel_without_noise_is_no_nan() -> None:
    layer = HermiteActivation(3)
    cov = torch.diag(torch.tensor([0.0, 0.5]))
    ours = hermite(layer, cov, PAPER, torch.tensor([[0.3, 0.3]]), (2,)).detach()
    alone = hermite(layer, cov[1:, 1:], PAPER, torch.tensor([[0.3]]), (1,)).detach()
    torch.testing.assert_close(ours, torch.diag(torch.tensor([0.0, alone.item()])))


def test_gradients_of_prelu_are_finite_at_tiny_deviations() -> None:
    entry = find(nn.PReLU)
    assert entry is not None
    layer, mean = nn.PReLU(), torch.tensor([[1e3], [-1e3]], requires_grad=True)
    for tiny in (1e-19, 1e-30):
        std = torch.tensor([tiny], requires_grad=True)
        entry.mean(layer, mean, std, PAPER).sum().backward()
        torch.testing.assert_close(std.grad, torch.zeros(1))
    torch.testing.assert_close(mean.grad, torch.tensor([[2.0], [0.5]]))


def test_covariance_after_prelu_follows_a_slope_above_1() -> None:
    entry = find(nn.PReLU)
    assert entry is not None
    layer, cov = nn.PReLU(3).double(), random_covariance(3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, -2.0, 1.5]))
    entry.cov(layer, cov, PAPER).trace().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(
        layer.weight.grad, torch.tensor([0, -4, 0]) * cov.trace(), check_dtype=False
    )
    assert not entry.cov(layer, cov, PAPER.but(detach_covariance=True)).requires_grad


def test_own_activation_in_one_line() -> None:
    class Swish2(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(2 * x)

    elementwise(Swish2, slope=1.0999)
    entry = find(Swish2)
    assert entry is not None
    mean, std = torch.tensor([[0.3]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    expected = gaussian_expectation(lambda x: x / (1 + np.exp(-2 * x)), 0.3, 1.0)
    assert entry.mean(Swish2(), mean, std, PAPER).item() == pytest.approx(expected, abs=1e-4)


def test_registering_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="has a rule already"):
        elementwise(nn.Tanh, slope=1.0)
    with pytest.raises(TypeError, match="asks for weather"):

        @rule(nn.Bilinear)
        def bilinear(layer: nn.Module, cov: Tensor, settings: Settings, weather: int) -> Tensor:
            return cov

    with pytest.raises(TypeError, match="signature is"):

        @rule(nn.Bilinear)
        def short(cov: Tensor) -> Tensor:
            return cov


@pytest.mark.parametrize("slope", [-1.0, float("nan")])
def test_a_slope_that_is_none(slope: float) -> None:
    class Bent(nn.Tanh):
        pass

    with pytest.raises(InvalidInput, match="largest absolute slope"):
        elementwise(Bent, slope=slope)


@pytest.mark.parametrize("alpha", [-0.5, -2.0, 0.0])
def test_celu_without_a_largest_slope_is_refused(alpha: float) -> None:
    if alpha:
        x = torch.tensor([-9.0], requires_grad=True)
        F.celu(x, alpha).sum().backward()
        assert x.grad is not None
        assert x.grad.abs() > 50
    for layer in (nn.CELU(alpha), nn.Sequential(nn.ReLU(), nn.CELU(alpha))):
        with pytest.raises(UnsupportedModel, match=r"slope has no bound.*give it an alpha above 0"):
            check(nn.Sequential(layer, nn.Flatten()), (1, 2, 2))
    check(nn.Sequential(nn.CELU(0.3), nn.Flatten()), (1, 2, 2))


@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 2), (5.0, 2.0), (1.0, 14.9), (3.0, -1.0)])
def test_softplus_that_jumps_is_refused(beta: float, threshold: float) -> None:
    at = torch.tensor(threshold / beta, dtype=torch.float64)
    before, after = (F.softplus(at + step, beta, threshold) for step in (-1e-9, 1e-9))
    assert before - after > 3e-7 / beta
    for layer in (nn.Softplus(beta, threshold), Calls(F.softplus, beta, threshold=threshold)):
        with pytest.raises(UnsupportedModel, match=r"jumps where .* give it a threshold of 15"):
            check(nn.Sequential(layer, nn.Flatten()), (1, 2, 2))
        with pytest.raises(UnsupportedModel, match=r"jumps where .* give it a threshold of 15"):
            ibp(nn.Sequential(nn.Flatten(), layer), torch.rand(1, 1, 2, 2), 0.1)
    check(nn.Sequential(nn.Softplus(beta, 15), Calls(F.softplus, beta), nn.Flatten()), (1, 2, 2))


class Calls(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable, *args: float, **options: float) -> None:
        super().__init__()
        self.function, self.args, self.options = function, args, options

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.args, **self.options)


def test_a_degree_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"degree 2\.5: it needs a whole number"):
        HermiteActivation(2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("degree", [33, 171, 400])
def test_a_degree_whose_moments_float32_cannot_hold_is_refused(degree: int) -> None:
    with pytest.raises(InvalidInput, match=rf"degree {degree}: .* at least 1 and at most 32\."):
        HermiteActivation(degree)
