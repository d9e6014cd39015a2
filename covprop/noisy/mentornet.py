"""Self-paced MentorNet (Jiang et al. 2018): one network keeps the images it finds easiest."""

from __future__ import annotations

import torch
from torch import nn

from covprop.data import Batch
from covprop.noisy.base import NoisyLosses, SmallLoss, cross_entropy, over, smallest


class MentorNet(SmallLoss):
    """Cross-entropy of the share 1 − R of a batch with the smallest losses.

    Args:
        rate: what R rises to; the share of wrong labels when not given.
        ramp: epochs over which R rises, linearly from 0.
    """

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        logits = model(batch.x).float()
        losses = cross_entropy(logits, batch.y)
        kept = smallest(losses, self.share(epoch))
        return NoisyLosses(over(kept, losses), logits.detach(), kept)
