"""A small model and batch that the tests of all methods share."""

import pytest
import torch
from torch import Tensor, nn

SHAPE = (1, 6, 6)


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 4),
    )


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(5, *SHAPE), torch.tensor([0, 1, 2, 3, 0])
