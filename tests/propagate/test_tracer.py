"""A forward is traced at known sizes, and nothing of the model is changed or kept."""

import copy
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


class Kept(nn.Module):
    """Keeps in `way` what its forward makes."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.cache, self.features = way, {}, []  # type: ignore[var-annotated]
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("grid", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "counter":
            self.count += 1
        if self.way == "average":
            self.count = 0.5 * self.count + self.count.mean()
        if self.way == "features":
            self.features.append(x)
        if self.way == "buffer" and not hasattr(self, "made"):
            self.register_buffer("made", torch.arange(x.size(1)))
        if self.way == "grid" and self.grid is None:
            self.grid = torch.arange(x.size(1), device=x.device)
        if self.way == "cache":
            shift = self.cache.setdefault(x.size(1), torch.arange(x.size(1), device=x.device))
        else:
            shift = self.grid if self.way == "grid" else getattr(self, "made", 0)
        return 2 * x + shift


@pytest.mark.parametrize("way", ["counter", "average", "features", "buffer", "grid", "cache"])
def test_what_forward_keeps_is_not_in_the_model_afterwards(way: str) -> None:
    """Values of the trace stood in its buffers and dicts, and it could not be run any more."""
    model = nn.Sequential(nn.Linear(4, 4), Kept(way), nn.Linear(4, 2)).eval()
    names = list(model.state_dict())
    prop = Propagator(model, 0.5, (4,))
    kept = model[1]
    assert list(model.state_dict()) == names
    assert (kept.count, kept.grid, kept.cache, kept.features) == (0, None, {}, [])
    x = torch.rand(3, 4)
    torch.testing.assert_close(prop(x).mean, model(x))


def test_a_layer_that_forward_makes_is_refused() -> None:
    """It stayed in the model."""

    def own(net: nn.Module, x: Tensor) -> Tensor:
        if not hasattr(net, "own"):
            net.own = nn.Linear(x.size(1), 4)
        return net.own(x)  # type: ignore[operator, no-any-return]

    model = Written(own, 4)
    with pytest.raises(UnsupportedModel, match=r"makes a layer of its own \(Linear\)"):
        check(model, (4,))
    assert not hasattr(model, "own")
    model(torch.rand(2, 4))
    check(model, (4,))


WRITES = {
    "fill": lambda net: net.scale.fill_(2.0),
    "copy": lambda net: net.scale.copy_(net.scale * 2),
    "lerp": lambda net: net.scale.lerp_(net.inner.bias, 0.5),
    "add": lambda net: net.scale.add_(net.inner.bias.abs()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_what_forward_writes_into_a_buffer_is_read_and_not_kept(write) -> None:  # type: ignore[no-untyped-def]
    """Every pass wrote it, those over covariances and `check` too."""

    def scaled(net: nn.Module, x: Tensor) -> Tensor:
        write(net)
        return (x * net.scale[:, None, None]).flatten(1)  # type: ignore[index]

    model = Written(scaled).double().eval().requires_grad_(False)
    before = model.scale.clone()
    prop = Propagator(model, 0.5, (4, 3, 3), EXACT)
    x = torch.rand(2, 4, 3, 3, dtype=torch.float64)
    out = prop(x)
    assert torch.equal(model.scale, before)
    torch.testing.assert_close(out.mean, model(x))
    model.scale.copy_(before)
    fresh = copy.deepcopy(model)
    write(fresh)
    expected = dense_covariance(
        lambda x: model.last((x * fresh.scale[:, None, None]).flatten(1)),
        0.25 * torch.eye(4, dtype=torch.float64),
        (4, 3, 3),
    )[0]
    assert relative(out.cov, expected) < 1e-10


def test_a_layer_in_training_that_sees_constants_is_left_alone() -> None:
    """Making a propagator moved the statistics of a batch norm that no image goes through."""

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.norm = nn.Parameter(torch.rand(5, 4)), nn.BatchNorm1d(4)
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x + self.norm(self.rows).mean(0))

    for training in (True, False):
        model = Embedded().train(training)
        before = copy.deepcopy(model.state_dict())
        Propagator(model, 0.5, (4,))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Seen(nn.Module):
    """A layer with a rule that keeps what it sees."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return 2 * x


covprop.rule(Seen)(lambda layer, cov, settings: 4 * cov)


def test_a_layer_with_a_rule_keeps_nothing_of_a_check() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Seen(), nn.Linear(4, 2))
    check(model, (4,))
    assert "seen" not in vars(model[1])


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
