"""Cross-entropy on the labels as they are: what every other method is compared with."""

from __future__ import annotations

import torch
from torch import nn

from covprop.data import Batch
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task, cross_entropy


class Plain(NoisyMethod):
    """Cross-entropy of every image."""

    def __init__(self, task: Task) -> None:
        super().__init__()

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        logits = model(batch.x).float()
        losses = cross_entropy(logits, batch.y)
        return NoisyLosses(losses, logits.detach(), torch.ones_like(batch.y, dtype=torch.bool))
