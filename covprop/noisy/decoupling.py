"""Decoupling (Malach and Shalev-Shwartz 2017): two networks learn only where they disagree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from covprop.data import Batch
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task, cross_entropy, over


class Decoupling(NoisyMethod):
    """Both networks' cross-entropy, averaged over the images on which their predictions differ."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.peer = task.new_network()

    def networks(self) -> Sequence[nn.Module]:
        return (self.peer,)

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        mine, other = model(batch.x).float(), self.peer(batch.x).float()
        kept = mine.argmax(1) != other.argmax(1)
        losses = cross_entropy(mine, batch.y) + cross_entropy(other, batch.y)
        return NoisyLosses(over(kept, losses), mine.detach(), kept)
