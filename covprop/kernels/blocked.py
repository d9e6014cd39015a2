"""The moment-ReLU on the CPU: plain torch in blocks that stay in the cache.

A chain of element-wise operations over a whole feature map goes through memory once an operation.
Over a block at a time, and in place, it goes through memory once. The two transcendental functions
are the ones torch is quickest at: Φ(z) = gelu(z)/z takes half the time of erf, exp2 a third of exp.
In float32 Φ is right to 2e-7, in float64 to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from covprop.kernels.moments import INV_SQRT_2PI, limit
from covprop.layers import all_but_channels, per_channel

BLOCK = 524_288  # numbers a thread; 2 MiB in float32
NOT_ZERO = 1.1e-30  # added to z, since gelu(z)/z has no value at 0
LITTLE = 1e-10  # a deviation by which any mean below 3e28 can be divided in float32


def blocks(mean: Tensor) -> Iterator[slice]:
    """Runs of images that hold about BLOCK numbers for each thread."""
    numbers = BLOCK * torch.get_num_threads()
    images = max(1, numbers // max(1, mean[0].numel())) if len(mean) else 1
    for start in range(0, len(mean), images):
        yield slice(start, start + images)


class Standard:
    """z = x/s block by block, and c·φ(z); c is a number a channel.

    Operations take one number a channel at most: with two, torch leaves its vector loops and takes
    four times as long.
    """

    def __init__(self, mean: Tensor, std: Tensor, factor: Tensor) -> None:
        self.inverse = per_channel(std.reciprocal(), mean)
        self.log_factor = per_channel(torch.log2(INV_SQRT_2PI * factor), mean)
        self.bound = limit(std.dtype)
        self.space: Tensor | None = None  # the same for every block, so that it stays in the cache

    def __call__(self, x: Tensor) -> Tensor:
        """z, which the next call overwrites."""
        if self.space is None or len(self.space) < len(x):
            self.space = torch.empty_like(x)
        return torch.mul(x, self.inverse, out=self.space[: len(x)])

    def density(self, z: Tensor) -> Tensor:
        """c·φ(z), in the place of a z within ±bound."""
        return torch.addcmul(self.log_factor, z, z, value=-0.5 / math.log(2.0), out=z).exp2_()


def positive(std: Tensor) -> Tensor:
    """A deviation so small that it does not matter instead of 0: its inverse and x/s are finite."""
    return std.clamp_min(math.sqrt(torch.finfo(std.dtype).tiny))


def beyond(mean: Tensor, std: Tensor) -> bool:
    """Whether x/s is too large a number somewhere, for the least of these deviations being tiny."""
    least = float(std.min())
    if least > LITTLE or not len(mean):
        return False
    return float(mean.abs().max()) > least * torch.finfo(std.dtype).max


def forward(mean: Tensor, std: Tensor, slope: float) -> Tensor:
    """aμ + (1 − a)·s(zΦ(z) + φ(z)) for std [channels] in float32 or wider."""
    out = torch.empty_like(mean)
    std = positive(std)
    overflows = beyond(mean, std)
    standard, scale = Standard(mean, std, std), per_channel(std, mean)
    for part in blocks(mean):
        x = mean[part].to(std.dtype)
        value = out[part] if out.dtype == x.dtype else torch.empty_like(x)
        z = standard(x)
        if overflows:  # so z ends where E[relu(x)] is x to rounding, or 0
            z.clamp_(-standard.bound, standard.bound)
        torch.ops.aten.gelu.out(z, out=value)
        density = standard.density(z.clamp_(-standard.bound, standard.bound))
        torch.addcmul(density, value, scale, out=value).clamp_min_(0.0)
        if overflows:
            torch.maximum(value, x, out=value)
        if slope:
            value.mul_(1 - slope).add_(x, alpha=slope)
        if out.dtype != x.dtype:
            out[part] = value
    return out


def backward(mean: Tensor, std: Tensor, grad: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """Gradients of the mean and of std."""
    grad_mean = torch.empty_like(mean)
    grad_std = torch.zeros_like(std)
    dims = all_but_channels(mean)
    standard = Standard(mean, positive(std), torch.ones_like(std))
    for part in blocks(mean):
        x, g = mean[part].to(std.dtype), grad[part].to(std.dtype)
        value = grad_mean[part] if grad_mean.dtype == x.dtype else torch.empty_like(x)
        z = standard(x).clamp_(-standard.bound, standard.bound).add_(NOT_ZERO)
        torch.ops.aten.gelu.out(z, out=value)
        value.div_(z)
        grad_std += standard.density(z).mul_(g).sum(dims)
        if slope:
            value.mul_(1 - slope).add_(slope)
        value.mul_(g)
        if grad_mean.dtype != x.dtype:
            grad_mean[part] = value
    return grad_mean, grad_std.mul_(1 - slope)
