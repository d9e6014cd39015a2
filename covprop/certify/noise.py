"""The draws: one stream of noise an image and purpose, cut into blocks of fixed size.

A stream is a function of (seed, image index, purpose) alone, and block b is always the b-th draw
of its stream, so an image meets the same noise whatever the batch size, the number of processes,
the order, or how often the work was interrupted. On the CPU the values are those of torch's
generator; on a GPU `philox.py` makes them, so a CPU and a GPU draw different ones.

Torch's generator on the CPU takes the low 32 bits of a seed. That the two streams of an image are
the same, so that its guess and its bound share their noise, has probability 2⁻³² against α.
"""

import math

import torch
from torch import Tensor

from covprop.noise import seed_of

SELECT, ESTIMATE, PREDICT = "select", "estimate", "predict"


def block_size(image_shape: tuple[int, ...]) -> int:
    """Samples a block: 16 to 256, about 65,536 pixels.

    The feature maps of so many stay in a processor's cache, where those of a batch of 1,000 do
    not; and since it depends on the image's shape alone, so do the blocks of a stream.
    """
    return max(16, min(256, 65_536 // math.prod(image_shape[1:])))


class Streams:
    """The open streams of some images: `fill(block, i)` writes the next block of image i."""

    def __init__(
        self, index: list[int], *, seed: int, purpose: str, sigma: float, device: torch.device
    ) -> None:
        self.sigma = sigma
        self.generators = [
            torch.Generator(device=device).manual_seed(seed_of(seed, "certify", purpose, i))
            for i in index
        ]

    def fill(self, block: Tensor, i: int) -> None:
        block.normal_(0.0, self.sigma, generator=self.generators[i])
