"""The moment-ReLU as two Triton kernels: one pass forward, one pass backward.

Both see a channels-last tensor as a matrix [pixels, channels]. The backward pass writes the
gradient of the mean and reduces that of the per-channel deviation on the way, so it reads the
mean and the incoming gradient once: the bytes of a plain ReLU's backward plus one tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # pixels in a tile
LOOP = 8  # tiles a program of the backward pass walks down before it writes its partial sum


@triton.jit
def _moments(mean, std):
    """Φ(z) and φ(z) for z = mean/std, from one exponential; see `moments.quick_cdf_and_exp`."""
    z = mean / tl.maximum(std, 1.1754944e-38)
    z = tl.minimum(tl.maximum(z, -10.0), 10.0)
    bell = tl.exp(-0.5 * z * z)
    t = 1.0 / (1.0 + 0.23164187 * tl.abs(z))
    series = 1.061405429 * t
    series = (series - 1.453152027) * t
    series = (series + 1.421413741) * t
    series = (series - 0.284496736) * t
    series = (series + 0.254829592) * t
    tail = 0.5 * series * bell
    return tl.where(z > 0, 1.0 - tail, tail), 0.3989422804014327 * bell


@triton.jit
def _forward(mean_ptr, std_ptr, out_ptr, rows, channels, slope, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    col = tl.program_id(1) * C + tl.arange(0, C)
    inside = (row[:, None] < rows) & (col[None, :] < channels)
    at = row[:, None] * channels + col[None, :]
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    std = tl.load(std_ptr + col, mask=col < channels, other=1.0)[None, :]
    cdf, pdf = _moments(mean, std)
    relu = tl.maximum(mean * cdf + std * pdf, 0.0)
    out = slope * mean + (1.0 - slope) * relu
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    mean_ptr, std_ptr, grad_ptr, grad_mean_ptr, partial_ptr, rows, channels, slope,
    R: tl.constexpr, C: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(1) * C + tl.arange(0, C)
    std = tl.load(std_ptr + col, mask=col < channels, other=1.0)[None, :]
    total = tl.zeros([R, C], dtype=tl.float32)
    first = tl.program_id(0).to(tl.int64) * R * LOOPS
    for loop in range(LOOPS):
        row = first + loop * R + tl.arange(0, R)
        inside = (row[:, None] < rows) & (col[None, :] < channels)
        at = row[:, None] * channels + col[None, :]
        mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
        cdf, pdf = _moments(mean, std)
        grad_mean = grad * (slope + (1.0 - slope) * cdf)
        tl.store(grad_mean_ptr + at, grad_mean.to(grad_mean_ptr.dtype.element_ty), mask=inside)
        total += grad * pdf
    partial = tl.sum(total, axis=0) * (1.0 - slope)
    tl.store(partial_ptr + tl.program_id(0) * channels + col, partial, mask=col < channels)


def _columns(channels: int) -> int:
    return min(64, triton.next_power_of_2(channels))


def forward(mean: Tensor, std: Tensor, slope: float) -> Tensor:
    """aμ + (1 − a)(μΦ(z) + sφ(z)) for a mean that `is_matrix`, std [channels] in float32."""
    out = torch.empty_like(mean)
    channels = mean.shape[1]
    rows, columns = mean.numel() // channels, _columns(channels)
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(channels, columns))
    with torch.cuda.device_of(mean):  # Triton launches on the current device
        _forward[grid](mean, std, out, rows, channels, slope, R=ROWS, C=columns)
    return out


def backward(mean: Tensor, std: Tensor, grad: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """Gradients of the mean and of std; the partial sums are added in a fixed order."""
    channels = mean.shape[1]
    layout = torch.channels_last if mean.ndim == 4 else torch.contiguous_format
    grad = grad.contiguous(memory_format=layout)
    grad_mean = torch.empty_like(mean)
    rows, columns = mean.numel() // channels, _columns(channels)
    parts = triton.cdiv(rows, ROWS * LOOP)
    partial = torch.empty(parts, channels, device=mean.device, dtype=torch.float32)
    grid = (parts, triton.cdiv(channels, columns))
    _backward[grid](
        mean, std, grad, grad_mean, partial, rows, channels, slope, R=ROWS, C=columns, LOOPS=LOOP
    )
    return grad_mean, partial.sum(0)
