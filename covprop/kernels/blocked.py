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

BLOCK = 262_144  # numbers a thread; 1 MiB in float32


def blocks(mean: Tensor) -> Iterator[slice]:
    """Runs of images that hold about BLOCK numbers for each thread."""
    numbers = BLOCK * torch.get_num_threads()
    images = max(1, numbers // max(1, mean[0].numel())) if len(mean) else 1
    for start in range(0, len(mean), images):
        yield slice(start, start + images)


def scaled_inverse(std: Tensor, mean: Tensor) -> Tensor:
    """1/(√2·s), shaped for `mean`, so that y = mean · inverse = z/√2."""
    return per_channel(SQRT_HALF / std.clamp_min(torch.finfo(std.dtype).tiny), mean)


def moments(x: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """erf(z/√2) = 2Φ(z) − 1 and exp(−z²/2) of one block."""
    bound = SQRT_HALF * limit(inverse.dtype)
    y = (x * inverse).clamp_(-bound, bound)
    return torch.erf(y), y.square_().neg_().exp_()


def forward(mean: Tensor, std: Tensor, slope: float) -> Tensor:
    """aμ + (1 − a)(μΦ(z) + sφ(z)) for std [channels] in float32 or wider."""
    out = torch.empty_like(mean)
    inverse = scaled_inverse(std, mean)
    s = per_channel(INV_SQRT_2PI * std, mean)
    for part in blocks(mean):
        x = mean[part].to(std.dtype)
        erf, value = moments(x, inverse)
        value.mul_(s).addcmul_(x, erf.add_(1.0), value=0.5).clamp_min_(0.0)
        if slope:
            value.mul_(1 - slope).add_(x, alpha=slope)
        out[part] = value
    return out


def backward(mean: Tensor, std: Tensor, grad: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """Gradients of the mean and of std."""
    grad_mean = torch.empty_like(mean)
    grad_std = torch.zeros_like(std)
    dims = [0, *range(2, mean.ndim)]
    inverse = scaled_inverse(std, mean)
    for part in blocks(mean):
        erf, density = moments(mean[part].to(std.dtype), inverse)
        g = grad[part].to(std.dtype)
        grad_std += density.mul_(g).sum(dims)
        # slope + (1 − slope)(1 + erf)/2 = (1 + slope)/2 + (1 − slope)/2 · erf
        erf.mul_(0.5 * (1 - slope)).add_(0.5 * (1 + slope))
        grad_mean[part] = erf.mul_(g)
    return grad_mean, grad_std.mul_(INV_SQRT_2PI * (1 - slope))
