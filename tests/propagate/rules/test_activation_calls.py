"""Activations that come as calls: against the integral, Monte Carlo and sampled points."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracles import gaussian_expectation, random_covariance
from torch import Tensor, nn

from covprop import PAPER, Propagator, UnsupportedModel, check, ibp, margin
from covprop.propagate.registry import find

BOUND = torch.tensor([[-0.3], [0.0], [0.2], [0.9]], dtype=torch.float64)
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.abs": torch.abs,
    "abs": abs,
    "abs_": lambda x: x.abs_(),
    "clamp_min": lambda x: x.clamp_min(0.2),
    "torch.clamp_min": lambda x: torch.clamp_min(x, min=-0.3),
    "clamp_min_": lambda x: x.clamp_min_(0.2),
    "clamp_max": lambda x: x.clamp_max(0.4),
    "torch.clamp_max": lambda x: torch.clamp_max(x, 0.4),
    "clamp_": lambda x: x.clamp_(-0.3, 0.6),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "a constant first": lambda x: torch.maximum(BOUND[0], x),
    "by name": lambda x: torch.maximum(other=x, input=x.new_full((1,), 0.1)),
    "minimum": lambda x: x.minimum(torch.ones_like(x) / 2),
    "a bound for each channel": lambda x: torch.maximum(x, BOUND),
    "rrelu": F.rrelu,
    "torch.rrelu": lambda x: torch.rrelu(x, 0.1, 0.5),
    "rrelu_": lambda x: F.rrelu_(x, 0.1, 0.5),
}


class Then(nn.Module):
    """A function of four channels of noise."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix, self.function = nn.Conv1d(2, 4, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.mix(x)).flatten(1)


@pytest.mark.parametrize("name", CALLS)
def test_calls_against_the_integral(name: str) -> None:
    """The mean of every unit by adaptive quadrature, its variance bounded by that before it."""
    torch.manual_seed(0)
    model, sigma = Then(CALLS[name]).double().eval(), 0.7
    x = torch.rand(2, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        prop = Propagator(model, sigma, (2, 3), PAPER.but(r_max=0.0))
        ours, before = prop(x), model.mix(x)
        weight = model.mix.weight.flatten(1)
        std = sigma * weight.norm(dim=1)
        for channel, pixel in itertools.product(range(4), range(3)):

            def scalar(value: float, at: tuple[int, int] = (channel, pixel)) -> float:
                units = before.clone()
                units[0, at[0], at[1]] = value
                return float(model.function(units)[0, at[0], at[1]])

            at = float(before[0, channel, pixel])
            expected = gaussian_expectation(scalar, at, float(std[channel]))
            closed = "abs" in name or "rrelu" in name
            tolerance = 1e-9 if closed else 2e-2 * float(std[channel])
            found = ours.mean.view(2, 4, 3)[0, channel, pixel]
            assert float(found) == pytest.approx(expected, abs=tolerance)
    (*_, cov) = prop.covariances()
    assert cov is not None
    torch.testing.assert_close(cov, sigma**2 * weight @ weight.T)


@pytest.mark.parametrize("name", CALLS)
def test_the_oracle_and_interval_bounds_take_calls_too(name: str) -> None:
    model = nn.Sequential(Then(CALLS[name]), nn.Linear(12, 3)).double().eval()
    x = torch.rand(2, 2, 3, dtype=torch.float64)
    ours = margin(model, x, 0.4, "dense", value_range=None)
    generator = torch.Generator().manual_seed(0)
    noise = 0.4 * torch.randn(40_000, 2, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        draws = model(x[0] + noise)
    gap = draws[:, ours.top[0]] - draws[:, ours.runner_up[0]]
    assert float(ours.mean[0]) == pytest.approx(float(gap.mean()), abs=0.01)
    assert float(ours.var[0]) == pytest.approx(float(gap.var()), rel=0.05)
    box = ibp(model, x, 0.3)
    with torch.no_grad():
        inside = model(x[0] + 0.3 * noise.clamp(-1, 1))
    assert ((inside >= box.lower[0]) & (inside <= box.upper[0])).all()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.maximum(x, x.flip(1)), "larger or smaller of two noisy values"),
        (lambda x: torch.minimum(x, x), "larger or smaller of two noisy values"),
        (lambda x: torch.maximum(x[:, :1], BOUND), r"turns \[1, 3\] into \[4, 3\]"),
        (lambda x: torch.max(x, torch.zeros_like(x)), r"and a constant, torch\.maximum"),
    ],
    ids=["two", "twice", "more channels", "max"],
)
def test_maxima_without_a_rule_are_refused(
    function: Callable[[Tensor], Tensor], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        check(Then(function).double(), (2, 3))


def test_rrelu_draws_its_slopes_in_training() -> None:
    """As the layer does: the mean of many passes is that of the middle slope."""
    layer = nn.RReLU(0.2, 1.4)
    entry = find(nn.RReLU)
    assert entry is not None
    mean, std = torch.full((4000, 3), -1.0).double(), torch.full((3,), 0.5).double()
    drawn = entry.mean(layer, mean, std, PAPER)
    middle = entry.mean(layer.eval(), mean, std, PAPER)
    assert drawn.std() > 0.2
    torch.testing.assert_close(drawn.mean(0), middle[0], rtol=0.03, atol=0)
    cov = random_covariance(3)
    torch.testing.assert_close(entry.cov(layer.train(), cov, PAPER), 1.4**2 * cov)
    torch.testing.assert_close(entry.cov(layer.eval(), cov, PAPER), cov)


def test_interval_bounds_of_slopes_that_are_drawn_are_refused() -> None:
    model = Then(lambda x: F.rrelu(x, training=True))
    with pytest.raises(UnsupportedModel, match="do not know where rrelu"):
        ibp(model, torch.zeros(1, 2, 3), 0.1)
