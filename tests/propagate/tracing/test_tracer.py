"""A forward is traced at known sizes, and nothing of the model is changed or kept."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Written
from oracles import dense_covariance, relative
from torch import Tensor, nn

import covprop
from covprop import PAPER, Propagator, UnsupportedModel, check

EXACT = PAPER.but(r_max=0.0)


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


def by_zeros(net: nn.Module, x: Tensor) -> Tensor:
    shift = torch.zeros(x.shape) + torch.ones(size=x.size()) - torch.ones(x.shape)
    return (x + shift).view(x.shape[0], np.prod(x.shape[1:]))


WAYS = [by_assertions, by_loop_over_sizes, by_unpacking, by_share_of_channels, by_range, by_zeros]


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_may_compute_and_branch_with_sizes(way) -> None:  # type: ignore[no-untyped-def]
    """torch.fx by itself could trace none of these."""
    model = Written(way).double().eval()
    x = torch.rand(3, 4, 3, 3, dtype=torch.float64)
    out = Propagator(model, 0.5, (4, 3, 3), EXACT)(x)
    expected = dense_covariance(model, 0.25 * torch.eye(4, dtype=torch.float64), (4, 3, 3))[0]
    assert relative(out.cov, expected) < 1e-10
    torch.testing.assert_close(out.mean, model(x))


NUMBERS = {
    "float": lambda net, x: x * float(net.scale[1]),
    "item": lambda net, x: x * net.scale.max().item(),
    "int": lambda net, x: x[:, : int(net.scale[2])],
    "list": lambda net, x: x * net.scale.tolist()[3],
    "length": lambda net, x: x * len(net.scale),
    "loop": lambda net, x: torch.cat([x[:, i : i + 1] * s for i, s in enumerate(net.scale)], 1),
    "equal": lambda net, x: x if net.scale[0] == net.scale[1] else 3 * x,
}


@pytest.mark.parametrize("way", NUMBERS.values(), ids=NUMBERS.keys())
def test_numbers_of_buffers_are_numbers(way: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = Written(lambda net, x: way(net, x).mean((2, 3)), 4).double().eval()
    x = torch.rand(3, 4, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(Propagator(model, 0.5, (4, 3, 3))(x).mean, model(x))


@pytest.mark.parametrize("read", [float, lambda value: value.item(), lambda value: value.tolist()])
def test_numbers_of_weights_are_refused(read: Callable[[Tensor], float]) -> None:
    """They would be those of before the training."""
    model = Written(lambda net, x: x.flatten(1) * read(net.inner.bias[0]))  # type: ignore[union-attr, index]
    with pytest.raises(UnsupportedModel, match="compute with the value itself"):
        check(model, (4, 3, 3))


def test_what_buffers_decide_is_decided() -> None:
    def branch(net: nn.Module, x: Tensor) -> Tensor:
        return (2 * x if net.calls.item() == 0 else 3 * x).flatten(1)  # type: ignore[operator]

    model = Written(branch).eval()
    x = torch.rand(2, 4, 3, 3)
    torch.testing.assert_close(Propagator(model, 0.5, (4, 3, 3))(x).mean, model(x))


def test_a_slice_of_layers_is_its_layers() -> None:
    layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))
    model = Written(lambda net, x: net.layers[1:](net.layers[:1](x)).flatten(1))  # type: ignore[index, operator]
    model.layers = layers
    whole = nn.Sequential(layers, nn.Flatten(), model.last)
    x = torch.rand(2, 4, 3, 3)
    found, expected = (Propagator(net.eval(), 0.5, (4, 3, 3))(x) for net in (model, whole))
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.cov, expected.cov)


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
    bytes_too = Written(lambda net, x: (x / 255 if x.dtype == torch.uint8 else x).flatten(1))
    with pytest.raises(UnsupportedModel, match=r"asks for a type.* convert without asking"):
        check(bytes_too, (4, 3, 3))
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


@pytest.mark.parametrize(
    "draw",
    [
        torch.randn_like,
        lambda x: torch.randn([x.size(0), 1, 1, 1]),
        lambda x: torch.randn(x.size()),
    ],
    ids=["like", "list", "size"],
)
def test_noise_that_a_model_adds_in_training_is_drawn_anew(
    draw: Callable[[Tensor], Tensor],
) -> None:
    model = Written(lambda net, x: (x + draw(x) if net.training else x).flatten(1))
    state = torch.get_rng_state()
    prop = Propagator(model, 0.5, (4, 3, 3))
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn when it is made
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
