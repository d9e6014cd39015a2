"""Ways of writing a network that once went wrong, each kept right."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from oracles import dense_covariance, monte_carlo_logits, relative
from torch import Tensor, nn

import covprop
from covprop import PAPER, ActNorm, Gaussian, InvalidInput, Propagator, UnsupportedModel

EXACT = PAPER.but(r_max=0.0)


class Function(nn.Module):
    """A module from a function of the image and one linear layer."""

    def __init__(self, function, features: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.function = function
        self.last = nn.Linear(features, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(x))


@pytest.mark.parametrize(
    ("function", "features"),
    [
        (lambda x: x.sum((2, 3)) / x.shape[2], 4),
        (lambda x: x[:, : x.size(1) // 2].flatten(1), 128),
        (lambda x: (x * (x.size(-1) ** 0.5)).flatten(1), 256),
        (lambda x: (x + x).flatten(1), 256),
        (lambda x: (x - x + 2 * x).flatten(1), 256),
        (lambda x: torch.add(x, other=x).flatten(1), 256),
        (lambda x: torch.add(alpha=3, other=x, input=x).flatten(1), 256),
        (lambda x: x.sub(x, alpha=-0.5).flatten(1), 256),
    ],
    ids=[
        *("divide by size", "slice by size", "scale by size"),
        *("x + x", "x - x", "other = x", "x + 3x", "x + x / 2"),
    ],
)
def test_numbers_from_sizes_and_repeated_operands(function, features: int) -> None:  # type: ignore[no-untyped-def]
    model = Function(function, features).double()
    x = torch.rand(2, 4, 8, 8, dtype=torch.float64)
    prop = Propagator(model, 0.25, (4, 8, 8), EXACT)
    eye = 0.0625 * torch.eye(4, dtype=torch.float64)
    expected = dense_covariance(model, eye, (4, 8, 8))[0]
    assert relative(prop(x).cov, expected) < 1e-10
    with prop.frozen():
        assert relative(prop(x).cov, expected) < 1e-10


@pytest.mark.parametrize("how", ["add", "multiply"])
def test_one_channel_broadcast_by_a_constant_shares_its_noise(how: str) -> None:
    class Broadcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Parameter(torch.randn(3, 1, 1))
            self.last = nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.b if how == "add" else x * self.b
            return self.last(x.flatten(1))

    model = Broadcast().double()
    out = Propagator(model, 0.5, (1, 2, 2), EXACT)(torch.zeros(1, 1, 2, 2, dtype=torch.float64))
    eye = 0.25 * torch.eye(1, dtype=torch.float64)
    assert relative(out.cov, dense_covariance(model, eye, (1, 2, 2))[0]) < 1e-10


def test_forward_that_asks_for_its_mode() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.dropout(x.flatten(1), 0.5, training=self.training))

    model, x = Dropping(), torch.rand(3, 1, 4, 4)
    prop = Propagator(model, 0.1, (1, 4, 4))
    assert not torch.equal(prop(x).mean, prop(x).mean)
    prop.eval()
    torch.testing.assert_close(prop(x).mean, model(x))
    torch.testing.assert_close(prop(x).cov, 0.01 * model.last.weight @ model.last.weight.T)


def test_nan_covariance_is_a_nan_radius() -> None:
    out = Gaussian(torch.tensor([[3.0, 1.0, 0.0]]), torch.full((3, 3), math.nan))
    assert covprop.estimated_radius(out, 0.5).isnan().all()


def test_first_training_step_of_act_norm_uses_the_scale_it_sets() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), ActNorm(4), nn.Flatten(), nn.Linear(16, 2))
    prop = Propagator(model, 0.2, (1, 4, 4))
    x = 5 * torch.rand(8, 1, 4, 4)
    first, second = prop(x), prop(x)
    torch.testing.assert_close(first.cov, second.cov)
    torch.testing.assert_close(first.mean, second.mean)


def test_fix_keeps_a_module_that_is_used_twice() -> None:
    pool = nn.MaxPool2d(2)
    mended = covprop.fix(nn.Sequential(pool, nn.Conv2d(1, 1, 1), pool), log=lambda line: None)
    assert isinstance(mended[0], nn.AvgPool2d)
    assert mended[0] is mended[2]
    dilated = covprop.fix(nn.MaxPool2d(2, stride=1, dilation=2), log=lambda line: None)
    assert isinstance(dilated, nn.MaxPool2d)  # no average pool has its windows


def test_calibrated_state_travels() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    x = torch.rand(4, 1, 4, 4)
    prop = Propagator(model, 0.2, (1, 4, 4), calibrated=True)
    with pytest.raises(InvalidInput, match=r"call prop\.calibrate"), prop.frozen():
        pass
    prop.calibrate(x, samples=4)
    twin = Propagator(model, 0.2, (1, 4, 4), calibrated=True)
    twin.load_state_dict(prop.state_dict())
    torch.testing.assert_close(twin(x).cov, prop(x).cov)
    with pytest.raises(InvalidInput, match="at least 2"):
        covprop.margin(model, x, 0.2, "calibrated", samples=1)


def test_frozen_may_nest() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    prop = Propagator(model, 0.2, (1, 2, 2))
    x = torch.zeros(1, 1, 2, 2)
    with prop.frozen():
        outer = prop(x).cov
        with prop.frozen():
            pass
        with torch.no_grad():
            model[1].weight.mul_(2)
        assert torch.equal(prop(x).cov, outer)


def test_a_copy_made_while_frozen_is_not_frozen() -> None:
    prop = Propagator(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 0.2, (1, 2, 2))
    x = torch.zeros(1, 1, 2, 2)
    with prop.frozen():
        twin = copy.deepcopy(prop)
    with torch.no_grad():
        twin.model[1].weight.mul_(2)
    torch.testing.assert_close(twin(x).cov, 4 * prop(x).cov)


@pytest.mark.parametrize("estimator", ["shared", "calibrated", "linearized", "dense", "sampled"])
def test_margin_leaves_the_model_as_it_was(estimator: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    covprop.margin(model, torch.rand(4, 1, 4, 4), 0.2, estimator)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tensor_made_in_forward_follows_the_input() -> None:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x * torch.full((2, 1, 1), 3.0)).flatten(1))

    model = Made()
    out = Propagator(model, 0.5, (2, 1, 1))(torch.rand(4, 2, 1, 1))
    draws = monte_carlo_logits(model, torch.zeros(2, 1, 1), 0.5, 50_000)
    assert relative(out.cov, torch.cov(draws.T)) < 0.05


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: Propagator(nn.Flatten(), None, (1, 2, 2)), "sigma is None"),
        (lambda: Propagator(nn.Flatten(), 0.5, 2), "input_shape is 2"),
        (lambda: Propagator(nn.Flatten(), 0.5, (3, 0, 2)), "shape of one image"),
        (
            lambda: Propagator(
                nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten()), 0.5, (1, 2, 2),
                PAPER.but(r_max={"00": 0.1}),
            ),
            "r_max names 00, which is no layer",
        ),
        (
            lambda: covprop.margin(nn.Linear(3, 2), torch.zeros(1, 4), 0.5, "sampled"),
            "Linear does not accept",
        ),
        (lambda: covprop.margin(nn.Flatten(), torch.zeros(0, 1, 2, 2), 0.5), "at least one image"),
        (lambda: covprop.HermiteActivation(0), "at least 1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(action, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=message):
        action()


def test_integer_images_are_refused_by_name() -> None:
    prop = Propagator(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 0.5, (1, 2, 2))
    with pytest.raises(InvalidInput, match=r"torch\.uint8.*scaled to \[0, 1\]"):
        prop(torch.zeros(1, 1, 2, 2, dtype=torch.uint8))


def test_faults_are_told_apart() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            return x

    with pytest.raises(UnsupportedModel, match=r"Two\.forward needs other beside the image"):
        covprop.check(Two(), (1, 2, 2))

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    @covprop.rule(Broken)
    def broken(layer: Broken, cov: Tensor, settings: covprop.Settings) -> Tensor:
        return cov.no_such_method()  # type: ignore[attr-defined]

    with pytest.raises(UnsupportedModel, match="the rule broken of 0 failed with AttributeError"):
        covprop.check(nn.Sequential(Broken(), nn.Flatten()), (1, 2, 2))

    class Rounding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.div(x, 2, rounding_mode="floor").flatten(1)

    with pytest.raises(UnsupportedModel, match="rounding is not linear"):
        covprop.check(Rounding(), (1, 2, 2))


class Optioned(nn.Module):
    """Has arguments of every kind after the image."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)

    def forward(
        self, x: Tensor, sizes: tuple = (3, 2), shift: Tensor = torch.ones(2), *rest: Tensor,  # noqa: B008
        options: dict = {"scale": 0.5}, mask: Tensor | None = None,  # noqa: B006
        rows: slice = slice(None), **more: int,
    ) -> Tensor:  # fmt: skip
        assert mask is None
        return self.last(x[rows].flatten(1) * sizes[1] * options["scale"] * len(sizes)) + shift


def test_arguments_after_the_image_stay_at_their_defaults() -> None:
    model = Optioned()
    before = set(vars(model))
    out = Propagator(model, 0.25, (1, 2, 2), EXACT)(torch.zeros(3, 1, 2, 2))
    weight = model.last.weight
    torch.testing.assert_close(out.cov, 0.25 * weight @ weight.T)
    torch.testing.assert_close(out.mean, model(torch.zeros(3, 1, 2, 2)))
    assert set(vars(model)) == before


def test_a_tuple_of_logits_is_refused_whatever_the_defaults() -> None:
    class Wrapped(Optioned):
        def forward(self, x: Tensor, sizes: tuple = (3, 2)) -> Tensor:  # type: ignore[override]
            return (self.last(x.flatten(1)),)  # type: ignore[return-value]

    with pytest.raises(UnsupportedModel, match="must return one tensor of logits"):
        covprop.check(Wrapped(), input_shape=(1, 2, 2))
