"""Losses and their gradients against the published formulas, written here with none of the package.

The network has what the formulas differ in: batch norm in training, two kinds of ReLU, a pool whose
windows overlap, and linear layers with an activation between them.
"""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.methods import Losses, build

SIGMA, SHAPE, CLASSES = 0.25, (2, 6, 6), 3
Run = tuple[Losses, nn.Sequential]


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 5, 3), nn.LeakyReLU(0.1), nn.AvgPool2d(3, stride=1), nn.Flatten(),
        nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, CLASSES),
    ).double()  # fmt: skip


@pytest.fixture
def batch(net: nn.Sequential) -> tuple[Tensor, Tensor]:
    """Seven images, two of which the network gets wrong."""
    x = torch.rand(7, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = copy.deepcopy(net)(x).argmax(1)
    y[:2] = (y[:2] + 1) % CLASSES
    return x, y


def noise(samples: int) -> Tensor:
    """What a method draws from the generator that `ask` gives it."""
    generator = torch.Generator().manual_seed(3)
    return SIGMA * torch.randn(7, samples, *SHAPE, generator=generator, dtype=torch.float64)


def ask(net: nn.Sequential, batch: tuple[Tensor, Tensor], name: str, **options: Any) -> Run:
    """A method's answer, and another network like the one it was given, to repeat it with."""
    twin = copy.deepcopy(net)
    method = build(name, sigma=SIGMA, input_shape=SHAPE, **options)
    generator = torch.Generator().manual_seed(3)
    return method(net, *batch, epoch=4, generator=generator), twin


def assert_same(
    net: nn.Module, found: Tensor, twin: nn.Module, expected: Tensor, tolerance: float = 1e-9
) -> None:
    """Loss and gradients; the mean over the batch is what is minimised."""
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found, expected, **close)
    ours, theirs = (
        torch.autograd.grad(loss, list(model.parameters()))
        for loss, model in ((found, net), (expected, twin))
    )
    assert sum(float(g.abs().sum()) for g in theirs) > 0.1
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **close)


def rectified(mean: Tensor, std: Tensor) -> Tensor:
    z = mean / std
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return mean * 0.5 * (1 + torch.erf(z / math.sqrt(2))) + std * density


def moments(net: nn.Sequential, x: Tensor, *, text: bool) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the logits by the paper's text, or as its authors' code has them."""
    first, norm, _, second, _, _, _, third, _, last = net
    r_max, floor = (0.2, 0.0) if text else (0.1, 0.1)

    def held(value: Tensor) -> Tensor:
        return value if text else value.detach()

    def through(layer: Any, cov: Tensor) -> Tensor:
        weight = held(layer.weight)
        return (1 + r_max) * torch.einsum("aikl,ij,bjkl->ab", weight, cov, weight)

    def std(cov: Tensor) -> Tensor:
        return torch.diagonal(cov).sqrt()

    mean, cov = first(x), through(first, SIGMA**2 * torch.eye(2, dtype=torch.float64))
    variance = mean.var((0, 2, 3), correction=0)
    scale = norm.weight / (variance + norm.eps).sqrt()
    centred = mean - mean.mean((0, 2, 3))[:, None, None]
    mean = centred * scale[:, None, None] + norm.bias[:, None, None]
    cov = cov * torch.outer(held(scale), held(scale))
    mean = rectified(mean, std(cov)[:, None, None])
    cov = cov + floor * torch.eye(4)
    mean, cov = second(mean), through(second, cov)
    mean = 0.1 * mean + 0.9 * rectified(mean, std(cov)[:, None, None])
    mean = F.avg_pool2d(mean, 3, stride=1)
    cov = cov / 9 * (1 + r_max) if text else cov
    weight = held(third.weight).view(6, 5, 4)
    mean, cov = third(mean.flatten(1)), torch.einsum("aip,ij,bjp->ab", weight, cov, weight)
    mean = rectified(mean, std(cov))
    cov = cov + floor * torch.eye(6)
    return last(mean), held(last.weight) @ cov @ held(last.weight).T


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_the_paper(net: nn.Sequential, batch: tuple[Tensor, Tensor], preset: str) -> None:
    (x, y), text, weight = batch, preset == "paper", 3.0
    options: dict[str, Any] = {"estimator": "shared", "preset": preset, "weight": weight}
    losses, twin = ask(net, batch, "radius", **options)
    mean, cov = moments(twin, x if text else x + noise(1)[:, 0], text=text)
    expected, radii, hinges = [], [], 0
    for row, label in zip(mean, y.tolist(), strict=True):

        def in_deviations(a: int, b: int, row: Tensor = row) -> Tensor:
            cross = -2 * cov[a, b] if text else 2 * cov[a, b].abs()
            return (row[a] - row[b]) / (cov[a, a] + cov[b, b] + cross).sqrt()

        a, b = row.topk(2).indices.tolist()
        loss = -row.log_softmax(0)[label]
        if a == label:
            hinges += 1
            gap = in_deviations(a, b)
            loss = loss + weight * torch.relu(8 - (SIGMA * gap if text else gap))
            if not text:
                p = (16 * row).softmax(0)
                width = torch.special.ndtri(p[a]) - torch.special.ndtri(p[b])
                loss = loss + weight * torch.relu(8 - width)
        expected.append(loss)
        radii.append(SIGMA * in_deviations(label, b if a == label else a))
    assert 0 < hinges < len(y)
    assert losses.radius is not None
    torch.testing.assert_close(losses.radius, torch.stack(radii).detach())
    assert_same(net, losses.per_sample.mean(), twin, torch.stack(expected).mean())


def test_macer(net: nn.Sequential, batch: tuple[Tensor, Tensor]) -> None:
    losses, twin = ask(net, batch, "macer", samples=5)
    logits = twin((batch[0][:, None] + noise(5)).flatten(0, 1)).view(7, 5, CLASSES)
    classified = -logits.softmax(2).mean(1)[torch.arange(7), batch[1]].log().sum()
    top, order = (16 * logits).softmax(2).mean(1).topk(2)
    quantile = torch.special.ndtri(top[order[:, 0] == batch[1]])
    width = quantile[:, 0] - quantile[:, 1]
    width = width[width.isfinite() & (width <= 8)]
    assert len(width) > 0
    expected = (classified + 12 * SIGMA / 2 * (8 - width).sum()) / 7
    assert_same(net, losses.per_sample.mean(), twin, expected)


def test_consistency(net: nn.Sequential, batch: tuple[Tensor, Tensor]) -> None:
    losses, twin = ask(net, batch, "consistency", samples=3, weight=10.0)
    logits = twin((batch[0][:, None] + noise(3)).flatten(0, 1)).view(7, 3, CLASSES)
    mean = logits.softmax(2).mean(1)
    copies = logits.unbind(1)
    expected = sum(F.cross_entropy(copy, batch[1]) for copy in copies) / 3
    for one in copies:
        expected = expected + 10 / 3 * F.kl_div(one.log_softmax(1), mean, reduction="batchmean")
    expected = expected - 0.5 * (mean * mean.log()).sum(1).mean()
    assert_same(net, losses.per_sample.mean(), twin, expected)


def test_smoothadv(net: nn.Sequential, batch: tuple[Tensor, Tensor]) -> None:
    """Three steps of the attack, some of which leave the ball and the range of pixels."""
    x, y = batch
    size = 1.5 * (4 + 1) / 10  # in epoch 4 of a warm-up of 10
    losses, twin = ask(net, batch, "smoothadv", samples=2, epsilon=1.5, steps=3)
    delta, cut = torch.zeros_like(x), []
    twin.eval()
    for _ in range(3):
        delta.requires_grad_(True)
        logits = twin(((x + delta)[:, None] + noise(2)).flatten(0, 1)).view(7, 2, CLASSES)
        loss = -logits.softmax(2).mean(1)[torch.arange(7), y].log().sum()
        (slope,) = torch.autograd.grad(loss, delta)
        moved = delta.detach() + 2 * size / 3 * F.normalize(slope.flatten(1)).view_as(x)
        delta = (x + moved).clamp(0, 1) - x
        length = delta.flatten(1).norm(dim=1)
        cut += [bool((delta != moved).any()), bool((length > size).any())]
        delta = delta * (size / length).clamp(max=1).view(-1, 1, 1, 1)
    twin.train()
    assert set(cut) == {False, True}
    logits = twin(((x + delta)[:, None] + noise(2)).flatten(0, 1))
    expected = F.cross_entropy(logits, y.repeat_interleave(2))
    assert_same(net, losses.per_sample.mean(), twin, expected)
