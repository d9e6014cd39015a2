"""A training step under wrong labels, and a memory of what training showed about every image."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from covprop.data import Batch
from covprop.methods import Losses
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task
from covprop.train.log import Row
from covprop.train.step import TrainStep

KEPT, RIGHT, SEEN = range(3)


class Memory(nn.Module):
    """For every image its class probabilities each time it was seen, summed over the epochs.

    A network learns the rule before the exceptions, so the mean over the epochs is low for a wrong
    label even if the network has memorised it in the end.
    """

    probability: Tensor
    seen: Tensor
    radius: Tensor
    counts: Tensor

    def __init__(self, images: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("probability", torch.zeros(images, num_classes))
        self.register_buffer("seen", torch.zeros(images))
        self.register_buffer("radius", torch.full((images,), torch.nan))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.float64))

    def update(self, index: Tensor, learned: NoisyLosses) -> None:
        """Add one batch."""
        self.probability.index_add_(0, index, learned.logits.softmax(1))
        self.seen.index_add_(0, index, torch.ones_like(index, dtype=self.seen.dtype))
        if learned.radius is not None:
            self.radius.index_copy_(0, index, learned.radius)


class NoisyStep(TrainStep):
    """A model, a method of `covprop.noisy`, and the memory; `clean` is the truth where known."""

    clean: Tensor | None

    def __init__(
        self, model: nn.Module, method: NoisyMethod, task: Task, clean: Tensor | None
    ) -> None:
        super().__init__()
        self.model = model
        self.method = method
        self.memory = Memory(task.images, task.num_classes)
        self.register_buffer("clean", clean, persistent=False)

    def forward(self, batch: Batch, epoch: int, generator: torch.Generator) -> Losses:
        learned = self.method(self.model, batch, epoch, generator)
        self.memory.update(batch.index, learned)
        counts, kept = self.memory.counts, learned.kept
        counts[KEPT] += kept.sum()
        counts[SEEN] += len(kept)
        if self.clean is not None:
            counts[RIGHT] += (kept & (self.clean[batch.index] == batch.y)).sum()
        return Losses(learned.per_sample, learned.logits, learned.radius)

    def networks(self) -> Sequence[nn.Module]:
        return (self.model, *self.method.networks())

    def parts(self) -> dict[str, Any]:
        return {"method": self.method, "memory": self.memory}

    def start_epoch(self, epoch: int) -> None:
        self.method.start_epoch(self.model, epoch)

    def phase(self, epoch: int) -> Hashable | None:
        return self.method.phase(epoch)

    def end_epoch(self) -> Row:
        """Share of images learned from, and share of these whose label is right."""
        kept, right, seen = self.memory.counts.tolist()
        self.memory.counts.zero_()
        row: Row = {"kept": kept / seen}
        if self.clean is not None:
            row["label_precision"] = right / kept if kept else None
        return row
