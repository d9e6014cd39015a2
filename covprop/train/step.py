"""What one training step calls: networks and method as one module."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import nn

from covprop import methods
from covprop.data import Batch
from covprop.train.log import Row


class TrainStep(nn.Module):
    """Everything a method does in a step, so that it runs inside DDP's forward.

    All its parameters are trained. `model` is the network that is saved and evaluated.
    """

    model: nn.Module

    def forward(self, batch: Batch, epoch: int, generator: torch.Generator) -> methods.Losses:
        raise NotImplementedError

    def networks(self) -> Sequence[nn.Module]:
        """The networks in it, each of which may be compiled."""
        return (self.model,)

    def parts(self) -> dict[str, Any]:
        """Further objects with a state, by their names in a checkpoint."""
        return {}

    def phase(self, epoch: int) -> Hashable | None:
        """A value that is equal for epochs whose steps run the same operations on the same tensors.

        A step recorded or compiled in one epoch of a phase serves all of them. None: steps cannot
        be recorded, because they read values back from the device or move their state.
        """
        return epoch

    def start_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch, not when a run is continued within it."""

    def end_epoch(self) -> Row:
        """Further entries of the epoch's row in metrics.jsonl."""
        return {}


class MethodStep(TrainStep):
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
        """As a whole, unless the method compiles itself."""
        own = getattr(self.method, "compile_for", None)
        if own is None or not own(self.model):
            super().compile(*args, **options)

    def parts(self) -> dict[str, Any]:
        return {"method": self.method}
