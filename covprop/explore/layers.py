"""The layers to choose from, and the values at one pixel of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from covprop.propagate.plan import Plan
from covprop.propagate.registry import describe


@dataclass(frozen=True)
class Layer:
    """A step of the network whose value carries noise."""

    slot: int
    name: str
    kind: str
    channels: int


def layers_of(plan: Plan) -> list[Layer]:
    """Every step that has two noisy channels to show."""
    return [
        Layer(slot, step.name, kind_of(step.target), step.channels)
        for slot, step in enumerate(plan.steps, start=1)
        if step.rule is not None and step.channels > 1
    ]


def kind_of(target: Any) -> str:
    """`nn.Conv2d`, `F.relu`, `add`."""
    return describe(type(target) if isinstance(target, nn.Module) else target)


def unfolded(value: Tensor, channels: int) -> Tensor:
    """A value as [b, channels, *spatial]; flattened maps carry one covariance a channel still."""
    return value if value.shape[1] == channels else value.unflatten(1, (channels, -1))


def place(value: Tensor, channels: int) -> list[int]:
    """The pixel in the middle of a feature map."""
    return [size // 2 for size in unfolded(value, channels).shape[2:]]


def at_place(value: Tensor, channels: int) -> Tensor:
    """Values [b, channels] at the pixel in the middle."""
    value = unfolded(value, channels)
    for size in value.shape[2:]:
        value = value[:, :, size // 2]
    return value
