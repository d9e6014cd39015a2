"""Interval bounds: sound on sampled points, tight where they should be, honest where unknown."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from covprop import HermiteActivation, InvalidInput, Normalize, UnsupportedModel, elementwise, rule
from covprop.estimate.ibp import GELU_VALLEYS, VALLEYS, Box, boxes, hermite_turns, ibp
from covprop.propagate import registry
from covprop.propagate.settings import PAPER
from covprop.propagate.tracing.trace import build

ACTIVATIONS = [
    *(nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(-0.5), nn.PReLU(1, -0.3), nn.GELU()),
    *(nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.ELU()),
    *(nn.ELU(-0.5), nn.CELU(), nn.SELU(), nn.Hardswish(), nn.Hardtanh(), nn.ReLU6()),
    *(nn.Softsign(), nn.Softshrink(), nn.Tanhshrink(), nn.LogSigmoid(), nn.Hardsigmoid()),
    *(HermiteActivation(4), HermiteActivation(1), HermiteActivation(7)),
]


class Everything(nn.Module):
    """Modules and functional calls, a residual sum, a difference, a concatenation, pools."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.norm = Normalize((0.4, 0.5), (0.2, 0.3))
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.act = activation
        self.branch = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.up = nn.ConvTranspose2d(8, 3, 2, stride=2)
        self.weight = nn.Parameter(torch.randn(3, 3, 1, 1))
        self.matrix = nn.Parameter(torch.randn(27, 6))
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.last = nn.Linear(6, 3)
        with torch.no_grad():
            self.bn.running_mean.normal_()
            self.bn.running_var.uniform_(0.5, 2)
            self.bn.weight.normal_()

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.bn(self.stem(self.norm(x))))
        h = h - 0.5 * self.branch(h) * self.scale + 1
        h = torch.cat([h, -F.avg_pool2d(h, 3, stride=1, padding=1)], 1)
        h = F.conv2d(F.adaptive_avg_pool2d(self.up(h), 3), self.weight, bias=None)
        h = F.pad(h, (1, 0), value=2.0)[:, :, :, 1:]
        h = F.relu(h.flatten(1) @ self.matrix)
        return self.last(h)


def inside(box: Box, value: Tensor) -> bool:
    slack = 1e-9 * (1 + box.upper.abs() + box.lower.abs())
    return bool(((value >= box.lower - slack) & (value <= box.upper + slack)).all())


class Functional(nn.Module):
    """A convolution and a linear map as calls, their biases by place and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 2, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.conv2d(x, self.conv.weight, self.conv.bias)
        return F.linear(h.flatten(1), self.last.weight, bias=self.last.bias)


def test_a_bias_moves_the_box_and_does_not_widen_it() -> None:
    model, x = Functional().double(), torch.rand(2, 1, 2, 2, dtype=torch.float64)
    box = ibp(model, x, 0.1)
    modules = nn.Sequential(model.conv, nn.Flatten(), model.last)
    torch.testing.assert_close(box, ibp(modules, x, 0.1))
    torch.testing.assert_close(box.center, model(x).detach())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_sampled_points_stay_inside_every_box(activation: nn.Module) -> None:
    model = Everything(activation).double().eval()
    plan = build(model, (2, 6, 6), PAPER)
    for seed, epsilon in enumerate((0.01, 0.3, 2.0)):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(1, 2, 6, 6, dtype=torch.float64, generator=generator)
        found = boxes(plan, Box(x - epsilon, x + epsilon))
        spread = torch.rand(200, 2, 6, 6, dtype=torch.float64, generator=generator) * 2 - 1
        corners = torch.where(torch.arange(200).view(-1, 1, 1, 1) < 100, spread.sign(), spread)

        def visit(slot: int, value: Tensor, found: list[Box | None] = found) -> None:
            box = found[slot]
            assert box is not None
            assert inside(box, value), plan.steps[slot - 1].name

        plan.run_plain(x + epsilon * corners, visit)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_the_range_of_an_activation_is_exact(activation: nn.Module) -> None:
    """Against a fine grid of the interval: neither too small nor too large."""
    model = nn.Sequential(activation, nn.Flatten()).double()
    for low, high in ((-3.0, 2.0), (-1.3, -0.2), (-0.8, -0.7), (0.1, 4.0), (-9.0, -2.0)):
        x = torch.full((1, 2), (low + high) / 2, dtype=torch.float64)
        box = ibp(model, x, (high - low) / 2)
        grid = activation(torch.linspace(low, high, 20_001, dtype=torch.float64)[:, None]).detach()
        span = float(grid.max() - grid.min())
        assert float(box.lower[0, 0]) == pytest.approx(float(grid.min()), abs=1e-6 * span + 1e-12)
        assert float(box.upper[0, 0]) == pytest.approx(float(grid.max()), abs=1e-6 * span + 1e-12)


def test_a_linear_network_has_the_smallest_box() -> None:
    """One affine map: the ends are attained at corners, ‖row‖₁ ε from the centre."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double()
    x = torch.rand(2, 2, 3, dtype=torch.float64)
    box = ibp(model, x, 0.25)
    reach = 0.25 * model[1].weight.abs().sum(1)
    torch.testing.assert_close(box.upper, model(x) + reach)
    torch.testing.assert_close(box.lower, model(x) - reach)
    assert torch.equal(ibp(model, x, 0.0).lower, ibp(model, x, 0.0).upper)


def test_valleys_are_where_the_functions_turn() -> None:
    functions = {at: f for f, at in VALLEYS.items() if not isinstance(f, type)}
    functions |= {
        at: lambda x, k=kind: F.gelu(x, approximate=k) for kind, at in GELU_VALLEYS.items()
    }
    for at, function in functions.items():
        found = minimize_scalar(
            lambda v, f=function: float(f(torch.tensor(v, dtype=torch.float64))),
            bounds=(-3.1, 0.5), method="bounded", options={"xatol": 1e-12},
        )  # fmt: skip
        assert found.x == pytest.approx(at, abs=1e-6)


def test_hermite_turns_are_the_roots_of_the_derivative() -> None:
    layer = HermiteActivation(5)
    x = torch.tensor(hermite_turns(layer.coefficients.detach().double().numpy()))
    x = x.double().requires_grad_(True)
    layer.double()(x).sum().backward()
    real = np.abs(x.grad.numpy()) < 1e-6
    assert real.sum() >= 1


def test_the_model_and_its_mode_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    box = ibp(model, torch.rand(3, 4), 0.1)
    assert model.training
    assert box.lower.shape == (3, 2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_what_is_not_known_is_bounded_by_slope_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))

    class Wave(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(2 * x)

    class Mix(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.flip(1)

    elementwise(Wave, slope=2.0)
    box = ibp(nn.Sequential(Wave(), nn.Flatten()), torch.zeros(1, 2), 0.3)
    torch.testing.assert_close(box.upper, torch.full((1, 2), 0.6))

    @rule(Mix)
    def mix(layer: nn.Module, cov: Tensor, settings: object) -> Tensor:
        return 2 * cov

    with pytest.raises(UnsupportedModel, match="know no bound for 0"):
        ibp(nn.Sequential(Mix(), nn.Flatten()), torch.zeros(1, 2), 0.3)
    with pytest.raises(InvalidInput, match="epsilon is -1"):
        ibp(nn.Flatten(), torch.zeros(1, 2), -1)


@pytest.mark.parametrize(
    ("x", "epsilon", "message"),
    [
        (np.zeros((1, 2)), 0.1, "^x is a ndarray: give a batch"),
        (torch.zeros(2), 0.1, r"^x is of shape \[2\]: give a batch"),
        (torch.zeros(1, 2), "a", "^epsilon is a: give"),
        (torch.full((1, 2), torch.nan), 0.1, "^the images hold NaN"),
        (torch.zeros(1, 2, device="meta"), 0.1, "^the images are on the meta device"),
        (torch.zeros(1, 2).to_sparse(), 0.1, "^the images are a sparse tensor"),
        (torch.zeros(1, 2), None, "^epsilon is None: give"),
    ],
)
def test_mistakes_are_one_sentence(x: Tensor, epsilon: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ibp(nn.Linear(2, 2), x, epsilon)


def test_what_the_box_cannot_be_made_of_is_one_sentence() -> None:
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.rand(3, 2)
    with pytest.raises(UnsupportedModel, match=r"a function is no nn\.Module"):
        ibp(lambda x: model(x), x, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"the input is torch\.float64 and the model"):
        ibp(model, x.double(), 0.1)
    torch.testing.assert_close(ibp(model, x, np.float32(0.5)).lower, ibp(model, x, 0.5).lower)
