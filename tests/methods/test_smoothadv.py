import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.methods import SmoothAdv

Batch = tuple[Tensor, Tensor]


def test_one_step_by_hand(net: nn.Module, batch: Batch) -> None:
    """With one step the attack moves 2ε along the gradient, is cut to the box and then to ε."""
    x, y = batch
    noise = 0.5 * torch.randn(5, 3, 1, 6, 6)
    found = SmoothAdv(sigma=0.5, steps=1).attack(net, x, y, noise, 0.3)
    for i in range(5):
        image = x[i].clone().requires_grad_(True)
        p = sum(F.softmax(net((image + noise[i, s])[None]), dim=1)[0, y[i]] for s in range(3)) / 3
        (-p.log()).backward()
        assert image.grad is not None
        moved = (x[i] + 0.6 * image.grad / image.grad.norm()).clamp(0, 1) - x[i]
        moved = moved * min(1.0, 0.3 / moved.norm().item())
        torch.testing.assert_close(found[i], x[i] + moved)


def test_steps_that_end_within_the_ball_are_not_stretched(net: nn.Module, batch: Batch) -> None:
    """Image by image: the first steps of ε/3 each stay inside, the last reach the sphere."""
    x, y = batch
    x = 0.4 + 0.2 * x  # away from 0 and 1
    noise, size, lengths = 0.5 * torch.randn(5, 2, 1, 6, 6), 0.2, []
    found = SmoothAdv(sigma=0.5, steps=6).attack(net, x, y, noise, size)
    for i in range(5):
        delta = torch.zeros(1, 6, 6)
        for _ in range(6):
            at = (x[i] + delta).requires_grad_(True)
            p = F.softmax(net(at + noise[i]), dim=1)[:, y[i]].mean()
            (slope,) = torch.autograd.grad(-p.log(), at)
            delta = delta + size / 3 * slope / slope.norm()
            delta = delta * min(1.0, size / delta.norm().item())
            lengths.append(delta.norm().item())
        torch.testing.assert_close(found[i], x[i] + delta)
    assert min(lengths) < 0.4 * size
    assert max(lengths) > 0.99 * size


def test_attack_stays_in_its_ball_and_hurts(net: nn.Module, batch: Batch) -> None:
    x, y = batch
    noise = 0.25 * torch.randn(5, 4, 1, 6, 6)
    found = SmoothAdv(sigma=0.25, steps=10).attack(net, x, y, noise, 0.5)
    assert not found.requires_grad
    assert (found - x).flatten(1).norm(dim=1).max() <= 0.5 + 1e-5
    assert found.min() >= -1e-6
    assert found.max() <= 1 + 1e-6

    def loss(images: Tensor) -> Tensor:
        copies = (images[:, None] + noise).flatten(0, 1)
        return -net(copies).softmax(1).unflatten(0, (5, 4)).mean(1)[range(5), y].log()

    assert (loss(found) > loss(x)).all()
    assert all(p.grad is None for p in net.parameters())


def test_training_uses_the_noise_of_the_attack(net: nn.Module, batch: Batch) -> None:
    x, y = batch
    method = SmoothAdv(sigma=0.5, samples=2, epsilon=0.4, steps=3, warmup=0)
    losses = method(net, x, y, epoch=0, generator=torch.Generator().manual_seed(1))
    noise = 0.5 * torch.randn(5, 2, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    attacked = method.attack(net, x, y, noise, 0.4)
    by_hand = sum(F.cross_entropy(net(attacked + noise[:, s]), y, reduction="none") for s in (0, 1))
    torch.testing.assert_close(losses.per_sample, by_hand / 2)


def test_warm_up_of_the_allowed_norm() -> None:
    method = SmoothAdv(sigma=0.5, epsilon=2.0, warmup=4)
    assert [method.epsilon_at(e) for e in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert SmoothAdv(sigma=0.5, epsilon=2.0, warmup=0).epsilon_at(0) == 2.0


def test_flat_model_gives_no_nan(batch: Batch) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    nn.init.zeros_(net[1].weight)
    losses = SmoothAdv(sigma=0.5)(net, *batch, epoch=0, generator=torch.Generator())
    assert losses.per_sample.isfinite().all()


def test_batch_norm_statistics_are_not_touched_by_the_attack(batch: Batch) -> None:
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(36, 4))
    SmoothAdv(sigma=0.5, steps=5)(net, *batch, epoch=0, generator=torch.Generator())
    assert net[0].num_batches_tracked == 1
    assert net[0].training


@pytest.mark.parametrize("grad", [True, False])
def test_works_without_gradient_too(net: nn.Module, batch: Batch, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        losses = SmoothAdv(sigma=0.5, steps=2)(net, *batch, epoch=0, generator=torch.Generator())
    assert losses.per_sample.requires_grad == grad
