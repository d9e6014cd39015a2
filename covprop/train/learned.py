"""Everything that training changes, as one object: the contents of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from covprop.train.checkpoint import load_tensors
from covprop.train.optimize import Average, restore, state_of


class Learned:
    """Model, optimizer, running average, and those of `parts` that have a state."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: Average | None,
        parts: Mapping[str, Any],
    ) -> None:
        self.model, self.optimizer, self.average = model, optimizer, average
        self.parts = {name: part for name, part in parts.items() if hasattr(part, "state_dict")}

    @property
    def result(self) -> nn.Module:
        """The model that counts: the running average where there is one."""
        return self.average.model if self.average else self.model

    def state(self) -> dict[str, Any]:
        """Tensors and plain values from which `restore` continues exactly."""
        return {
            "model": self.model.state_dict(),
            "optimizer": state_of(self.optimizer),
            "average": self.average.model.state_dict() if self.average else None,
            "average_steps": self.average.steps if self.average else 0,
            **{name: part.state_dict() for name, part in self.parts.items()},
        }

    def restore(self, state: Mapping[str, Any], path: Path) -> None:
        """Take over the `state` that was read from `path`."""
        load_tensors(path, self.model, state["model"])
        restore(self.optimizer, state["optimizer"])
        if self.average:
            load_tensors(path, self.average.model, state["average"])
            self.average.steps = state["average_steps"]
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
