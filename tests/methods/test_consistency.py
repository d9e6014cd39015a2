import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from covprop.methods import Consistency, Gaussian
from covprop.mode import switched


@pytest.mark.parametrize("samples", [2, 4])
def test_loss_by_hand(net: nn.Module, batch: tuple[Tensor, Tensor], samples: int) -> None:
    x, y = batch
    net[-1].weight.data.mul_(10)
    method = Consistency(sigma=0.5, samples=samples, weight=7.0, entropy=0.3)
    losses = method(net, x, y, epoch=0, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(5, samples, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    for i in range(5):
        p = []
        for s in range(samples):
            logits = net((x[i] + 0.5 * noise[i, s])[None])[0].detach().double().numpy()
            p.append(np.exp(logits) / np.exp(logits).sum())
        mean = sum(p) / samples
        cross_entropy = -sum(np.log(q[y[i]]) for q in p) / samples
        divergence = sum((mean * np.log(mean / q)).sum() for q in p) / samples
        entropy = -(mean * np.log(mean)).sum()
        expected = cross_entropy + 7.0 * divergence + 0.3 * entropy
        assert losses.per_sample[i].item() == pytest.approx(expected, rel=1e-4)


def test_copies_agree_from_their_epoch_on(net: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    def loss(method: Gaussian | Consistency, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return method(net, *batch, epoch=epoch, generator=generator).per_sample

    late, always = Consistency(sigma=0.5, from_epoch=2), Consistency(sigma=0.5)
    assert torch.equal(loss(late, 1), loss(Gaussian(sigma=0.5), 1))
    assert torch.equal(loss(late, 2), loss(always, 2))
    assert not torch.equal(loss(late, 1), loss(always, 1))


def test_equal_copies_disagree_by_nothing() -> None:
    logits = torch.randn(3, 1, 4).expand(3, 5, 4)
    method = Consistency(sigma=0.5, weight=100.0, entropy=0.0)
    torch.testing.assert_close(method.disagreement(logits), torch.zeros(3), atol=1e-4, rtol=0)


def test_extreme_logits_give_finite_gradients() -> None:
    logits = torch.tensor([[[300.0, 0.0], [-300.0, 0.0]]], requires_grad=True)
    Consistency(sigma=0.5).disagreement(logits).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def by_hand(w: Tensor, x: Tensor, label: int, reach: float) -> tuple[Tensor, float]:
    """Linear logits w @ x + b: the boundary to the nearest class is a plane."""
    flat = x.flatten().double()
    logits = w.double() @ flat
    other = max((c for c in range(len(w)) if c != label), key=lambda c: logits[c].item())
    normal = (w[label] - w[other]).double()
    radius = ((logits[label] - logits[other]) / normal.norm()).item()
    length = min(max(radius, 0.0), reach)
    return (flat - length * normal / normal.norm()).view_as(x), radius


def test_an_image_is_moved_as_far_as_its_radius_or_the_reach() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False))
    x, y = torch.rand(64, 3, 2, 2), torch.arange(64) % 3
    noise = 0.1 * torch.randn(64, 1, 3, 2, 2)
    method = Consistency(sigma=0.1, reach=0.2)
    moved, radius = method.moved(net, x, y, noise)
    kinds = set()
    for i in range(64):
        noisy = x[i] + noise[i, 0]
        expected, r = by_hand(net[1].weight.detach(), noisy, int(y[i]), 0.2)
        kinds.add("stays" if r < 0 else "boundary" if r < 0.2 else "reach")
        assert radius[i].item() == pytest.approx(r, rel=1e-3, abs=1e-5)
        shift = expected - noisy.double()
        torch.testing.assert_close(moved[i].double(), x[i].double() + shift, atol=1e-5, rtol=0)
    assert kinds == {"stays", "boundary", "reach"}


def test_loss_of_moved_images(net: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    net[-1].weight.data.mul_(10)
    method = Consistency(sigma=0.3, reach=0.5)

    def noise() -> Tensor:
        return 0.3 * torch.randn(5, 2, 1, 6, 6, generator=torch.Generator().manual_seed(1))

    losses = method(net, x, y, epoch=0, generator=torch.Generator().manual_seed(1))
    moved, radius = method.moved(net, x, y, noise()[:, :1])
    assert not torch.equal(moved, x)
    assert losses.radius is not None
    torch.testing.assert_close(losses.radius, radius)
    plain = Consistency(sigma=0.3)
    there = plain(net, moved, y, epoch=0, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(losses.per_sample, there.per_sample)
    assert there.radius is None


def test_moving_leaves_weights_and_statistics_alone(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(36, 4))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    moved, radius = Consistency(sigma=0.3, reach=0.5).moved(net, x, y, torch.zeros(5, 1, 1, 6, 6))
    assert net.training
    assert not moved.requires_grad
    assert not radius.requires_grad
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    with switched(net, training=False), torch.no_grad():
        there, _ = Consistency(sigma=0.3, reach=0.5).moved(net, x, y, torch.zeros(5, 1, 1, 6, 6))
    torch.testing.assert_close(moved, there)


def test_where_no_noise_matters_images_stay_and_radii_are_infinite(
    net: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    """The trainer leaves such radii out, as those of other methods; a tie is 0, not NaN."""
    x, _ = batch
    net[-1].weight.data.zero_()
    net[-1].bias.data = torch.tensor([1.0, 1.0, 0.0, 0.0])
    y = torch.tensor([0, 1, 2, 3, 0])
    method = Consistency(sigma=0.3, reach=0.5)
    moved, radius = method.moved(net, x, y, torch.zeros(5, 1, 1, 6, 6))
    assert torch.equal(moved, x)
    assert radius.tolist() == [0.0, 0.0, -math.inf, -math.inf, 0.0]
    net[-1].bias.data[1] = 0.0
    moved, radius = method.moved(net, x, y, torch.zeros(5, 1, 1, 6, 6))
    assert torch.equal(moved, x)
    assert radius.tolist() == [math.inf, *[-math.inf] * 3, math.inf]


def test_plain_epochs_move_nothing(net: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    def losses(method: Consistency) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return method(net, *batch, epoch=1, generator=generator).per_sample

    far = Consistency(sigma=0.5, from_epoch=2, reach=1.0)
    assert torch.equal(losses(far), losses(Consistency(sigma=0.5, from_epoch=2)))
