"""Making a propagator and checking a model leave all of the model as it was."""

import copy

import pytest
import torch
from nets import Written
from oracles import dense_covariance, relative
from torch import Tensor, nn

import covprop
from covprop import PAPER, Propagator, UnsupportedModel, check

EXACT = PAPER.but(r_max=0.0)


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


def test_a_layer_with_a_rule_keeps_nothing_of_a_check() -> None:
    class Seen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = x
            return 2 * x

    covprop.rule(Seen)(lambda layer, cov, settings: 4 * cov)
    model = nn.Sequential(nn.Linear(4, 4), Seen(), nn.Linear(4, 2))
    check(model, (4,))
    assert "seen" not in vars(model[1])
