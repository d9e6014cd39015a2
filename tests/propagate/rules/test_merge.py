"""Sums, factors and concatenations, as models, against the dense Jacobian."""

from collections.abc import Callable

import pytest
import torch
from oracles import dense_covariance, random_covariance, relative
from torch import Tensor, nn

from covprop import PAPER, Propagator, UnsupportedModel, check
from covprop.propagate.tracing.trace import build

SIGMA = 0.5


class Apply(nn.Module):
    """A function of two convolutions that see different channels, so their noise is independent."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1)
        self.gain = nn.Parameter(torch.randn(3, 1, 1))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.a(x[:, :2]), self.b(x[:, 2:]))
        return y.flatten(1)


def covariance(model: nn.Module) -> tuple[Tensor, Tensor]:
    model = model.double()
    x = torch.zeros(1, 4, 1, 1, dtype=torch.float64)
    ours = Propagator(model, SIGMA, (4, 1, 1), PAPER.but(r_max=0.0))(x).cov
    eye = SIGMA**2 * torch.eye(4, dtype=torch.float64)
    return ours, dense_covariance(model, eye, (4, 1, 1))[0]


def in_place_add(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "iadd": in_place_add,
    "sub": lambda a, b: a - b,
    "torch.add alpha": lambda a, b: torch.add(a, b, alpha=3),
    "torch.add alpha first": lambda a, b: torch.add(a, alpha=3, other=b),
    "torch.sub by name": lambda a, b: torch.sub(alpha=3, other=b, input=a),
    "torch.mul by name": lambda a, b: torch.mul(input=torch.tensor(2.0), other=a) + b,
    "cat by axis": lambda a, b: torch.cat([a, b], axis=1),  # type: ignore[call-overload]
    "method add_": lambda a, b: a.add_(b),
    "constant": lambda a, b: 1 - a + 2.5,
    "scale": lambda a, b: 3 * a + b / 4,
    "negative": lambda a, b: -a - b * 2,
    "mul method": lambda a, b: a.mul(0.0) + b.div(3),
    "cat": lambda a, b: torch.cat([a, b], 1),
    "concatenate": lambda a, b: torch.concatenate((a, b), dim=1),
    "cat by name": lambda a, b: torch.cat(dim=1, tensors=[a, b]),
    "cat three": lambda a, b: torch.cat((a, b, a * 0), dim=1),
    "cat twice": lambda a, b: torch.cat([a, b, a], 1),
    "cat twice and a constant": lambda a, b: torch.cat([a, torch.ones_like(b), a, b], 1),
    "cat twice, of unequal sizes": lambda a, b: torch.cat([a, b[:, :1], a], 1),
    "cat twice and constants": lambda a, b: torch.cat(
        [torch.ones_like(b), a, a, torch.ones_like(b[:, :1])], 1
    ),
    "cat twice, flat": lambda a, b: torch.cat([x := a.flatten(1), b.flatten(1), x], 1),
    "flat cat": lambda a, b: torch.cat([a.flatten(1), b.flatten(1)], 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_merge_equals_dense(name: str) -> None:
    ours, expected = covariance(Apply(FUNCTIONS[name]))
    assert relative(ours, expected) < 1e-12


class Gain(Apply):
    def forward(self, x: Tensor) -> Tensor:
        return (self.a(x[:, :2]) * self.gain + self.b(x[:, 2:]) * self.gain[None]).flatten(1)


def test_channel_gain() -> None:
    ours, expected = covariance(Gain(lambda a, b: a))
    assert relative(ours, expected) < 1e-12


class Broadcast(nn.Module):
    """One noisy channel added to three: its noise is common to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.Conv2d(2, 1, 1), nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.one(x[:, :2]) + self.three(x[:, 2:])).flatten(1)


def test_one_channel_broadcasts() -> None:
    ours, expected = covariance(Broadcast())
    assert relative(ours, expected) < 1e-12


def test_flattened_images_of_different_pixel_counts() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 2, 1), nn.Linear(2, 8)

        def forward(self, x: Tensor) -> Tensor:
            flat = self.a(x[:, :2]).flatten(1)
            vector = self.b(x[:, 2:].mean((2, 3)))
            return torch.cat([flat + vector, vector * 0], 1)

    model = Mixed().double()
    x = torch.zeros(1, 4, 2, 2, dtype=torch.float64)
    ours = Propagator(model, SIGMA, (4, 2, 2), PAPER.but(r_max=0.0))(x).cov
    eye = SIGMA**2 * torch.eye(4, dtype=torch.float64)
    assert relative(ours, dense_covariance(model, eye, (4, 2, 2))[0]) < 1e-12


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, b: a * b, "product of two random values"),
        (lambda a, b: a / b, "dividing by a random value"),
        (lambda a, b: torch.cat([a, b], 2), "not along the channels"),
    ],
)
def test_refusals(function: Callable, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        check(Apply(function), (4, 2, 2))


@pytest.mark.parametrize("shape", [(3, 2, 2), (2, 2), (2,), (1, 3, 2, 2)])
def test_of_factors_that_differ_between_pixels_the_largest_bounds(shape: tuple[int, ...]) -> None:
    """Where they are the same for all pixels of a channel, the covariance is exact."""
    torch.manual_seed(3)
    factor = torch.randn(shape, dtype=torch.float64)
    alike = factor.sum((-1, -2) if len(shape) > 1 else -1, keepdim=True).expand(shape)
    for given, exact in ((factor, False), (alike, True)):
        model = Apply(lambda a, b, given=given: a * given).double()
        plan = build(model, (4, 2, 2), PAPER.but(r_max=0.0))
        cov = random_covariance(4, seed=1)
        ours = plan.covariances(cov, PAPER.but(r_max=0.0))[plan.output]
        blocks = dense_covariance(lambda x: model(x).view(-1, 3, 2, 2), cov, (4, 2, 2))  # noqa: B023
        assert ours is not None
        of_pixels = torch.diagonal(blocks, dim1=1, dim2=2)
        assert bool((torch.diagonal(ours) >= of_pixels - 1e-12).all())
        assert not exact or relative(ours, blocks[0]) < 1e-12
