"""The half-precision moment-ReLU against scipy, and its Triton kernels against float64."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from covprop.kernels import half, moment_relu, moment_relu_beside
from covprop.layers import per_channel

Z = np.linspace(-9.0, 30.0, 20001)
CDF, PDF = stats.norm.cdf(Z), stats.norm.pdf(Z)
UNIT = torch.ones(())


def test_forward_formula() -> None:
    ours = half.relu_mean(torch.tensor(Z).float(), UNIT, UNIT).double().numpy()
    assert np.abs(ours - (Z * CDF + PDF)).max() < 3e-6


def test_slopes_follow_from_the_output() -> None:
    cdf, density = half.slopes(torch.tensor(Z * CDF + PDF).float(), UNIT)
    assert np.abs(cdf.numpy() - CDF).max() < 4e-4
    assert np.abs(density.numpy() - PDF).max() < 1.2e-3


def test_slopes_at_the_ends() -> None:
    cdf, density = half.slopes(torch.tensor([0.0, 1e-38, 1e38, float("inf")]), UNIT)
    assert cdf.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert density.max() < 1e-11


def test_no_deviation_is_a_plain_relu() -> None:
    mean = torch.randn(4, 3)
    out = half.relu_mean(mean, torch.zeros(3), half.inverse_of(torch.zeros(3)))
    assert torch.equal(out, mean.relu())
    assert torch.equal(half.slopes(out, torch.zeros(3))[0], (mean > 0).float())


def test_far_from_zero_nothing_overflows() -> None:
    mean, std = torch.tensor([-3e38, -1e30, 1e30, 3e38]), torch.tensor(1e-3)
    assert torch.equal(half.relu_mean(mean, std, half.inverse_of(std)), mean.relu())


def test_operator_on_the_cpu() -> None:
    out, std = torch.rand(2, 3, 4, 4).bfloat16(), torch.rand(3) + 0.1
    grad, beside = torch.randn_like(out), torch.randn_like(out)
    alone, _ = half.backward(out, std, grad, None, False)
    both, _ = half.backward(out, std, grad, beside, True)
    torch.testing.assert_close(both.float(), (alone + beside).float(), rtol=2e-2, atol=2e-2)
    torch.library.opcheck(half.backward, (out, std, grad, beside, True), test_utils="test_schema")
    torch.library.opcheck(half.backward, (out, std, grad, None, True), test_utils="test_faketensor")


def test_float32_goes_the_exact_way() -> None:
    mean, std = torch.randn(2, 3, 4, 4), torch.rand(3)
    out, same = moment_relu_beside(mean, std)
    assert same is mean
    assert torch.equal(out, moment_relu(mean, std))


def exact(mean: Tensor, std: Tensor, grad: Tensor, beside: Tensor) -> tuple[Tensor, ...]:
    mean, std = mean.double().requires_grad_(), std.double().requires_grad_()
    out = moment_relu(mean, std)
    gradients = torch.autograd.grad(
        [out, mean * 1.0], (mean, std), [grad.double(), beside.double()]
    )
    return out.detach(), *gradients


def from_output(out: Tensor, std: Tensor, grad: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by the formula in float64, from the output as it was rounded."""
    cdf, density = half.slopes(out.double(), per_channel(std.double(), out))
    by_std = (grad.double() * density).sum([0, *range(2, out.ndim)])
    return grad.double() * cdf + beside.double(), by_std


def most_wrong(grad: Tensor) -> Tensor:
    """How far std's gradient may be off: for every number φ's own 1.2e-3, and what half a unit in
    the output's last place makes of it, 2⁻⁸ · u|dφ/du| with u|dφ/du| < 0.34."""
    return (1.2e-3 + 0.34 / 256) * grad.double().abs().sum([0, *range(2, grad.ndim)])


def error(ours: Tensor, truth: Tensor) -> float:
    return float((ours.double() - truth).norm() / truth.norm())


def check(ours: tuple[Tensor, ...], mean: Tensor, std: Tensor, *gradients: Tensor) -> None:
    """Output, gradient of the mean and gradient of std, as ‖ours − float64‖/‖float64‖.

    The first two are rounded to bfloat16 in the end. The last is not: it is the formula's to
    float32's rounding, and the truth's as far as φ can be read off a rounded output. Of a few
    numbers errors do not average out, so there each number's own bound counts.
    """
    assert all(torch.isfinite(value).all() for value in ours)
    by_mean, by_std = from_output(ours[0], std, *gradients)
    assert error(ours[1], by_mean) < 3e-3
    assert error(ours[2], by_std) < 1e-4
    truths = exact(mean, std, *gradients)
    assert error(ours[0], truths[0]) < 3e-3
    assert error(ours[1], truths[1]) < 3e-3
    assert ((ours[2].double() - truths[2]).abs() <= most_wrong(gradients[0])).all()
    if mean.numel() > 500:
        assert error(ours[2], truths[2]) < 6e-3


def test_an_outputs_last_place_moves_the_density_by_less_than_is_allowed() -> None:
    assert 0.32 < (np.abs(Z) * PDF * (Z + PDF / CDF)).max() < 0.34  # u|dφ/du|, u = zΦ(z) + φ(z)


@pytest.mark.parametrize("shape", [(3, 5), (33, 8, 9, 7)], ids=str)
@pytest.mark.parametrize("again", [False, True])
def test_gradients_by_the_formula(again: bool, shape: tuple[int, ...]) -> None:
    """The same bounds as on a GPU, by the reference that runs where there is none."""
    mean = torch.randn(shape).bfloat16()
    std = torch.rand(shape[1]) + 0.01
    grad, beside = torch.randn_like(mean), torch.randn_like(mean) * again
    a, b = mean.clone().requires_grad_(), std.clone().requires_grad_()
    out, same = half.half_relu(a, b, half.inverse_of(std), again)
    assert (same is a) != again
    ours = (out.detach(), *torch.autograd.grad([out, same * 1.0], (a, b), [grad, beside]))
    check(ours, mean, std, grad, beside)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 5), (4, 7, 6, 5), (1, 130, 3, 3), (33, 64, 9, 7)], ids=str)
@pytest.mark.parametrize("layout", ["channels last", "channels first"])
def test_on_a_gpu_equals_float64(shape: tuple[int, ...], layout: str) -> None:
    mean = torch.randn(shape, device="cuda").bfloat16()
    if len(shape) == 4 and layout == "channels last":
        mean = mean.contiguous(memory_format=torch.channels_last)
    std = torch.rand(shape[1], device="cuda") + 0.01
    std[0] = 0.0
    grad, beside = torch.randn_like(mean), torch.randn_like(mean)
    a, b = mean.clone().requires_grad_(), std.clone().requires_grad_()
    out, same = moment_relu_beside(a, b)
    ours = (out.detach(), *torch.autograd.grad([out, same], (a, b), [grad, beside]))
    assert half.takes(mean, std)
    check(ours, mean, std, grad, beside)
