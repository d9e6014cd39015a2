"""The moment-ReLU as one differentiable operation, chosen by device.

`moments.py` is the reference in plain torch. `moment_relu` is what the propagation calls: a
hand-written backward that keeps only the mean it was given, so a training step stores no more
than it does for a plain ReLU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covprop.kernels.moments import normal_cdf, normal_pdf, relu_mean, standardise
from covprop.layers import per_channel


class _MomentReLU(torch.autograd.Function):
    """out = aμ + (1 − a)(μΦ(z) + sφ(z)), with ∂out/∂μ = a + (1 − a)Φ(z), ∂out/∂s = (1 − a)φ(z)."""

    @staticmethod
    def forward(mean: Tensor, std: Tensor, slope: float) -> Tensor:
        wide, s = mean.to(std.dtype), per_channel(std, mean)
        out = relu_mean(wide, s)
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
        wide = grad.to(std.dtype)
        z = standardise(mean.to(std.dtype), per_channel(std, mean))
        grad_mean = grad_std = None
        if ctx.needs_input_grad[0]:
            grad_mean = (wide * (ctx.slope + (1 - ctx.slope) * normal_cdf(z))).to(grad.dtype)
        if ctx.needs_input_grad[1]:
            dims = [0, *range(2, mean.ndim)]
            grad_std = (wide * ((1 - ctx.slope) * normal_pdf(z))).sum(dims)
        return grad_mean, grad_std, None


def moment_relu(mean: Tensor, std: Tensor, slope: float = 0.0) -> Tensor:
    """Mean after a (leaky) ReLU: mean [b, C, ...] and its standard deviation [C] by channel.

    The arithmetic is done in the precision of `std`; the result has that of `mean`.
    """
    return _MomentReLU.apply(mean, std, slope)
