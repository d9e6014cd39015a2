"""Every method's loss and choice on a batch small enough to do by hand."""

import math
from collections.abc import Callable

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn

from covprop.noisy import NoisyLosses, NoisyMethod
from covprop.noisy.smodel import log_confusion, smodel_loss

Make = Callable[..., NoisyMethod]
Call = Callable[..., NoisyLosses]

P = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5], [0.05, 0.05, 0.9]]
LOGITS = torch.tensor(P, dtype=torch.float64).log().float()
Y = torch.tensor([0, 2, 1, 2])
CE = [-math.log(p) for p in (0.7, 0.3, 0.25, 0.9)]


def close(found: Tensor, by_hand: list[float]) -> None:
    torch.testing.assert_close(found.double(), torch.tensor(by_hand).double(), rtol=1e-5, atol=1e-6)


def test_plain(make: Make, call: Call) -> None:
    learned = call(make("plain"), LOGITS, Y)
    close(learned.per_sample, CE)
    assert learned.kept.all()
    assert torch.equal(learned.logits, LOGITS)


def test_bootstrap_hard(make: Make, call: Call) -> None:
    learned = call(make("bootstrap"), LOGITS, Y)
    top = [-math.log(max(row)) for row in P]
    close(learned.per_sample, [0.8 * c + 0.2 * t for c, t in zip(CE, top, strict=True)])


def test_bootstrap_soft(make: Make, call: Call) -> None:
    learned = call(make("bootstrap", kind="soft"), LOGITS, Y)
    entropy = [-sum(p * math.log(p) for p in row) for row in P]
    close(learned.per_sample, [0.95 * c + 0.05 * h for c, h in zip(CE, entropy, strict=True)])
    half = call(make("bootstrap", kind="soft", beta=0.5), LOGITS, Y)
    close(half.per_sample, [0.5 * c + 0.5 * h for c, h in zip(CE, entropy, strict=True)])


def test_smodel(make: Make, call: Call) -> None:
    """Plain at first; then W from how predictions met labels, and the noisy likelihood."""
    method = make("smodel", pretrain=2)
    method.start_epoch(nn.Identity(), 0)
    close(call(method, LOGITS, Y, epoch=0).per_sample, CE)
    method.start_epoch(nn.Identity(), 1)
    close(call(method, LOGITS, Y, epoch=1).per_sample, CE)
    method.start_epoch(nn.Identity(), 2)
    # Predictions 0, 1, 2, 2 met labels 0, 2, 1, 2, in the last epoch alone; 1 is added to each.
    confusion = [[2 / 4, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 2 / 4], [1 / 5, 2 / 5, 2 / 5]]
    close(method.get_parameter("transition").exp().flatten(), [p for row in confusion for p in row])
    given = [
        -math.log(sum(p * confusion[i][int(y)] for i, p in enumerate(row)))
        for row, y in zip(P, Y, strict=True)
    ]
    learned = call(method, LOGITS, Y, epoch=2)
    close(learned.per_sample, given)
    learned.per_sample.sum().backward()
    assert method.get_parameter("transition").grad is not None
    assert learned.logits.argmax(1).tolist() == [0, 1, 2, 2]


def test_log_confusion_by_hand() -> None:
    close(
        log_confusion(torch.tensor([[3.0, 0.0], [0.0, 0.0]])).exp().flatten(), [0.8, 0.2, 0.5, 0.5]
    )


def test_decoupling(make: Make, call: Call) -> None:
    """Predictions 0, 1, 2, 2 against 0, 2, 2, 1: they differ on images 1 and 3."""
    peer = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6], [0.1, 0.1, 0.8], [0.1, 0.7, 0.2]])
    learned = call(make("decoupling", peer=peer.log()), LOGITS, Y)
    assert learned.kept.tolist() == [False, True, False, True]
    both = [0, CE[1] - math.log(0.6), 0, CE[3] - math.log(0.2)]
    close(learned.per_sample, [2 * v for v in both])  # two of four: the mean is over two
    same = call(make("decoupling", peer=LOGITS), LOGITS, Y)
    assert same.per_sample.tolist() == [0] * 4


@pytest.mark.parametrize(("epoch", "kept"), [(0, 4), (5, 3), (10, 2), (50, 2)])
def test_mentornet(make: Make, call: Call, epoch: int, kept: int) -> None:
    learned = call(make("mentornet"), LOGITS, Y, epoch)
    easiest = sorted(range(4), key=CE.__getitem__)[:kept]
    assert learned.kept.tolist() == [i in easiest for i in range(4)]
    close(learned.per_sample, [CE[i] * 4 / kept if i in easiest else 0 for i in range(4)])


def test_coteaching(make: Make, call: Call) -> None:
    """The model finds images 0 and 3 easiest, its peer 1 and 2: each learns the other's two."""
    peer = torch.tensor([[0.2, 0.4, 0.4], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1], [0.4, 0.5, 0.1]])
    method = make("coteaching", peer=peer.log())
    learned = call(method, LOGITS, Y, epoch=10)
    assert learned.kept.tolist() == [False, True, True, False]
    others = [-math.log(p) for p in (0.2, 0.8, 0.7, 0.1)]
    close(learned.per_sample, [2 * others[0], 2 * CE[1], 2 * CE[2], 2 * others[3]])
    learned.per_sample.mean().backward()
    gradient = method.get_parameter("peer.logits").grad
    assert gradient is not None
    assert (gradient.abs().sum(1) > 0).tolist() == [True, False, False, True]


def test_coteaching_learns_everything_at_first(make: Make, call: Call) -> None:
    assert call(make("coteaching", rate=0.2), LOGITS, Y, epoch=0).kept.all()
    assert int(call(make("coteaching", rate=0.25), LOGITS, Y, epoch=99).kept.sum()) == 3


def test_truncated(make: Make, call: Call) -> None:
    """p of the label is .7, .3, .25, .9: under k = .5 images 1 and 2 go, from epoch 3 on."""
    method = make("truncated", from_epoch=3, refresh=2)
    lq = [(1 - p**0.7) / 0.7 for p in (0.7, 0.3, 0.25, 0.9)]
    for epoch in range(3):
        method.start_epoch(nn.Identity(), epoch)
        learned = call(method, LOGITS, Y, epoch)
        close(learned.per_sample, lq)
    method.start_epoch(nn.Identity(), 3)
    learned = call(method, LOGITS, Y, 3)
    assert learned.kept.tolist() == [True, False, False, True]
    close(learned.per_sample, [lq[0], 0, 0, lq[3]])
    better = torch.tensor([[0.1, 0.1, 0.8]]).log().repeat(4, 1)  # labels 0, 2, 1, 2
    method.start_epoch(nn.Identity(), 4)
    assert call(method, better, Y, 4).kept.tolist() == [True, False, False, True]
    method.start_epoch(nn.Identity(), 5)
    assert call(method, better, Y, 5).kept.tolist() == [False, True, False, True]


def test_truncated_survives_a_vanishing_probability(make: Make, call: Call) -> None:
    logits = torch.tensor([[-300.0, 0.0, 0.0]]).repeat(4, 1)
    learned = call(make("truncated"), logits, torch.zeros(4, dtype=torch.int64))
    close(learned.per_sample, [1 / 0.7] * 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_the_layers_gradient_compiled_for_two_cpu_threads() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 10, generator=rng, requires_grad=True)
    layer = torch.randn(10, 10, generator=rng, requires_grad=True)
    y = torch.randint(10, (64,), generator=rng)
    expected = torch.autograd.grad(smodel_loss(logits, y, layer).sum(), (logits, layer))
    with torch._inductor.config.patch({"cpp.threads": 2}):
        compiled = torch.compile(smodel_loss)
        found = torch.autograd.grad(compiled(logits, y, layer).sum(), (logits, layer))
    torch.testing.assert_close(found, expected)
