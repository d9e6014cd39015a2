"""Constants may be laid out for every image of a batch; what differs between images is refused."""

import copy
from collections.abc import Callable

import pytest
import torch
from oracles import dense_covariance, relative
from torch import Tensor, nn

from covprop import PAPER, Propagator, UnsupportedModel, check

EXACT = PAPER.but(r_max=0.0)


class NormalizeLayer(nn.Module):
    """The layer in front of the networks of randomized smoothing's reference code."""

    def __init__(self) -> None:
        super().__init__()
        self.means = torch.tensor([0.4, 0.5, 0.6])
        self.sds = torch.tensor([0.2, 0.3, 0.5])

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        means = self.means.repeat((batch, height, width, 1)).permute(0, 3, 1, 2)
        sds = self.sds.repeat((batch, height, width, 1)).permute(0, 3, 1, 2)
        return (x - means) / sds


class Tempered(nn.Module):
    """Calibrated logits, as by temperature scaling."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(NormalizeLayer(), nn.Flatten(), nn.Linear(12, 3))
        self.temperature = nn.Parameter(1.5 * torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        return logits / self.temperature.unsqueeze(1).expand(logits.size(0), logits.size(1))


def test_constants_laid_out_for_a_batch_are_constants() -> None:
    model = Tempered().double().eval()
    prop = Propagator(model, 0.5, (3, 2, 2), EXACT)
    x = torch.rand(4, 3, 2, 2, dtype=torch.float64)
    eye = 0.25 * torch.eye(3, dtype=torch.float64)
    for twin in (prop, copy.deepcopy(prop)):
        expected = dense_covariance(twin.model, eye, (3, 2, 2))[0]
        assert relative(twin(x).cov, expected) < 1e-6  # means and deviations are float32
        torch.testing.assert_close(twin(x).mean, model(x))
        with twin.frozen():
            assert relative(twin(x).cov, expected) < 1e-6
            torch.testing.assert_close(twin(x).mean, model(x))
    prop(x).cov.sum().backward()
    assert model.temperature.grad is not None


def test_in_training_with_the_statistics_of_a_batch_they_are_too() -> None:
    model = nn.Sequential(NormalizeLayer(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3))
    x = torch.rand(6, 3, 2, 2)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    out = Propagator(model, 0.5, (3, 2, 2), EXACT)(x)
    torch.testing.assert_close(out.mean, model(x))
    assert out.cov.shape == (3, 3)
    assert not torch.equal(out.cov, Propagator(plain, 0.5, (3, 2, 2), EXACT)(x).cov)


class Drawn(nn.Module):
    """Drops its branch for some images, in `way`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.last = way, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "timm":
            keep = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.9)
        if self.way == "torchvision":
            keep = torch.empty([x.shape[0], 1], dtype=x.dtype, device=x.device).bernoulli_(0.9)
        if self.way == "in place":
            keep = x.new_ones(x.shape[0], 1)
            keep.bernoulli_(0.9)
        if self.way == "list":
            keep = torch.rand([x.shape[0], 1])
        if self.way == "like":
            keep = 1 + torch.randn_like(x)
        return self.last(x * keep / 0.9 if self.training else x)


@pytest.mark.parametrize("way", ["timm", "torchvision", "in place", "list", "like"])
def test_a_factor_that_is_drawn_is_refused_in_training_only(way: str) -> None:
    model = Drawn(way)
    for _ in range(20):  # two draws may agree
        with pytest.raises(UnsupportedModel, match=r"numbers drawn at random.*call model\.eval"):
            check(model, (4,))
    model.eval()
    check(model, (4,))
    x = torch.rand(3, 4)
    torch.testing.assert_close(Propagator(model, 0.5, (4,))(x).mean, model(x))


def by_deviation(weight: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(weight, 1, keepdim=True)
    return (weight - mean) / deviation


def by_largest(weight: Tensor) -> Tensor:
    return weight / weight.max(0).values


def by_singular_value(weight: Tensor) -> Tensor:
    return weight / torch.linalg.svd(weight)[1][0]


@pytest.mark.parametrize("way", [by_deviation, by_largest, by_singular_value])
def test_functions_with_several_results_work_on_constants(way: Callable[[Tensor], Tensor]) -> None:
    """They ended in torch's "Boolean value of Tensor ... is ambiguous"."""

    class Standardised(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, way(self.weight), self.bias)

    model = Standardised(4, 3).double()
    prop = Propagator(model, 0.5, (4,), EXACT)
    x = torch.rand(2, 4, dtype=torch.float64)
    torch.testing.assert_close(prop(x).mean, model(x))
    weight = way(model.weight)
    torch.testing.assert_close(prop(x).cov, 0.25 * weight @ weight.T)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_constants_are_computed_in_the_type_of_the_weights(kind: torch.dtype) -> None:
    """Σ of a network in bfloat16 is float32, which its layers do not take."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.inner(x) * self.inner(torch.ones_like(x)))

    torch.manual_seed(0)
    model = Shared().to(kind)
    prop = Propagator(model, 0.5, (4,), EXACT)
    x = torch.rand(3, 4, dtype=kind)
    exact = copy.deepcopy(model).double()
    expected = dense_covariance(exact, 0.25 * torch.eye(4, dtype=torch.float64), (4,))[0]
    for twin in (prop, torch.compile(prop, backend="eager")):
        out = twin(x)
        torch.testing.assert_close(out.mean, model(x))
        assert relative(out.cov.double(), expected) < (0.02 if kind is torch.bfloat16 else 1e-6)


LIKE = {
    "to": lambda c, x: c.expand(x.shape).to(x),
    "zeros": lambda c, x: torch.zeros(x.shape).to(x) + c,
    "type": lambda c, x: c.type_as(x),
    "expand": lambda c, x: c.expand_as(x),
    "reshape": lambda c, x: c.repeat(1, x.shape[0]).reshape_as(x),
}


@pytest.mark.parametrize("like", LIKE.values(), ids=LIKE.keys())
def test_a_constant_made_like_a_noisy_value_has_no_noise(
    like: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Of c.to(x), in the shape of a batch, noise was that of x, and x - c.to(x) had twice its own;
    the others were refused."""

    class Shifted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            row = self.weight[:1]
            return super().forward((x - like(row, x)) * like(row, x))

    model = Shifted(4, 3).double()
    prop = Propagator(model, 0.5, (4,), EXACT)
    x = torch.rand(2, 4, dtype=torch.float64)
    expected = dense_covariance(model, 0.25 * torch.eye(4, dtype=torch.float64), (4,))[0]
    assert relative(prop(x).cov, expected) < 1e-10
    torch.testing.assert_close(prop(x).mean, model(x))
