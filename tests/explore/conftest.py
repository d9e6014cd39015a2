"""The browser where Chromium is installed, and a small network on the digits to explore."""

import pytest
import torch
from browser import browser
from torch import nn

from covprop import data, models
from covprop.explore.compute import Explorer

__all__ = ["browser"]


@pytest.fixture(scope="session")
def model() -> nn.Module:
    """LeNet on the digits, trained for a moment."""
    torch.manual_seed(0)
    made = models.build(
        "lenet", num_classes=10, image_shape=(1, 8, 8), mean=(0.3053,), std=(0.3762,), width=4
    )
    optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
    for epoch in range(4):
        for batch in data.batches(
            data.load("digits", "train"), 128, epoch=epoch, seed=0, device="cpu"
        ):
            noisy = batch.x + 0.25 * torch.randn(batch.x.shape)
            loss = nn.functional.cross_entropy(made(noisy), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return made.eval()


@pytest.fixture
def explorer(model: nn.Module) -> Explorer:
    return Explorer(model, data.load("digits", "test"), 0.25, trained=0.25)
