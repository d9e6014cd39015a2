"""`half.py` as two Triton kernels: each reads and writes every feature map once.

A channels-last tensor is a matrix [pixels, channels]. The numbers are those of `half.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # pixels in a tile
WARPS = 8  # so that a thread has 8 numbers of a tile, one 16-byte load
PROGRAMS = {False: 1056, True: 660}
"""Of the backward pass, without and with the gradient of s: what an H200 holds at a time, 8 on
each of 132 multiprocessors at 32 registers a thread and 5 at 48. More would wait for the others."""


@triton.jit
def _exp2(x):
    """2ˣ in one instruction; Triton's own takes four more, for numbers below 1e-38."""
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _sqrt(x):
    """√x likewise."""
    return tl.inline_asm_elementwise(
        "sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _relu_mean(mean, std, inverse):
    a = tl.abs(mean * inverse)
    p = -1.8668314e-04 * a + 4.1905178e-03
    p = p * a - 0.044468173
    p = p * a - 0.41067657
    p = p * a - 1.80839
    p = p * a - 1.3257392
    return tl.maximum(mean, 0.0) + std * _exp2(p)


@triton.jit
def _tail(out, inverse):
    """Φ(−z)."""
    u = tl.minimum(out * inverse, 10.0)
    w = _sqrt(u)
    q = 0.27793453 * w - 1.4999072
    q = q * w + 3.0402206
    q = q * w - 2.4672019
    q = q * w - 0.047386443
    q = q * w + 1.0002987
    return tl.minimum(_exp2(-0.7213475204444817 * u * u) * q, 1.0)


@triton.jit
def _density(tail):
    """φ(z)."""
    w = _sqrt(tail * (1.0 - tail))
    p = 2.0297110 * w - 3.1625492
    p = p * w + 2.5979564
    p = p * w + 0.036431926
    return p * w


@triton.jit
def _forward(mean_ptr, std_ptr, out_ptr, rows, channels, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    col = tl.program_id(1) * C + tl.arange(0, C)
    inside = (row[:, None] < rows) & (col[None, :] < channels)
    at = row[:, None] * channels + col[None, :]
    std = tl.load(std_ptr + col, mask=col < channels, other=1.0)[None, :]
    inverse = 1.0 / tl.maximum(std, 1.1754944e-38)
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    out = _relu_mean(mean, std, inverse)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    out_ptr, std_ptr, grad_ptr, beside_ptr, grad_mean_ptr, partial_ptr, rows, channels,
    TILES: tl.constexpr, BESIDE: tl.constexpr, WANT_STD: tl.constexpr, WHOLE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(1) * C + tl.arange(0, C)
    std = tl.load(std_ptr + col, mask=col < channels, other=1.0)[None, :]
    inverse = 1.0 / tl.maximum(std, 1.1754944e-38)
    total = tl.zeros([R, C], dtype=tl.float32)
    first = tl.program_id(0).to(tl.int64) * TILES * R
    for tile in range(TILES):
        row = first + tile * R + tl.arange(0, R)
        inside = None
        if not WHOLE:
            inside = (row[:, None] < rows) & (col[None, :] < channels)
        at = row[:, None] * channels + col[None, :]
        out = tl.load(out_ptr + at, mask=inside).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=inside).to(tl.float32)
        tail = _tail(out, inverse)
        grad_mean = grad * (1.0 - tail)
        if BESIDE:
            grad_mean += tl.load(beside_ptr + at, mask=inside).to(tl.float32)
        tl.store(grad_mean_ptr + at, grad_mean.to(grad_mean_ptr.dtype.element_ty), mask=inside)
        if WANT_STD:
            share = grad * _density(tail)
            if not WHOLE:
                share = tl.where(inside, share, 0.0)
            total += share
    if WANT_STD:
        partial = tl.sum(total, axis=0)
        tl.store(partial_ptr + tl.program_id(0) * channels + col, partial, mask=col < channels)


@triton.jit
def _sum_parts(
    partial_ptr, out_ptr, parts, channels, P: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Add the partial sums in an order that is always the same."""
    part = tl.arange(0, P)
    col = tl.program_id(0) * C + tl.arange(0, C)
    inside = (part[:, None] < parts) & (col[None, :] < channels)
    values = tl.load(partial_ptr + part[:, None] * channels + col[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + col, tl.sum(values, axis=0), mask=col < channels)


def _columns(channels: int) -> int:
    return min(64, triton.next_power_of_2(channels))


def forward(mean: Tensor, std: Tensor) -> Tensor:
    """max(μ, 0) + s·h(|μ|/s) for a mean laid out as [pixels, channels]."""
    out = torch.empty_like(mean)
    channels = mean.shape[1]
    rows, columns = mean.numel() // channels, _columns(channels)
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(channels, columns))
    with torch.cuda.device_of(mean):  # Triton launches on the current device
        _forward[grid](mean, std, out, rows, channels, R=ROWS, C=columns, num_warps=WARPS)
    return out


def backward(
    out: Tensor, std: Tensor, grad: Tensor, beside: Tensor | None, want_std: bool
) -> tuple[Tensor, Tensor]:
    """grad·Φ(z) + beside, and std's gradient; the partial sums are added in a fixed order."""
    channels = out.shape[1]
    layout = torch.channels_last if out.ndim == 4 else torch.contiguous_format
    grad = grad.contiguous(memory_format=layout)
    if beside is not None:
        beside = beside.contiguous(memory_format=layout)
    grad_mean = torch.empty_like(out)
    rows, columns = out.numel() // channels, _columns(channels)
    across = triton.cdiv(channels, columns)
    tiles = triton.cdiv(triton.cdiv(rows, ROWS), max(1, PROGRAMS[want_std] // across))
    parts = triton.cdiv(rows, ROWS * tiles)
    partial = std.new_empty(parts, channels) if want_std else std
    _backward[(parts, across)](
        out, std, grad, out if beside is None else beside, grad_mean, partial, rows, channels,
        TILES=tiles, BESIDE=beside is not None, WANT_STD=want_std,
        WHOLE=rows == parts * tiles * ROWS and channels == across * columns,
        R=ROWS, C=columns, num_warps=WARPS,
    )  # fmt: skip
    grad_std = torch.empty_like(std)
    if want_std:
        whole = triton.next_power_of_2(parts)
        _sum_parts[(triton.cdiv(channels, 8),)](partial, grad_std, parts, channels, P=whole, C=8)
    return grad_mean, grad_std
