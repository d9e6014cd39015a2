"""Self-paced MentorNet (Jiang et al. 2018): one network keeps the images it finds easiest."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

import torch
from torch import nn

from covprop.data import Batch
from covprop.noisy.base import (
    Learned,
    NoisyMethod,
    Task,
    cross_entropy,
    forget_rate,
    known_rate,
    over,
    smallest,
)
from covprop.train.options import Fraction, Range


class MentorNet(NoisyMethod):
    """Cross-entropy of the share 1 − R of a batch with the smallest losses.

    Args:
        rate: what R rises to; the share of wrong labels when not given.
        ramp: epochs over which R rises, linearly from 0.
    """

    def __init__(
        self, task: Task, rate: Fraction | None = None, ramp: Annotated[int, Range(0)] = 10
    ) -> None:
        super().__init__()
        self.rate, self.ramp = known_rate(rate, task, "mentornet"), ramp

    def phase(self, epoch: int) -> Hashable:
        return forget_rate(self.rate, epoch, self.ramp)

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> Learned:
        logits = model(batch.x).float()
        losses = cross_entropy(logits, batch.y)
        kept = smallest(losses, 1 - forget_rate(self.rate, epoch, self.ramp))
        return Learned(over(kept, losses), logits.detach(), kept)
