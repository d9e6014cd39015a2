"""A forward is traced at known sizes, and nothing of the model is changed or kept."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import dense_covariance, relative
from torch import Tensor, nn

import covprop
from covprop import PAPER, Propagator, UnsupportedModel, check

EXACT = PAPER.but(r_max=0.0)


class Written(nn.Module):
    """A function of the module and its image, and a linear layer."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], features: int = 36) -> None:
        super().__init__()
        self.function, self.last = function, nn.Linear(features, 2)
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 4.0, 3.0]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.inner = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, x))


def by_assertions(net: nn.Module, x: Tensor) -> Tensor:
    assert x.dim() == 4
    assert x.shape[1] == 4, "four channels"
    assert x.shape[1:] == (4, 3, 3)
    assert x.shape == (2 * x).shape
    if x.size(-1) > 100:
        x = F.avg_pool2d(x, 2)
    return x.flatten(1)


def by_loop_over_sizes(net: nn.Module, x: Tensor) -> Tensor:
    count = 1
    for size in x.size()[1:]:
        count *= size
    return x.view(-1, count)


def by_unpacking(net: nn.Module, x: Tensor) -> Tensor:
    batch, *rest = net.inner(x).shape
    assert x.shape[1:].numel() == 36
    return x.reshape(batch, rest[0] * rest[1] * rest[2])


def by_share_of_channels(net: nn.Module, x: Tensor) -> Tensor:
    part = int(x.size(1) * 0.5)
    return torch.cat([x[:, part:], 2 * x[:, :part]], 1).flatten(1)


def by_range(net: nn.Module, x: Tensor) -> Tensor:
    rows = [(row + 1) * x[:, row : row + 1] for row in range(x.shape[1])]
    return torch.cat(rows, 1).flatten(start_dim=1)


WAYS = [by_assertions, by_loop_over_sizes, by_unpacking, by_share_of_channels, by_range]


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_may_compute_and_branch_with_sizes(way) -> None:  # type: ignore[no-untyped-def]
    """torch.fx by itself could trace none of these."""
    model = Written(way).double().eval()
    x = torch.rand(3, 4, 3, 3, dtype=torch.float64)
    out = Propagator(model, 0.5, (4, 3, 3), EXACT)(x)
    expected = dense_covariance(model, 0.25 * torch.eye(4, dtype=torch.float64), (4, 3, 3))[0]
    assert relative(out.cov, expected) < 1e-10
    torch.testing.assert_close(out.mean, model(x))


class OwnNorm(nn.BatchNorm2d):
    """A subclass is traced into: its forward asks for dimensions and counts batches."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def test_a_subclass_of_batch_norm_is_traced_and_left_alone() -> None:
    model = nn.Sequential(OwnNorm(4), nn.Flatten(), nn.Linear(36, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prop = Propagator(model, 0.5, (4, 3, 3))
    check(model, (4, 3, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    x = torch.rand(5, 4, 3, 3)
    prop(x)
    assert not torch.equal(model[0].running_mean, before["0.running_mean"])
    model.eval()
    torch.testing.assert_close(prop(x).mean, model(x))


def test_what_forward_computes_of_buffers_follows_them() -> None:
    """It was computed once, in the trace, and a counter was moved by it."""

    def scaled(net: nn.Module, x: Tensor) -> Tensor:
        net.calls.add_(1)  # type: ignore[operator]
        return (x / net.scale.sqrt()[None, :, None, None]).flatten(1)  # type: ignore[operator]

    model = Written(scaled).eval()
    prop = Propagator(model, 0.5, (4, 3, 3))
    assert model.calls == 0
    x = torch.rand(2, 4, 3, 3)
    with torch.no_grad():
        model.scale.copy_(torch.tensor([9.0, 1.0, 4.0, 0.25]))
    torch.testing.assert_close(prop(x).mean, model(x))


def test_what_buffers_decide_is_decided() -> None:
    def branch(net: nn.Module, x: Tensor) -> Tensor:
        return (2 * x if net.calls.item() == 0 else 3 * x).flatten(1)  # type: ignore[operator]

    model = Written(branch).eval()
    x = torch.rand(2, 4, 3, 3)
    torch.testing.assert_close(Propagator(model, 0.5, (4, 3, 3))(x).mean, model(x))


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: x.flatten(1) if x.shape[0] > 1 else 2 * x.flatten(1),
        lambda net, x: x.flatten(1) if x.shape[0] == 2 else 2 * x.flatten(1),
        lambda net, x: x.flatten(1) if x.mean() > 0 else 2 * x.flatten(1),
    ],
    ids=["larger", "equal", "data"],
)
def test_branches_on_the_batch_or_the_data_are_refused_with_their_line(way) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnsupportedModel, match=r"cannot trace Written at .*test_tracer\.py:\d+"):
        check(Written(way).eval(), (4, 3, 3))


def parts(net: nn.Module, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[:, 0] = x[:, 0]
    return y.flatten(1)


def test_each_thing_that_fx_cannot_has_its_remedy() -> None:
    with pytest.raises(UnsupportedModel, match=r"put the parts together by torch\.cat"):
        check(Written(parts), (4, 3, 3))
    plain = Written(lambda net, x: net.hidden[0](x).flatten(1))  # type: ignore[index]
    plain.hidden = [nn.Conv2d(4, 4, 1)]  # type: ignore[assignment]
    with pytest.raises(UnsupportedModel, match=r"in an nn\.ModuleList"):
        check(plain, (4, 3, 3))
    wrapped = nn.Sequential(nn.DataParallel(nn.Conv2d(4, 4, 1)), nn.Flatten(), nn.Linear(36, 2))
    with pytest.raises(UnsupportedModel, match=r"DataParallel \(0\) hides .* give its \.module"):
        check(wrapped, (4, 3, 3))


class Answer(dict):
    """An answer of a library: a dictionary whose entries are attributes too."""

    def __getattr__(self, name: str) -> object:
        return self[name]


@pytest.mark.parametrize("kind", [lambda y: (y, y), lambda y: Answer(logits=y), lambda y: [y]])
def test_other_answers_than_logits_are_refused_by_their_type(kind) -> None:  # type: ignore[no-untyped-def]
    class Other(Written):
        def forward(self, x: Tensor) -> Tensor:
            return kind(super().forward(x))

    name = type(kind(0)).__name__
    with pytest.raises(UnsupportedModel, match=f"must return one tensor of logits .*not a {name};"):
        check(Other(lambda net, x: x.flatten(1)), (4, 3, 3))


DRAWS = {
    "python": lambda: random.random() < 0.5,
    "torch": lambda: torch.rand(1).item() < 0.5,
    "numpy": lambda: np.random.rand() < 0.5,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_depth_that_is_drawn_in_the_trace_is_refused(draw: Callable[[], bool]) -> None:
    """Training went on with the layers that the trace happened to draw."""

    def depth(net: nn.Module, x: Tensor) -> Tensor:
        if net.training and draw():
            return x.flatten(1)
        return net.inner(x).flatten(1)  # type: ignore[operator]

    model = Written(depth)
    with pytest.raises(UnsupportedModel, match=r"draws random numbers in training.*model\.eval"):
        check(model, (4, 3, 3))
    prop = Propagator(model.eval(), 0.5, (4, 3, 3))
    x = torch.rand(2, 4, 3, 3)
    torch.testing.assert_close(prop(x).mean, model(x))
    with pytest.raises(UnsupportedModel, match=r"in training, Written\.forward draws"):
        prop.train()(x)


def test_noise_that_a_model_adds_in_training_is_drawn_anew() -> None:
    model = Written(lambda net, x: (x + torch.randn_like(x) if net.training else x).flatten(1))
    prop = Propagator(model, 0.5, (4, 3, 3))
    x = torch.rand(2, 4, 3, 3)
    assert not torch.equal(prop(x).mean, prop(x).mean)
    prop.eval()
    torch.testing.assert_close(prop(x).mean, model(x))
    torch.testing.assert_close(prop(x).cov, prop.train()(x).cov)


def test_standardised_weights_are_no_statistics_of_a_batch() -> None:
    """timm's networks without norm standardise their weights by F.batch_norm in training mode."""

    def standardised(net: nn.Module, x: Tensor) -> Tensor:
        weight = net.inner.weight  # type: ignore[union-attr]
        flat = F.batch_norm(weight.reshape(1, 4, -1), None, None, training=True)  # type: ignore[operator]
        return F.conv2d(x, flat.reshape_as(weight)).flatten(1)  # type: ignore[arg-type]

    model = Written(standardised).double().eval()
    out = Propagator(model, 0.5, (4, 3, 3), EXACT)(torch.rand(2, 4, 3, 3, dtype=torch.float64))
    expected = dense_covariance(model, 0.25 * torch.eye(4, dtype=torch.float64), (4, 3, 3))[0]
    assert relative(out.cov, expected) < 1e-10


def test_check_says_what_a_propagator_would() -> None:
    """It looked at the mode of the model only."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x) if self.training else self.last(x).softmax(1)

    for ask in (check, lambda model, shape: covprop.Propagator(model, 0.5, shape)):
        with pytest.raises(UnsupportedModel, match="softmax"):
            ask(Both(), (4,))
