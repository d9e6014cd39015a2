"""Co-teaching (Han et al. 2018): two networks, each learns what the other finds easiest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import nn

from covprop.data import Batch
from covprop.noisy.base import NoisyLosses, SmallLoss, Task, cross_entropy, over, smallest
from covprop.options import Fraction, Range


class Coteaching(SmallLoss):
    """Each network's cross-entropy over the share 1 − R of smallest losses of its peer.

    Args:
        rate: what R rises to; the share of wrong labels when not given.
        ramp: epochs over which R rises, linearly from 0.
    """

    def __init__(
        self, task: Task, rate: Fraction | None = None, ramp: Annotated[int, Range(0)] = 10
    ) -> None:
        super().__init__(task, rate, ramp)
        self.peer = task.new_network()

    def networks(self) -> Sequence[nn.Module]:
        return (self.peer,)

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        logits = model(batch.x).float()
        mine = cross_entropy(logits, batch.y)
        other = cross_entropy(self.peer(batch.x).float(), batch.y)
        share = self.share(epoch)
        for_me, for_other = smallest(other, share), smallest(mine, share)
        return NoisyLosses(over(for_me, mine) + over(for_other, other), logits.detach(), for_me)
