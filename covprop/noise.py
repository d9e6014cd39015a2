"""Random numbers as a pure function of where they are used.

A run draws nothing from a state that moves along: each use seeds its own generator from its
place (seed, purpose, epoch, step). So a resumed run draws what the uninterrupted one would have,
and several processes draw, each for its share of the batch, what one process would have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def seed_of(*place: int | str) -> int:
    """A 63-bit seed that is a hash of the place.

    Example:
        >>> seed_of(0, "noise", 3, 14) == seed_of(0, "noise", 3, 14) != seed_of(0, "noise", 3, 15)
        True
    """
    digest = hashlib.sha256("/".join(map(str, place)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The global random state of the CPU and of `device`, seeded, and put back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class Stream(torch.Generator):
    """A generator that also knows which share of the global batch its process holds."""

    rank: int = 0
    world: int = 1


def stream(
    *place: int | str, device: torch.device | str = "cpu", rank: int = 0, world: int = 1
) -> Stream:
    """The generator of a place; `rank` of `world` processes share the batch."""
    generator = Stream(device)
    generator.manual_seed(seed_of(*place))
    generator.rank, generator.world = rank, world
    return generator


def randn_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal noise for a batch `x`, whose first dimension counts images.

    With a `Stream` shared by several processes the noise of the global batch is drawn and this
    process's rows of it returned, so that the number of processes does not change the noise.

    Example:
        >>> whole = randn_like(torch.zeros(4, 2), stream(1))
        >>> parts = [randn_like(torch.zeros(2, 2), stream(1, rank=r, world=2)) for r in (0, 1)]
        >>> torch.equal(torch.cat(parts), whole)
        True
    """
    rank, world = (generator.rank, generator.world) if isinstance(generator, Stream) else (0, 1)
    rows = len(x)
    shape = (rows * world, *x.shape[1:])
    noise = torch.randn(shape, generator=generator, device=x.device, dtype=x.dtype)
    return noise[rank * rows : (rank + 1) * rows]
