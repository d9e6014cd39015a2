import numpy as np
import pytest
import torch
from torch import Tensor, nn

from covprop.methods import Consistency, Gaussian


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
