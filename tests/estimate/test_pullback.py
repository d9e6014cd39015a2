"""Training on the linearised radius: its gradient against autograd's own, and what it costs."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from oracles import relative
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from covprop import models
from covprop.estimate.linearized import Linearization, linearize
from covprop.estimate.pullback import Pullback

GRAY, COLOUR = (1, 8, 8), (3, 8, 8)


class Branches(nn.Module):
    """A sum, a concatenation, and convolutions that are grouped, strided and dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=(1, 1), stride=(1, 1))
        self.grouped = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2, bias=False)
        self.strided = nn.Conv2d(8, 3, 3, stride=2, padding="valid")
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = x + self.grouped(x).relu()
        return self.strided(self.act(torch.cat([x, y], 1))).mean((2, 3))


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.LazyLinear(3))


def resnet(norm: str) -> nn.Module:
    net = models.build(
        "preact_resnet18", num_classes=4, image_shape=COLOUR, width=4, norm=norm,
        mean=(0.5,) * 3, std=(0.25,) * 3,
    )  # fmt: skip
    for parameter in net.parameters():  # without a norm the last convolutions begin at zero
        parameter.data += 0.1 * torch.randn_like(parameter)
    return net


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet": (lambda: models.build("lenet", num_classes=5, image_shape=GRAY, width=4), GRAY),
    "resnet": (lambda: resnet("none"), COLOUR),
    "resnet-act": (lambda: resnet("act").eval(), COLOUR),
    "resnet-batch-eval": (lambda: resnet("batch").eval(), COLOUR),
    "branches": (Branches, GRAY),
    "max-pool": (lambda: chain(nn.ReLU(), nn.MaxPool2d(2)), GRAY),
    "in-place": (lambda: chain(nn.ReLU(inplace=True), nn.AvgPool2d(2)), GRAY),
    "prelu": (lambda: chain(nn.PReLU()), GRAY),
    "gelu": (lambda: chain(nn.GELU(), nn.Conv2d(4, 4, 3), nn.Tanh()), GRAY),
}


def built(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model, x = build(), torch.rand(6, *shape)
    with torch.no_grad():
        model(x)
    return model.double(), x.double()


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    weights = list(model.parameters())
    found = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, weights, strict=True)]


def loss_of(gap: Tensor, var: Tensor) -> Tensor:
    """Different for every image, so that none can take another's place."""
    return (torch.arange(1.0, 1 + len(gap)) * (var.log() + gap)).sum()


def by_hand(
    model: nn.Module, x: Tensor, found: Linearization, pulled: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    """Gap and variance by double backward in plain autograd; `pulled` gives the variance."""
    pair = torch.stack([found.top, found.runner_up], 1)
    at = x.clone().requires_grad_(True)
    gap = (pulled or model)(at).gather(1, pair).diff(dim=1).neg().squeeze(1)
    (slope,) = torch.autograd.grad(gap.sum(), at, create_graph=True)
    var = 0.09 * slope.square().flatten(1).sum(1)
    return model(x).gather(1, pair).diff(dim=1).neg().squeeze(1), var


def worst(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return relative(
        torch.cat([g.flatten() for g in ours]), torch.cat([g.flatten() for g in theirs])
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_is_that_of_double_backward(name: str) -> None:
    model, x = built(name)
    found = linearize(model, x, 0.3, create_graph=True)
    gap, var = by_hand(model, x, found)
    torch.testing.assert_close(found.gap, gap)
    torch.testing.assert_close(found.var, var)
    ours = gradients(loss_of(found.gap, found.var), model)
    assert worst(ours, gradients(loss_of(gap, var), model)) < 1e-12
    through = gradients(found.var.log().sum(), model)  # not lost beside the gap's own gradient
    assert worst(through, gradients(by_hand(model, x, found)[1].log().sum(), model)) < 1e-12


class Twin(nn.Module):
    """The same parameters; every batch norm takes its statistics from a first pass over the batch,
    which knows nothing of the point at which the second one is differentiated."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def normalise(self, norm: nn.Module, x: Tensor) -> Tensor:
        dims = [0, *range(2, x.ndim)]
        if self.first:
            self.found[norm] = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
        mean, var = self.found[norm]
        out = (x - mean) / (var + norm.eps).sqrt()
        if norm.weight is None:
            return out
        return out * norm.weight.view(mean.shape) + norm.bias.view(mean.shape)

    def forward(self, x: Tensor) -> Tensor:
        self.found: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        for norm in self.norms:
            norm.forward = partial(self.normalise, norm)  # type: ignore[method-assign]
        try:
            for self.first in (True, False):
                out = self.model(x.detach() if self.first else x)
            return out
        finally:
            for norm in self.norms:
                del norm.forward


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", ["resnet", "chain", "smooth", "flat"])
def test_batch_statistics_follow_the_weights_and_not_the_image(name: str, affine: bool) -> None:
    torch.manual_seed(0)
    if name == "resnet":
        model, shape = resnet("batch"), COLOUR
    elif name != "flat":
        act = nn.GELU() if name == "smooth" else nn.ReLU()
        one, two = (nn.BatchNorm2d(4, affine=affine) for _ in range(2))
        model = chain(one, act, nn.Conv2d(4, 4, 3, bias=False), two, act, nn.MaxPool2d(2))
        shape = GRAY
    else:
        hidden = nn.LazyLinear(6), nn.BatchNorm1d(6, affine=affine), nn.ReLU()
        model, shape = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(6, 3)), GRAY
    x = torch.rand(6, *shape).double()
    model(x.float())
    model = model.double().train()
    found = linearize(model, x, 0.3, create_graph=True)
    gap, var = by_hand(model, x, found, Twin(model))
    torch.testing.assert_close(found.gap, gap)
    torch.testing.assert_close(found.var, var)
    ours = gradients(loss_of(found.gap, found.var), model)
    assert worst(ours, gradients(loss_of(gap, var), model)) < 1e-12
    torch.testing.assert_close(linearize(model, x, 0.3).var, var)  # without a graph too


def test_the_size_of_weights_before_a_norm_is_no_way_out() -> None:
    """The norm undoes it, so the variance must not pull at it: its gradient is tangential."""
    torch.manual_seed(0)
    model, x = chain(nn.BatchNorm2d(4, eps=1e-16), nn.ReLU()), torch.rand(6, *GRAY).double()
    model(x.float())
    model = model.double()
    linearize(model, x, 0.3, create_graph=True).var.sum().backward()
    weight = model[0].weight
    along = (weight * weight.grad).sum((1, 2, 3)).abs()
    assert (along < 1e-10 * weight.norm() * weight.grad.norm()).all()
    assert weight.grad.norm() > 1e-6


def test_running_statistics_move_as_in_one_forward_pass() -> None:
    torch.manual_seed(0)
    model, twin, x = resnet("batch"), resnet("batch"), torch.rand(6, *COLOUR)
    twin.load_state_dict(model.state_dict())
    linearize(model, x, 0.3, create_graph=True)
    twin(x)
    for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


class Passes(TorchDispatchMode):
    """Counts convolutions by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.convolution:
            self.count["forward"] += 1
        elif func.overloadpacket is torch.ops.aten.convolution_backward:
            self.count["data"] += args[-1][0]
            self.count["weight"] += args[-1][1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_costs_six_passes_where_plain_training_costs_three(norm: str) -> None:
    model, x = resnet(norm), torch.rand(4, *COLOUR)
    layers = sum(isinstance(m, nn.Conv2d) for m in model.modules())
    with Passes() as plain:
        model(x).logsumexp(1).sum().backward()
    assert plain.count == {"forward": layers, "data": layers - 1, "weight": layers}
    with Passes() as ours:
        found = linearize(model, x, 0.3, create_graph=True)
        assert ours.count == {"forward": layers, "data": layers, "weight": 0}
        (found.var.log() + found.logits.logsumexp(1)).sum().backward()
    assert ours.count == {"forward": 2 * layers, "data": 2 * layers, "weight": 2 * layers}


def test_autocast_reaches_the_convolutions() -> None:
    model, x = resnet("none"), torch.rand(4, *COLOUR)
    with torch.autocast("cpu", torch.bfloat16):
        found = linearize(model, x, 0.3, create_graph=True)
        expected = model(x)
    assert found.logits.dtype == torch.bfloat16
    torch.testing.assert_close(found.logits, expected)
    half = gradients(found.var.log().sum() + found.gap.sum(), model)
    found = linearize(model, x, 0.3, create_graph=True)
    full = gradients(found.var.log().sum() + found.gap.sum(), model)
    assert all(g.dtype == torch.float32 for g in half)
    assert worst(half, full) < 0.05


def test_frozen_weights_and_unusual_calls_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv1d(1, 3, 3, padding="same"), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)
    )
    model[0].requires_grad_(False)
    found = linearize(model, torch.rand(3, 1, 8), 0.3, create_graph=True)
    found.var.sum().backward()
    assert model[0].weight.grad is None
    assert model[3].weight.grad is not None
    with Pullback():
        assert nn.functional.conv2d(torch.ones(1, 3, 3), torch.ones(1, 1, 3, 3)).item() == 9
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            nn.functional.batch_norm(torch.ones(1, 3), None, None, training=True)


def test_autocast_leaves_doubles_alone() -> None:
    model, x = resnet("none").double(), torch.rand(2, *COLOUR, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        found = linearize(model, x, 0.3)
    torch.testing.assert_close(found.var, linearize(model, x, 0.3).var)
