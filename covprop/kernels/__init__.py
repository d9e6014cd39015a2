"""The moment-ReLU and the tap sum as differentiable operations, by the fastest means at hand.

`moments.py` is the reference in plain torch, `blocked.py` the same in cache-sized blocks for the
CPU, `triton_relu.py` the fused kernels for CUDA. All keep only the mean they were given for the
backward pass, so a training step stores no more than it does for a plain ReLU. Under torch.compile
the reference is taken, since the compiler fuses it with its neighbours; set `COVPROP_FUSED=0` to
take it everywhere.
"""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from covprop.kernels.moments import INV_SQRT_2PI, normal_cdf, quick_cdf_and_exp, standardise
from covprop.layers import per_channel

HAVE_TRITON = importlib.util.find_spec("triton") is not None


def fused(mean: Tensor, std: Tensor) -> ModuleType | None:
    """The module whose `forward` and `backward` fit these tensors; None for the reference."""
    if torch.compiler.is_compiling() or os.environ.get("COVPROP_FUSED") == "0":
        return None
    if mean.device.type == "cpu":
        from covprop.kernels import blocked

        return blocked
    if HAVE_TRITON and mean.is_cuda and std.dtype == torch.float32:
        from covprop.kernels import triton_relu

        return triton_relu if triton_relu.is_matrix(mean) else None
    return None


def cdf_and_exp(z: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(z) and exp(−z²/2): exact, or to 1e-7 on a GPU, where arithmetic is what costs."""
    if z.is_cuda and z.dtype == torch.float32:
        return quick_cdf_and_exp(z)
    return normal_cdf(z), torch.exp(-0.5 * z * z)


class _MomentReLU(torch.autograd.Function):
    """out = aμ + (1 − a)(μΦ(z) + sφ(z)), with ∂out/∂μ = a + (1 − a)Φ(z), ∂out/∂s = (1 − a)φ(z)."""

    @staticmethod
    def forward(mean: Tensor, std: Tensor, slope: float) -> Tensor:
        if kernel := fused(mean, std):
            return kernel.forward(mean, std, slope)
        wide, s = mean.to(std.dtype), per_channel(std, mean)
        cdf, bell = cdf_and_exp(standardise(wide, s))
        out = (wide * cdf + (INV_SQRT_2PI * s) * bell).clamp_min(0.0)
        if slope:
            out = slope * wide + (1 - slope) * out
        return out.to(mean.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        mean, std, ctx.slope = inputs
        ctx.save_for_backward(mean, std)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        mean, std = ctx.saved_tensors
        # A backward pass that is itself differentiated needs the reference.
        kernel = None if torch.is_grad_enabled() else fused(mean, std)
        if kernel:
            return *kernel.backward(mean, std, grad, ctx.slope), None
        wide = grad.to(std.dtype)
        cdf, bell = cdf_and_exp(standardise(mean.to(std.dtype), per_channel(std, mean)))
        grad_mean = grad_std = None
        if ctx.needs_input_grad[0]:
            grad_mean = (wide * (ctx.slope + (1 - ctx.slope) * cdf)).to(grad.dtype)
        if ctx.needs_input_grad[1]:
            dims = [0, *range(2, mean.ndim)]
            grad_std = (INV_SQRT_2PI * (1 - ctx.slope)) * (wide * bell).sum(dims)
        return grad_mean, grad_std, None


def moment_relu(mean: Tensor, std: Tensor, slope: float = 0.0) -> Tensor:
    """Mean after a (leaky) ReLU: mean [b, C, ...] and its standard deviation [C] by channel.

    The arithmetic is done in the precision of `std`; the result has that of `mean`.
    """
    return _MomentReLU.apply(mean, std, slope)


class _TapSum(torch.autograd.Function):
    """Σ_t W_t S W_tᵀ for a weight [o, t, i] and a symmetric S, in two matrix products each way.

    With P = W S and G the gradient made symmetric: dW = 2·G P and dS = Σ_t W_tᵀ G W_t; P and W are
    multiplied by G in one product. S and the result are symmetric, so only the symmetric part of
    a gradient matters.
    """

    @staticmethod
    def forward(weight: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
        out, taps, inner = weight.shape
        product = weight.reshape(out * taps, inner) @ cov
        return product.view(out, -1) @ weight.reshape(out, -1).T, product.view(out, taps, inner)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        if grad is None:
            return None, None
        weight, cov, product = ctx.saved_tensors
        out, taps, inner = weight.shape
        if torch.is_grad_enabled():  # a second derivative is wanted: keep the path to the inputs
            product = weight @ cov
        symmetric = 0.5 * (grad + grad.T)
        grad_weight = grad_cov = None
        if ctx.needs_input_grad[0]:
            grad_weight = (2.0 * symmetric @ product.reshape(out, -1)).view(out, taps, inner)
        if ctx.needs_input_grad[1]:
            pulled = (symmetric @ weight.reshape(out, -1)).view(out * taps, inner)
            grad_cov = weight.reshape(out * taps, inner).T @ pulled
        return grad_weight, grad_cov


def tap_sum(weight: Tensor, cov: Tensor) -> Tensor:
    """Σ_t W_t Σ W_tᵀ over the taps of a weight [o, t, i], for a symmetric Σ."""
    return _TapSum.apply(weight, cov)[0]
