"""What one training step calls: networks and method as one module."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import nn

from covprop import methods
from covprop.data import Batch
from covprop.train.log import Row


class Step(nn.Module):
    """Everything a method does in a step, so that it runs inside DDP's forward.

    All parameters found here are trained. `model` is the network that counts in the end.
    """

    model: nn.Module

    def forward(self, batch: Batch, epoch: int, generator: torch.Generator) -> methods.Losses:
        raise NotImplementedError

    def networks(self) -> Sequence[nn.Module]:
        """The networks in it, each of which may be compiled."""
        return (self.model,)

    def parts(self) -> dict[str, Any]:
        """What else may remember things from step to step, by its name in a checkpoint."""
        return {}

    def phase(self, epoch: int) -> Hashable | None:
        """What of the epoch changes how a step computes.

        Epochs of one phase run the same operations on the same tensors, so that a step recorded
        or compiled in one of them serves all. None: a step reads values back from the device or
        keeps its state in other places each time, and is never recorded.
        """
        return epoch

    def start_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch, and not when a run goes on within it."""

    def end_epoch(self) -> Row:
        """What this counted in the epoch, for metrics.jsonl."""
        return {}


class TrainStep(Step):
    """One network and a method of `covprop.methods`."""

    def __init__(self, model: nn.Module, method: methods.Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: Batch, epoch: int, generator: torch.Generator) -> methods.Losses:
        return self.method(self.model, batch.x, batch.y, epoch=epoch, generator=generator)

    def phase(self, epoch: int) -> Hashable | None:
        return methods.phase_of(self.method, epoch)

    def compile(self, *args: Any, **options: Any) -> None:
        """As a whole, unless the method knows better."""
        own = getattr(self.method, "compile_for", None)
        if own is None or not own(self.model):
            super().compile(*args, **options)

    def parts(self) -> dict[str, Any]:
        return {"method": self.method}
