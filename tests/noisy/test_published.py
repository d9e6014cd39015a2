"""Whole runs of the baselines against the published rules, written here with none of the package.

Eight epochs go through what changes from one to the next: rates that rise, pruning that is decided
anew, the layer that begins.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.data import Batch
from covprop.noisy import NoisyStep, Task, build

IMAGES, CLASSES, EPOCHS, RATE = 60, 4, 8, 0.4
X = torch.rand(IMAGES, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, CLASSES, (IMAGES,), generator=torch.Generator().manual_seed(1))
Rule = Callable[[nn.Module, nn.Module, Tensor, int], Tensor]
"""(network, second network, the batch's images by number, epoch) -> loss."""


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def batches() -> Iterator[tuple[int, Tensor]]:
    for epoch in range(EPOCHS):
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(epoch))
        yield from ((epoch, batch) for batch in order.split(20))


def trained(name: str, **options: Any) -> nn.Module:
    """By the package's method."""
    model = network(1)
    task = Task(IMAGES, CLASSES, RATE, 0.25, (1, 4, 4), lambda: network(2))
    step = NoisyStep(model, build(name, task=task, **options), task, None)
    descent = torch.optim.SGD(step.parameters(), 0.1, momentum=0.9)
    begun = -1
    for epoch, i in batches():
        if epoch > begun:
            step.start_epoch(epoch)
            begun = epoch
        descent.zero_grad()
        step(Batch(i, X[i], Y[i]), epoch, torch.Generator()).per_sample.mean().backward()
        descent.step()
    return model


def by_rule(rule: Rule, *more: Tensor) -> nn.Module:
    model, second = network(1), network(2)
    weights = [*model.parameters(), *second.parameters(), *more]
    descent = torch.optim.SGD(weights, 0.1, momentum=0.9)
    for epoch, i in batches():
        descent.zero_grad()
        rule(model, second, i, epoch).backward()
        descent.step()
    return model


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    for one, other, first in zip(
        found.parameters(), expected.parameters(), network(1).parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert (one - first).abs().max() > 0.01


def easiest(model: nn.Module, i: Tensor, epoch: int) -> Tensor:
    """The share 1 − R of images of smallest loss; R rises to the share of wrong labels."""
    losses = F.cross_entropy(model(X[i]), Y[i], reduction="none")
    return i[losses.argsort()[: int(len(i) * (1 - RATE * min(1, epoch / 3)) + 1e-9)]]


def mentornet(model: nn.Module, _: nn.Module, i: Tensor, epoch: int) -> Tensor:
    i = easiest(model, i, epoch)
    return F.cross_entropy(model(X[i]), Y[i])


def coteaching(model: nn.Module, second: nn.Module, i: Tensor, epoch: int) -> Tensor:
    mine, other = easiest(second, i, epoch), easiest(model, i, epoch)
    return F.cross_entropy(model(X[mine]), Y[mine]) + F.cross_entropy(second(X[other]), Y[other])


def decoupling(model: nn.Module, second: nn.Module, i: Tensor, epoch: int) -> Tensor:
    i = i[model(X[i]).argmax(1) != second(X[i]).argmax(1)]
    losses = [F.cross_entropy(net(X[i]), Y[i], reduction="sum") for net in (model, second)]
    return sum(losses, torch.zeros(())) / max(len(i), 1)


def hard(model: nn.Module, _: nn.Module, i: Tensor, epoch: int) -> Tensor:
    logits = model(X[i])
    return 0.8 * F.cross_entropy(logits, Y[i]) + 0.2 * F.cross_entropy(logits, logits.argmax(1))


def soft(model: nn.Module, _: nn.Module, i: Tensor, epoch: int) -> Tensor:
    p = model(X[i]).softmax(1)
    return -((0.95 * F.one_hot(Y[i], CLASSES) + 0.05 * p) * p.log()).sum(1).mean()


def truncated() -> Rule:
    """Pruned before epochs 2, 4 and 6, by the probability that each image had when last seen."""
    seen, keep = torch.ones(IMAGES), {}

    def rule(model: nn.Module, _: nn.Module, i: Tensor, epoch: int) -> Tensor:
        chosen = epoch // 2
        if chosen not in keep:
            keep[chosen] = seen.clone() >= (0.3 if chosen else 0)
        p = model(X[i]).softmax(1)[torch.arange(len(i)), Y[i]]
        seen[i] = p.detach()
        return torch.where(keep[chosen][i], (0.3**0.7 - p**0.7) / 0.7, 0.0).mean()

    return rule


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("mentornet", {"ramp": 3}, mentornet),
        ("coteaching", {"ramp": 3}, coteaching),
        ("decoupling", {}, decoupling),
        ("bootstrap", {}, hard),
        ("bootstrap", {"kind": "soft"}, soft),
        ("truncated", {"from_epoch": 2, "refresh": 2, "k": 0.3}, truncated()),
    ],
)
def test_a_run_follows_the_rule(name: str, options: dict[str, Any], rule: Rule) -> None:
    assert_same(trained(name, **options), by_rule(rule))


def test_the_s_model() -> None:
    """Three plain epochs; the layer begins with how the third one's guesses met the labels."""
    layer, met = torch.zeros(CLASSES, CLASSES, requires_grad=True), torch.ones(CLASSES, CLASSES)

    def rule(model: nn.Module, _: nn.Module, i: Tensor, epoch: int) -> Tensor:
        logits = model(X[i])
        if epoch < 3:
            if epoch == 2:
                for guess, given in zip(logits.argmax(1), Y[i], strict=True):
                    met[guess, given] += 1
            return F.cross_entropy(logits, Y[i])
        if not layer.detach().any():
            layer.data.copy_((met / met.sum(1, keepdim=True)).log())
        p = logits.softmax(1) @ layer.softmax(1)
        return F.nll_loss(p.log(), Y[i])

    assert_same(trained("smodel", pretrain=3), by_rule(rule, layer))
