"""Noisy copies of images in one Triton kernel: `philox.add_noise`, where the GPU can run it.

A number costs about a hundred integer operations and no memory, so a pass writes its input once
and reads nothing but the images.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 1024  # of one sample, in one program


@triton.jit
def _unit(word):
    """(word + ½)/2³² in float32: in (0, 1]."""
    return word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def _add_noise(
    out_ptr, x_ptr, seeds_ptr, row_ptr, first_ptr, sigma, block, channels, size, E: tl.constexpr
):  # fmt: skip
    copy = tl.program_id(0).to(tl.int64)
    job = copy // block
    row = tl.load(row_ptr + job)
    sample = tl.load(first_ptr + job) + copy % block
    seed = tl.load(seeds_ptr + row)
    place = tl.program_id(1) * E + tl.arange(0, E)  # in memory
    inside = place < size
    # The number of an element must not depend on how images lie in memory.
    element = (place % channels) * (size // channels) + place // channels
    zero = (element * 0).to(tl.uint32)
    low, high = (sample & 0xFFFFFFFF).to(tl.uint32), (sample >> 32).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, element.to(tl.uint32), low + zero, high + zero, zero)
    noise = tl.sqrt(-2.0 * tl.log(_unit(first))) * tl.cos(6.283185307179586 * _unit(second))
    x = tl.load(x_ptr + row * size + place, mask=inside, other=0.0)
    noisy = x + sigma * noise
    tl.store(out_ptr + copy * size + place, noisy.to(out_ptr.dtype.element_ty), mask=inside)


def add_noise(
    out: Tensor, x: Tensor, seeds: Tensor, row: Tensor, first: Tensor, sigma: float
) -> None:
    """See `philox.add_noise`."""
    size = x[0].numel()
    last = not x.is_contiguous()
    assert out.is_contiguous(memory_format=torch.channels_last) if last else out.is_contiguous()
    assert all(t.is_contiguous() for t in (seeds, row, first)), "the kernel steps through them by 1"
    grid = (len(out), triton.cdiv(size, ELEMENTS))
    block, channels = len(out) // len(row), x.shape[1] if last else 1
    with torch.cuda.device_of(out):  # Triton launches on the current device
        _add_noise[grid](out, x, seeds, row, first, sigma, block, channels, size, E=ELEMENTS)
