"""What every method for wrong labels takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.data import Batch
from covprop.errors import InvalidInput
from covprop.options import Fraction, Range


@dataclass(frozen=True)
class Task:
    """What a method is told about its run.

    Args:
        images: number of training images.
        noise_rate: share of wrong labels, or None if it is not known.
        sigma: standard deviation of the Gaussian input noise, which only `radius` uses.
        new_network: another network like the model, with other first weights.
    """

    images: int
    num_classes: int
    noise_rate: float | None
    sigma: float
    input_shape: tuple[int, int, int]
    new_network: Callable[[], nn.Module]


class NoisyLosses(NamedTuple):
    """What a method returns for a batch of b images and k classes."""

    per_sample: Tensor
    """[b]: the loss of each image; their mean is what is minimised."""
    logits: Tensor
    """[b, k]: the model's logits, detached."""
    kept: Tensor
    """[b], bool: the images whose label the model learns from in this step."""
    radius: Tensor | None = None
    """[b]: ESTIMATED radius, detached: of the prediction, never negative, or of the given label,
    as the method's `of` says; None if the method has none."""


class NoisyMethod(nn.Module):
    """A method: its parameters are trained besides the model's, its buffers are checkpointed.

    A step reads nothing back from the device and changes its buffers in place, so that it can be
    recorded once and replayed.
    """

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        raise NotImplementedError

    def phase(self, epoch: int) -> Hashable:
        """See `train.step.TrainStep.phase`; here all epochs are alike."""
        return 0

    def start_epoch(self, model: nn.Module, epoch: int) -> None:
        """Called once before each epoch."""

    def networks(self) -> Sequence[nn.Module]:
        """The networks besides the model; only the model is evaluated and saved."""
        return ()


class SmallLoss(NoisyMethod):
    """A method that learns from a share 1 − R of every batch, R rising over the first epochs."""

    def __init__(
        self, task: Task, rate: Fraction | None = None, ramp: Annotated[int, Range(0)] = 10
    ) -> None:
        super().__init__()
        self.rate, self.ramp = known_rate(rate, task, type(self).__name__.lower()), ramp

    def phase(self, epoch: int) -> Hashable:
        return self.share(epoch)

    def share(self, epoch: int) -> float:
        """The share of a batch that is kept."""
        return 1 - forget_rate(self.rate, epoch, self.ramp)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """−log p_y of each image, [b]."""
    return F.cross_entropy(logits, y, reduction="none")


def smallest(losses: Tensor, share: float) -> Tensor:
    """Which images have the `share` of smallest losses, at least one: a mask [b].

    >>> smallest(torch.tensor([3.0, 1.0, 2.0, 9.0]), 0.5)
    tensor([False,  True,  True, False])
    """
    # The nudge undoes rounding: 0.29 · 100 is a little under 29.
    count = max(1, int(share * len(losses) + 1e-6))
    places = losses.detach().topk(count, largest=False).indices
    return torch.zeros_like(losses, dtype=torch.bool).index_fill_(0, places, True)


def over(kept: Tensor, losses: Tensor) -> Tensor:
    """Losses whose mean over the batch is the mean over the kept images; 0 where none is kept.

    >>> over(torch.tensor([True, False]), torch.tensor([3.0, 5.0]))
    tensor([6., 0.])
    """
    scale = len(losses) / kept.sum().clamp_min(1)
    return torch.where(kept, losses * scale, 0.0)


def forget_rate(rate: float, epoch: int, ramp: int) -> float:
    """The share of a batch to leave out: it rises linearly to `rate` over `ramp` epochs.

    >>> [forget_rate(0.4, epoch, 10) for epoch in (0, 5, 10, 99)]
    [0.0, 0.2, 0.4, 0.4]
    """
    return rate * min(1.0, epoch / ramp) if ramp else rate


def known_rate(given: float | None, task: Task, name: str) -> float:
    """The share of wrong labels, as an option says it or as the task knows it."""
    rate = task.noise_rate if given is None else given
    if rate is None:
        raise InvalidInput(
            f'method "{name}" needs the share of wrong labels, which is not known here; train '
            '"plain" first, which estimates it, then set method.rate.'
        )
    return rate
