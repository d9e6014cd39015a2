"""The noise of a GPU: a pure function of (stream, sample, element), by Philox4x32-10.

Philox (Salmon et al. 2011) turns a counter and a key into 128 random bits without any state. The
key is the stream's seed, the counter (element, sample), so any sample of any image can be made at
any time, alone or among others, and is always the same. Two of the four words make one normal
number (Box and Muller): √(−2 ln u₁) cos 2πu₂ with u = (word + ½)/2³², which ends at 6.76.

This is the reference in plain torch; `triton_noise.py` is the same in one kernel.
"""

import math

import torch
from torch import Tensor

from covprop.kernels import HAVE_TRITON

MASK = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def words(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """Four random 32-bit words, in int64 tensors as are the counter's and the key's."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The product wraps around at 64 bits as it should; only the shift must not carry the sign.
        left, right = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = (right >> 32 & MASK) ^ c1 ^ k0, (left >> 32 & MASK) ^ c3 ^ k1
        c1, c3 = right & MASK, left & MASK
        k0, k1 = k0 + WEYL[0] & MASK, k1 + WEYL[1] & MASK
    return [c0, c1, c2, c3]


def uniform(word: Tensor) -> Tensor:
    """(word + ½)/2³² in float32: in (0, 1]."""
    return word.float() * 2.0**-32 + 2.0**-33


def normal(seed: Tensor, sample: Tensor, element: Tensor) -> Tensor:
    """Standard normal numbers in float32; the arguments, int64, broadcast.

    >>> draw = normal(torch.tensor(7), torch.arange(4)[:, None], torch.arange(3))
    >>> torch.equal(draw[2], normal(torch.tensor(7), torch.tensor(2), torch.arange(3)))
    True
    """
    seed, sample, element = torch.broadcast_tensors(seed, sample, element)
    counter = (element, sample & MASK, sample >> 32, torch.zeros_like(element))
    first, second, _, _ = words(counter, (seed & MASK, seed >> 32))
    return torch.sqrt(-2.0 * torch.log(uniform(first))) * torch.cos(2 * math.pi * uniform(second))


def add_noise(
    out: Tensor, x: Tensor, seeds: Tensor, row: Tensor, first: Tensor, sigma: float
) -> None:
    """Fill `out` with blocks of noisy copies: block j holds the samples first[j], first[j] + 1, …

    of image x[row[j]], whose stream has the key seeds[row[j]]. x and out are [*, c, h, w] of one
    memory layout; elements are numbered by channel, line and column whatever that layout.
    """
    if out.is_cuda and HAVE_TRITON:
        from covprop.certify import triton_noise

        return triton_noise.add_noise(out, x, seeds, row, first, sigma)
    blocks = out.unflatten(0, (len(row), -1))
    sample = first[:, None] + torch.arange(blocks.shape[1], device=out.device)
    element = torch.arange(x[0].numel(), device=out.device)
    noise = normal(seeds[row][:, None, None], sample[:, :, None], element)
    blocks.copy_(x[row].unsqueeze(1) + sigma * noise.view(blocks.shape))
    return None
