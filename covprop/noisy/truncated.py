"""Truncated Lq (Zhang and Sabuncu 2018): a loss that gives up on what it cannot fit."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from covprop.data import Batch
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task
from covprop.options import Fraction, Range


class Truncated(NoisyMethod):
    """(1 − p_y^q)/q, without the images whose loss is above that of p_y = k.

    Which images these are is decided before epoch `from_epoch` and every `refresh` epochs after
    it, by the p_y that each image had when it was last seen. The constant loss of the pruned
    images has no gradient and is left out.

    Args:
        q: between cross-entropy (q → 0) and the mean absolute error (q = 1).
        k: probability of the label under which an image is pruned.
    """

    probability: Tensor
    keep: Tensor

    def __init__(
        self,
        task: Task,
        q: Annotated[float, Range(0, 1, strict=True)] = 0.7,
        k: Fraction = 0.5,
        from_epoch: Annotated[int, Range(0)] = 40,
        refresh: Annotated[int, Range(1)] = 10,
    ) -> None:
        super().__init__()
        self.q, self.k, self.from_epoch, self.refresh = q, k, from_epoch, refresh
        # An image not seen yet counts as fitted.
        self.register_buffer("probability", torch.ones(task.images))
        self.register_buffer("keep", torch.ones(task.images, dtype=torch.bool))

    def start_epoch(self, model: nn.Module, epoch: int) -> None:
        late = epoch - self.from_epoch
        if late >= 0 and late % self.refresh == 0:
            self.keep.copy_(self.probability >= self.k)

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        logits = model(batch.x).float()
        log_p = logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
        kept = self.keep[batch.index]
        self.probability.index_copy_(0, batch.index, log_p.detach().exp())
        return NoisyLosses(torch.where(kept, lq(log_p, self.q), 0.0), logits.detach(), kept)


def lq(log_p: Tensor, q: float) -> Tensor:
    """(1 − p^q)/q from log p; its slope stays finite where p underflows.

    >>> round(float(lq(torch.tensor(0.25).log(), 0.5)), 6)
    1.0
    """
    return (1 - (q * log_p).exp()) / q
