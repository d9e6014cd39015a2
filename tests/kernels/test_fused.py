"""Every fast path equals the reference, forward and backward."""

import os

import pytest
import torch
from torch import Tensor

from covprop.kernels import blocked, half, moment_relu

SHAPES = [(3, 5), (4, 7, 6, 5), (2, 3, 40, 40), (1, 130, 3, 3), (33, 64, 9, 7)]


def reference(
    mean: Tensor, std: Tensor, grad: Tensor, slope: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor, Tensor]:
    """Value and gradients in float64 by the plain formula."""
    monkeypatch.setenv("COVPROP_FUSED", "0")
    mean, std = mean.double().requires_grad_(), std.double().requires_grad_()
    out = moment_relu(mean, std, slope)
    gradients = torch.autograd.grad(out, (mean, std), grad.double())
    monkeypatch.delenv("COVPROP_FUSED")
    return out.detach(), *gradients


def error(ours: Tensor, expected: Tensor) -> float:
    return float((ours.double() - expected).norm() / expected.norm())


def inputs(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    mean = torch.randn(shape, device=device).to(dtype)
    std = torch.rand(shape[1], device=device) + 0.01
    std[0] = 0.0
    grad = torch.randn(shape, device=device).to(dtype)
    if len(shape) == 4:
        mean = mean.contiguous(memory_format=torch.channels_last)
    return mean, std, grad


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fused_equals_reference(
    shape: tuple[int, ...], slope: float, dtype: torch.dtype, tolerance: float, device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    mean, std, grad = inputs(shape, dtype, device)
    expected = reference(mean, std, grad, slope, monkeypatch)
    a, b = mean.clone().requires_grad_(), std.clone().requires_grad_()
    out = moment_relu(a, b, slope)
    ours = (out, *torch.autograd.grad(out, (a, b), grad))
    assert all(torch.isfinite(value).all() for value in ours)
    checked = slice(3)
    if slope == 0.0 and half.takes(mean, std) and mean.numel() < 500:
        checked = slice(2)  # of so few numbers the errors do not average out: see test_half.py
    for value, truth in zip(ours[checked], expected[checked], strict=True):
        assert error(value.detach(), truth) < tolerance


@pytest.mark.gpu
def test_triton_is_what_runs_on_a_gpu() -> None:
    from covprop.kernels import fused

    mean, std, _ = inputs((2, 3, 8, 8), torch.bfloat16, "cuda")
    kernel = fused(mean, std)
    assert kernel is not None
    assert kernel.__name__.endswith("triton_relu")
    assert fused(mean.contiguous(), std) is None  # channels first: the reference


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gpu_that_is_not_the_current_one(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    mean, std, grad = inputs(SHAPES[1], dtype, "cuda:1")
    value, *gradients = reference(mean, std, grad, 0.0, monkeypatch)
    mean, std = mean.requires_grad_(), std.requires_grad_()
    out = moment_relu(mean, std, 0.0)
    found = torch.autograd.grad(out, (mean, std), grad)
    for ours, expected in zip((out, *found), (value, *gradients), strict=True):
        assert error(ours, expected) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_many_blocks_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of different lengths share their work space and add up to one gradient."""
    mean, std, grad = inputs((33, 4, 9, 7), torch.float32, "cpu")
    whole = (blocked.forward(mean, std, 0.1), *blocked.backward(mean, std, grad, 0.1))
    monkeypatch.setattr(blocked, "BLOCK", 5 * mean[0].numel() // torch.get_num_threads())
    assert len(list(blocked.blocks(mean))) >= 7
    parts = (blocked.forward(mean, std, 0.1), *blocked.backward(mean, std, grad, 0.1))
    for ours, expected in zip(parts, whole, strict=True):
        torch.testing.assert_close(ours, expected)


def test_blocks_cover_every_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "BLOCK", 50_000 // torch.get_num_threads())
    mean = torch.zeros(10, 3, 70, 70)
    assert len(list(blocked.blocks(mean))) == 4
    covered = [i for part in blocked.blocks(mean) for i in range(*part.indices(len(mean)))]
    assert covered == list(range(10))
    assert list(blocked.blocks(torch.zeros(0, 3, 2, 2))) == []
    assert "COVPROP_FUSED" not in os.environ


def test_blocked_at_the_ends_and_at_zero() -> None:
    """Every z from the far tails to 0 itself: value and derivatives to rounding, none missing."""
    z = torch.cat([torch.linspace(-50, 50, 4001), torch.tensor([0.0, -0.0, 1e-35, -1e-35, 1e30])])
    for scale in (1e-10, 1e-3, 1.0, 1e3):
        mean, std = (scale * z)[None], torch.full_like(z, scale)  # a channel each
        out = blocked.forward(mean, std, 0.0)
        by_mean, by_std = blocked.backward(mean, std, torch.ones_like(mean), 0.0)
        wide = (mean.double() / std.double()).clamp(-37, 37)
        cdf = 0.5 * torch.erfc(-wide / 2**0.5)
        pdf = torch.exp(-0.5 * wide**2) / (2 * torch.pi) ** 0.5
        expected = mean.double() * cdf + std.double() * pdf
        assert torch.allclose(out.double(), expected, rtol=2e-6, atol=1e-6 * scale)
        assert torch.allclose(by_mean.double(), cdf, rtol=0, atol=3e-7)
        assert torch.allclose(by_std.double(), pdf[0], rtol=0, atol=3e-7)
        assert (out >= 0).all()


@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("std", [0.0, 1e-20, 1e-12])
def test_blocked_at_means_that_no_deviation_divides(std: float, slope: float) -> None:
    """(Leaky) ReLU itself, where mean/std is beyond float32."""
    mean = torch.tensor([[1e20, 1.0, 0.0], [-1e20, -1.0, 3e38], [-3e38, 1e-30, 1e30]])
    out = moment_relu(mean, torch.full((3,), std), slope)
    expected = torch.nn.functional.leaky_relu(mean, slope)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=0.4 * std + 1e-19)
