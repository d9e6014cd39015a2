"""What every training method takes and returns, and how noise is added."""

import math
from collections.abc import Hashable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from covprop import noise
from covprop.layers import widened
from covprop.logits import as_logits


class Losses(NamedTuple):
    """What a method returns for a batch of b images and k classes."""

    per_sample: Tensor
    """[b]: the loss of each image; their mean is what is minimised."""
    logits: Tensor
    """[b, k]: logits under noise, averaged over an image's noisy copies, detached."""
    radius: Tensor | None = None
    """[b]: ESTIMATED radius, detached; None if the method has none. Of a method here it is that of
    the label, negative where the prediction is wrong; of one for noisy labels it may be that of
    the prediction, never negative (`NoisyLosses.radius`)."""


class Method(Protocol):
    """A training method: from clean images in [0, 1] to the loss of each; it adds the noise itself.

    It may also have `phase(epoch) -> Hashable | None`: see `phase_of`.
    """

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses: ...


def phase_of(method: Method, epoch: int) -> Hashable | None:
    """The phase of training that an epoch belongs to: `method.phase(epoch)`, or else its number.

    Epochs of one phase run the same operations, so a GPU can replay a recorded step. None says that
    steps cannot be recorded, for instance because values are read back from the device.
    """
    phase = getattr(method, "phase", None)
    return epoch if phase is None else phase(epoch)


def draw(x: Tensor, samples: int, sigma: float, generator: torch.Generator) -> Tensor:
    """Noise N(0, σ²) for `samples` copies of every image: [b, samples, *image].

    It is drawn on the device of x; a generator on another device seeds one there.
    """
    if generator.device.type != x.device.type:
        seed = int(torch.randint(2**62, (), generator=generator))
        rank, world = getattr(generator, "rank", 0), getattr(generator, "world", 1)
        generator = noise.stream(seed, device=x.device, rank=rank, world=world)
    copies = x.unsqueeze(1).expand(-1, samples, *x.shape[1:])
    return sigma * noise.randn_like(copies, generator)


def logits_of(model: nn.Module, x: Tensor, added: Tensor) -> Tensor:
    """Logits [b, samples, k] of x + added, in float32 or wider; added is [b, samples, *image]."""
    noisy = laid_out_as(x, (x.unsqueeze(1) + added).flatten(0, 1))
    logits = as_logits(model(noisy), len(noisy))
    return widened(logits).unflatten(0, added.shape[:2])


def laid_out_as(x: Tensor, noisy: Tensor) -> Tensor:
    """Noisy copies in the memory layout of x: channels-last or unchanged."""
    if x.ndim == 4 and not x.is_contiguous():
        return noisy.contiguous(memory_format=torch.channels_last)
    return noisy


def log_mean_softmax(logits: Tensor) -> Tensor:
    """log of the softmax averaged over samples: [b, samples, k] -> [b, k], without underflow."""
    log_p = logits.log_softmax(-1)
    return log_p.logsumexp(1) - math.log(logits.shape[1])


def scaled_to(direction: Tensor, length: Tensor | float) -> Tensor:
    """Every image of `direction` [b, ...] at the ℓ2 norm `length` ([b] or a number)."""
    norm = direction.flatten(1).norm(dim=1).clamp_min(1e-30)
    return direction * (length / norm).view(-1, *(1,) * (direction.ndim - 1))
