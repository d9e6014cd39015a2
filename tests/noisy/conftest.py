"""A method for a toy task: a linear network on images of two pixels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covprop.data import Batch
from covprop.noisy import NoisyLosses, NoisyMethod, Task, build

Call = Callable[..., NoisyLosses]


class Table(nn.Module):
    """A network whose logits for the image [i] are row i of a table."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[x.flatten().long()]


@pytest.fixture
def make() -> Callable[..., NoisyMethod]:
    """`make(name, peer=logits, **options)`: a method over four images and three classes."""

    def method(
        name: str, peer: Tensor | None = None, noise_rate: float | None = 0.5, **options: Any
    ) -> NoisyMethod:
        task = Task(
            images=4,
            num_classes=3,
            noise_rate=noise_rate,
            sigma=0.25,
            input_shape=(1, 1, 1),
            new_network=lambda: Table(torch.zeros(4, 3) if peer is None else peer),
        )
        return build(name, task=task, **options)

    return method


@pytest.fixture
def call() -> Call:
    """`call(method, logits, y, epoch)` on images 0, 1, 2, … with these logits."""

    def run(method: NoisyMethod, logits: Tensor, y: Tensor, epoch: int = 0) -> NoisyLosses:
        index = torch.arange(len(y))
        x = index.float().view(-1, 1, 1, 1)
        return method(Table(logits), Batch(index, x, y), epoch, torch.Generator())

    return run
