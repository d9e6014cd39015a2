"""Accuracy of the base classifier, against counting by hand."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from covprop import data
from covprop.train import Recipe
from covprop.train.distributed import World
from covprop.train.evaluate import accuracy
from covprop.train.options import NoiseOptions

Make = Callable[..., Recipe]


class Bright(nn.Module):
    """Class 1 where the image is brighter than a bound; remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.9)  # must be off
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        score = self.drop(x.flatten(1).mean(1) - 0.3)
        return torch.stack([-score, score], 1)


def test_counts_with_and_without_noise(tiny: Make) -> None:
    test = data.load("digits", "test")
    model = Bright().train()
    # Noise as the run is made for, not the share of it that training draws.
    recipe = dataclasses.replace(tiny(batch_size=100), noise=NoiseOptions(0.25, share=0.5))
    noisy, clean = accuracy(model, test, recipe, World(0, 1, torch.device("cpu")))
    x = test.images.float() / 255
    right = ((x.flatten(1).mean(1) > 0.3).long() == test.labels).double().mean().item()
    assert clean == pytest.approx(right)
    assert noisy == pytest.approx(right, abs=0.1)
    assert model.training
    added = torch.cat(model.seen[0::2]) - torch.cat(model.seen[1::2])
    assert added.std().item() == pytest.approx(0.25, rel=0.02)
    assert added.mean().item() == pytest.approx(0, abs=0.01)
    apart = (added[:100] * added[100:200]).mean().item()  # of one batch and the next
    assert apart == pytest.approx(0, abs=0.05 * 0.25**2)
    accuracy(model.eval(), test, recipe, World(0, 1, torch.device("cpu")))
    assert not any(module.training for module in model.modules())  # as it was
    again = torch.cat(model.seen[2 * 4 :: 2]) - torch.cat(model.seen[2 * 4 + 1 :: 2])
    assert torch.equal(again, added)  # epochs can be compared


def test_the_noise_does_not_depend_on_the_number_of_processes(tiny: Make) -> None:
    test, recipe = data.load("digits", "test"), tiny(batch_size=128)
    alone = Bright()
    accuracy(alone, test, recipe, World(0, 1, torch.device("cpu")))
    parts: list[list[Tensor]] = []
    for rank in (0, 1):
        model = Bright()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(World, "sum", lambda self, tensor: tensor)
            accuracy(model, test, recipe, World(rank, 2, torch.device("cpu")))
        parts.append(model.seen)
    together = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(together, alone.seen, strict=True))
