"""A convolution of few input channels in one Triton kernel; see `convolution`.

A patch of the input is one row of a matrix of at most 32 columns, so a program gathers the patches
of some pixels, multiplies once, and writes channels last: as much time as the output takes to be
written. Sums are in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 128  # of the output, in one program
COLUMNS = 32


@triton.jit
def _first(
    x_ptr, weight_ptr, bias_ptr, factor_ptr, offset_ptr, y_ptr, active_ptr, pixels,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OC: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, RELU: tl.constexpr, TWICE: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * M + tl.arange(0, M)
    out = tl.program_id(1) * N + tl.arange(0, N)
    inside, wanted = pixel < pixels, out < OC
    image, place = pixel // (OH * OW), pixel % (OH * OW)
    top, left = place // OW * SH - PH, place % OW * SW - PW
    # Weights lie as [out, KH, KW, C], and so do the columns.
    column = tl.arange(0, K)
    real = column < KH * KW * C
    down, right, channel = column // (KW * C), column // C % KW, column % C
    row, col = top[:, None] + down[None, :], left[:, None] + right[None, :]
    there = inside[:, None] & real[None, :] & (row >= 0) & (row < H) & (col >= 0) & (col < W)
    start = image.to(tl.int64) * (H * W * C)
    patch = tl.load(
        x_ptr + start[:, None] + ((row * W + col) * C + channel[None, :]), mask=there, other=0.0
    )
    weight = tl.load(
        weight_ptr + out[None, :] * (KH * KW * C) + column[:, None],
        mask=real[:, None] & wanted[None, :],
        other=0.0,
    )
    bias = tl.load(bias_ptr + out, mask=wanted, other=0.0).to(tl.float32)
    y = tl.dot(patch, weight) + bias[None, :]
    if RELU:
        y = tl.where(y < 0.0, 0.0, y)  # NaN stays
    y = y.to(y_ptr.dtype.element_ty)
    target = pixel.to(tl.int64)[:, None] * OC + out[None, :]
    write = inside[:, None] & wanted[None, :]
    tl.store(y_ptr + target, y, mask=write)
    if TWICE:
        factor = tl.load(factor_ptr + out, mask=wanted, other=0.0)
        offset = tl.load(offset_ptr + out, mask=wanted, other=0.0)
        active = y.to(tl.float32) * factor[None, :] + offset[None, :]
        active = tl.where(active < 0.0, 0.0, active)
        tl.store(active_ptr + target, active.to(active_ptr.dtype.element_ty), mask=write)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: list[int],
    padding: list[int],
    *,
    relu: bool = False,
    scaled: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """conv(x) + bias or its ReLU, and beside it max(y·factor + offset, 0) if `scaled` has these."""
    # `contiguous` would leave images of one channel as they are, which is as good.
    x = x.contiguous(memory_format=torch.channels_last)
    weight = weight.contiguous(memory_format=torch.channels_last)
    (n, c, h, w), (o, _, kh, kw) = x.shape, weight.shape
    oh, ow = (h + 2 * padding[0] - kh) // stride[0] + 1, (w + 2 * padding[1] - kw) // stride[1] + 1
    y = torch.empty(
        (n, o, oh, ow), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    active = y if scaled is None else torch.empty_like(y)
    factor, offset = (bias, bias) if scaled is None else scaled
    columns = max(16, min(128, triton.next_power_of_2(o)))
    grid = (triton.cdiv(n * oh * ow, PIXELS), triton.cdiv(o, columns))
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _first[grid](
            x, weight, bias, factor, offset, y, active, n * oh * ow,
            C=c, H=h, W=w, OC=o, OH=oh, OW=ow, KH=kh, KW=kw, SH=stride[0], SW=stride[1],
            PH=padding[0], PW=padding[1], RELU=relu, TWICE=scaled is not None,
            M=PIXELS, K=COLUMNS, N=columns,
        )  # fmt: skip
    return y, active
