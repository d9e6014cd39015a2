"""The moment-ReLU on the CPU: plain torch in blocks that stay in the cache.

A chain of element-wise operations over a whole feature map goes through memory once an operation.
Over a block of a few thousand numbers at a time, and in place, it goes through memory once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from covprop.kernels.moments import INV_SQRT_2PI, SQRT_HALF, limit
from covprop.layers import per_channel

BLOCK = 32_768  # numbers; 128 KiB in float32


def blocks(mean: Tensor) -> Iterator[slice]:
    """Runs of images that hold about BLOCK numbers."""
    images = max(1, BLOCK // max(1, mean[0].numel())) if len(mean) else 1
    for start in range(0, len(mean), images):
        yield slice(start, start + images)


def moments(mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(z) and φ(z) of one block, for z = mean · inverse."""
    bound = limit(inverse.dtype)
    z = (mean.to(inverse.dtype) * inverse).clamp_(-bound, bound)
    pdf = (z * z).mul_(-0.5).exp_().mul_(INV_SQRT_2PI)
    return z.mul_(-SQRT_HALF).erfc_().mul_(0.5), pdf


def forward(mean: Tensor, std: Tensor, slope: float) -> Tensor:
    """aμ + (1 − a)(μΦ(z) + sφ(z)) for std [channels] in float32 or wider."""
    out = torch.empty_like(mean)
    inverse = per_channel(1.0 / std.clamp_min(torch.finfo(std.dtype).tiny), mean)
    s = per_channel(std, mean)
    for part in blocks(mean):
        x = mean[part]
        cdf, pdf = moments(x, inverse)
        value = pdf.mul_(s).addcmul_(x.to(std.dtype), cdf).clamp_min_(0.0)
        if slope:
            value.mul_(1 - slope).add_(x, alpha=slope)
        out[part] = value
    return out


def backward(mean: Tensor, std: Tensor, grad: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """Gradients of the mean and of std."""
    grad_mean = torch.empty_like(mean)
    grad_std = torch.zeros_like(std)
    dims = [0, *range(2, mean.ndim)]
    inverse = per_channel(1.0 / std.clamp_min(torch.finfo(std.dtype).tiny), mean)
    for part in blocks(mean):
        cdf, pdf = moments(mean[part], inverse)
        g = grad[part].to(std.dtype)
        grad_std += pdf.mul_(g).sum(dims)
        if slope:
            cdf.mul_(1 - slope).add_(slope)
        grad_mean[part] = cdf.mul_(g)
    return grad_mean, grad_std.mul_(1 - slope)
