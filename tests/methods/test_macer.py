import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn

from covprop.methods import Macer

SIGMA, WEIGHT, GAMMA, BETA, SAMPLES = 0.5, 3.0, 8.0, 4.0, 6


def _softmax(values: list[float]) -> list[float]:
    top = max(values)
    powers = [math.exp(v - top) for v in values]
    return [p / sum(powers) for p in powers]


def _published_batch_loss(logits: Tensor, y: Tensor) -> float:
    """Both sums over the batch, divided by its size, in plain loops."""
    icdf = NormalDist().inv_cdf
    classification = robustness = 0.0
    for rows, label in zip(logits.tolist(), y.tolist(), strict=True):
        soft = [_softmax(row) for row in rows]
        mean = [sum(column) / len(rows) for column in zip(*soft, strict=True)]
        classification -= math.log(mean[label] + 1e-10)
        sharp = [_softmax([BETA * v for v in row]) for row in rows]
        mean = [sum(column) / len(rows) for column in zip(*sharp, strict=True)]
        order = sorted(range(len(mean)), key=lambda c: -mean[c])
        first, second = mean[order[0]], mean[order[1]]
        if order[0] != label or first >= 1 or second <= 0:
            continue
        width = icdf(first) - icdf(second)
        if width <= GAMMA:
            robustness += (GAMMA - width) * SIGMA / 2
    return (classification + WEIGHT * robustness) / len(y)


def _method(**options: float) -> Macer:
    given = {"samples": SAMPLES, "weight": WEIGHT, "gamma": GAMMA, "beta": BETA}
    return Macer(sigma=SIGMA, **{**given, **options})


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_mean_over_the_batch_is_the_published_loss(
    net: nn.Module, batch: tuple[Tensor, Tensor], scale: float
) -> None:
    net, x, y = net.double(), batch[0].double(), batch[1]
    net[-1].weight.data.mul_(scale)
    y[:3] = net(x[:3]).argmax(1)  # some right, some wrong
    generator = torch.Generator().manual_seed(2)
    losses = _method()(net, x, y, epoch=0, generator=generator)
    noise = torch.randn(
        5, SAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    logits = torch.stack([net(x[i] + SIGMA * noise[i]) for i in range(5)])
    expected = _published_batch_loss(logits.detach(), y)
    assert losses.per_sample.mean().item() == pytest.approx(expected, rel=1e-9)


def test_only_right_and_close_images_have_a_radius_term() -> None:
    y = torch.tensor([0, 0, 0])
    logits = torch.tensor([[[0.1, 0.0]], [[0.0, 0.1]], [[90.0, 0.0]]], requires_grad=True)
    loss = _method().radius_loss(logits, y)
    assert loss[0] > 0
    assert loss[1:].tolist() == [0.0, 0.0]  # a wrong prediction; Φ⁻¹(1) = ∞
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0].abs().sum() > 0
    assert logits.grad[1:].abs().sum() == 0


def test_gamma_is_where_the_hinge_ends() -> None:
    logits = torch.tensor([[[0.5, 0.0]]])
    width = 2 * NormalDist().inv_cdf(_softmax([BETA * 0.5, 0.0])[0])
    y = torch.tensor([0])
    assert _method(gamma=width - 0.01).radius_loss(logits, y).item() == 0
    expected = SIGMA / 2 * 0.01
    found = _method(gamma=width + 0.01).radius_loss(logits, y).item()
    assert found == pytest.approx(expected, rel=1e-3)


def test_radius_term_waits_for_its_epoch(net: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    def loss(epoch: int, weight: float) -> Tensor:
        method = _method(from_epoch=2, weight=weight)
        generator = torch.Generator().manual_seed(0)
        return method(net, *batch, epoch=epoch, generator=generator).per_sample

    batch[1][:] = net(batch[0]).argmax(1)
    torch.testing.assert_close(loss(1, WEIGHT), loss(9, 0.0))
    assert (loss(2, WEIGHT) >= loss(1, WEIGHT)).all()
    assert not torch.equal(loss(2, WEIGHT), loss(1, WEIGHT))
