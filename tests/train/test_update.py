"""One step by itself: what it is given by its place, and what it adds up."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from covprop.data import Batch
from covprop.errors import InvalidInput
from covprop.methods import Losses, RadiusWeights
from covprop.train.distributed import World
from covprop.train.optimize import optimizer
from covprop.train.options import TrainOptions
from covprop.train.step import TrainStep
from covprop.train.update import Update

STEPS = 5
RADIUS = torch.tensor([1.0, math.inf, math.nan, -0.25, -math.inf])


class Fixed(TrainStep):
    """A layer, and radii as they may be while a covariance is still 0."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 3)
        self.seen: list[Batch] = []
        self.types: list[torch.dtype] = []

    def forward(self, batch: Batch, epoch: int, generator: torch.Generator) -> Losses:
        self.seen.append(batch)
        logits = self.model(batch.x.flatten(1))
        self.types.append(logits.dtype)
        return Losses(logits.square().sum(1), logits.detach(), RADIUS)


def made(rank: int = 0, weights: RadiusWeights | None = None, **options: Any) -> Update:
    core, given = Fixed(), TrainOptions(**{"epochs": 4, "optimizer": "adamw", **options})
    here = World(rank, 1, torch.device("cpu"))
    return Update(core, optimizer(core, given), None, weights, given, here, STEPS)


def batch() -> Batch:
    return Batch(torch.arange(5), torch.rand(5, 2, 1, 1), torch.tensor([0, 1, 2, 0, 1]))


def test_sums_are_over_images_and_over_radii_that_are_numbers() -> None:
    update, given = made(), batch()
    update.prepare(0, 0)
    expected = torch.zeros(4, dtype=torch.float64)
    for _ in range(2):  # added to what was there
        logits = update.core.model(given.x.flatten(1)).detach()
        update(given, 0)
        right = int((logits.argmax(1) == given.y).sum())
        expected += torch.tensor([logits.square().sum().item(), right, 0.75, 2])
    torch.testing.assert_close(update.sums, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_goes_down_the_mean_of_the_weighted_losses(weighted: bool) -> None:
    """The gradient of mean_i c_i |W x_i + b|² written out. Weights are shares of the mean radius,
    0.5 here: the first is cut to 1.5, the fourth image dropped, and no radius counts 1."""
    weights = RadiusWeights(5, high=1.5, from_epoch=0) if weighted else None
    update = made(weights=weights, optimizer="sgd", momentum=0.0, weight_decay=0.0, lr=0.1)
    given, layer = batch(), update.core.model
    w, b = (p.detach().clone() for p in layer.parameters())
    c = torch.tensor([1.5, 1.0, 1.0, 0.0, 1.0]) if weighted else torch.ones(5)
    x = given.x.flatten(1)
    out = x @ w.T + b
    update.prepare(0, 0)
    update(given, 0)
    torch.testing.assert_close(layer.weight, w - 0.1 * 2 / 5 * (c[:, None] * out).T @ x)
    torch.testing.assert_close(layer.bias, b - 0.1 * 2 / 5 * (c[:, None] * out).sum(0))
    assert update.sums[0].item() == pytest.approx((c * out.square().sum(1)).sum().item(), rel=1e-5)


def test_random_state_is_a_matter_of_the_place() -> None:
    """Dropout differs between steps, epochs, processes and seeds; noise is the processes' own."""
    dropout, noise = set(), set()
    places = [(0, 0), (0, 1), (1, 0)]
    for rank, seed in ((0, 0), (1, 0), (0, 1)):
        update = made(rank, seed=seed)
        for place in places:
            update.prepare(*place)
            dropout.add(torch.initial_seed())
            noise.add(update.generator.initial_seed())
    assert len(dropout) == 9
    assert len(noise) == 6  # the same in both processes, which take their share of it
    assert not dropout & noise


def test_the_place_sets_rate_and_betas_of_every_group() -> None:
    options = {"schedule": "linear", "decay_from": 2, "late_beta1": 0.1, "lr": 0.5}
    update = made(decay_all=False, **options)
    expected = {(0, 0): (0.5, 0.9), (1, 4): (0.5, 0.9), (2, 0): (0.5, 0.1), (3, 0): (0.25, 0.1)}
    for place, (lr, beta) in expected.items():
        update.prepare(*place)
        groups = update.optimizer.param_groups
        assert [(g["lr"], g["betas"]) for g in groups] == [(pytest.approx(lr), (beta, 0.999))] * 2


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_come_in_the_layout_asked_for(channels_last: bool) -> None:
    update = made(channels_last=channels_last)
    image = torch.rand(5, 2, 4, 3)
    update.core.model = nn.Linear(24, 3)
    for x in (image, image.contiguous(memory_format=torch.channels_last)):
        update(batch()._replace(x=x), 0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for given in update.core.seen:  # type: ignore[union-attr]
        assert given.x.is_contiguous(memory_format=layout)
        assert torch.equal(given.x, image)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_the_network_runs_in_the_precision_asked_for(precision: str, dtype: torch.dtype) -> None:
    update = made(precision=precision)
    update(batch(), 0)
    assert update.core.types == [dtype]  # type: ignore[comparison-overlap]
    assert all(p.dtype == torch.float32 for p in update.core.parameters())
    assert all(
        p.grad is not None and p.grad.dtype == torch.float32 for p in update.core.parameters()
    )


def test_a_loss_without_gradient_is_one_sentence() -> None:
    update = made()
    update.prepare(0, 0)
    update.core.model.requires_grad_(False)
    with pytest.raises(InvalidInput, match="depends on no parameter of the model"):
        update(batch(), 0)
