"""The moment-ReLU and the tap sum as differentiable operations, in the fastest form there is.

`moments.py` is the reference in plain torch, `blocked.py` the same in cache-sized blocks for the
CPU, `triton_relu.py` the fused kernels for CUDA, and `half.py` the form for half precision on a
GPU: quick formulas good to rounding, and a backward pass from the output alone. Under torch.compile
the reference is used, since the compiler fuses it with its neighbours; with `COVPROP_FUSED=0` it
is used everywhere. `triton_muon.py` has nothing to do with these: it is Muon's step for CUDA.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from covprop.kernels.half import HAVE_TRITON, cast, half_relu, is_matrix, takes
from covprop.kernels.moments import INV_SQRT_2PI, normal_cdf, quick_cdf_and_exp, standardise
from covprop.layers import all_but_channels, per_channel


def fused(mean: Tensor, std: Tensor) -> ModuleType | None:
    """The module whose `forward` and `backward` fit these tensors; None for the reference."""
    if torch.compiler.is_compiling() or os.environ.get("COVPROP_FUSED") == "0":
        return None
    if mean.device.type == "cpu":
        from covprop.kernels import blocked

        return blocked
    if HAVE_TRITON and mean.is_cuda and std.dtype == torch.float32:
        from covprop.kernels import triton_relu

        return triton_relu if is_matrix(mean) else None
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
        return cast(out, mean.dtype)

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
            total = (wide * bell).sum(all_but_channels(mean))
            grad_std = (INV_SQRT_2PI * (1 - ctx.slope)) * total
        return grad_mean, grad_std, None


def moment_relu(mean: Tensor, std: Tensor, slope: float = 0.0) -> Tensor:
    """Mean after a (leaky) ReLU: mean [b, C, ...] and its standard deviation [C] by channel.

    The arithmetic is done in the precision of `std`; the result has that of `mean`.
    """
    if slope == 0.0 and takes(mean, std):
        return half_relu(mean, std, None, again=False)[0]
    return _MomentReLU.apply(mean, std, slope)


def moment_relu_beside(
    mean: Tensor, std: Tensor, inverse: Tensor | None = None, again: bool = True
) -> tuple[Tensor, Tensor]:
    """The same for slope 0, and the input mean for later layers that read it `again`.

    In a residual network they do. If they read it from here, both gradients are added in the kernel
    of the moment-ReLU's, which saves a pass over the feature map. `inverse` is 1/std, if known.
    """
    if takes(mean, std):
        return half_relu(mean, std, inverse, again)
    return moment_relu(mean, std), mean


class _TapSum(torch.autograd.Function):
    """Σ_t W_t S W_tᵀ for a weight [o, t, i] and a symmetric S, in two products, three backward.

    With G the gradient made symmetric and Q = G W: dW = 2·Q S and dS = Σ_t W_tᵀ Q_t. S and the
    result are symmetric, so only the symmetric part of a gradient matters. Products are taken in
    `dtype`, whatever the precision of what goes in and comes out.
    """

    @staticmethod
    def forward(weight: Tensor, cov: Tensor, dtype: torch.dtype) -> Tensor:
        out, taps, inner = weight.shape
        w = weight.to(dtype).contiguous()
        product = w.view(out * taps, inner) @ cov.to(dtype)
        return cast(product.view(out, -1) @ w.view(out, -1).T, cov.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.dtype = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weight, cov = ctx.saved_tensors
        out, taps, inner = weight.shape
        # Exactly twice the forward pass's w, so that a compiler does not keep that one for here.
        w2 = (2.0 * weight).to(ctx.dtype).contiguous()
        half = (0.5 * (grad + grad.T)).to(ctx.dtype)
        twice = (half @ w2.view(out, -1)).view(out * taps, inner)
        grad_weight = grad_cov = None
        if ctx.needs_input_grad[0]:
            grad_weight = (twice @ cov.to(ctx.dtype)).view(out, taps, inner).to(weight.dtype)
        if ctx.needs_input_grad[1]:
            grad_cov = 0.25 * (w2.view(out * taps, inner).T @ twice).to(cov.dtype)
        return grad_weight, grad_cov, None


def tap_sum(weight: Tensor, cov: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Σ_t W_t Σ W_tᵀ over the taps of a weight [o, t, i], for a symmetric Σ.

    `dtype` is the precision of the products, by default that of Σ; bfloat16 costs each entry a
    relative error of about 0.4 %.
    """
    return _TapSum.apply(weight, cov, dtype or cov.dtype)
