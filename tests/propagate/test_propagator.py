"""The propagator on whole networks: styles of code, torch's own machinery, Monte Carlo."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import net
from oracles import dense_covariance, is_psd, monte_carlo_logits, relative
from torch import Tensor, nn

import covprop
from covprop import PAPER, ActNorm, InvalidInput, Propagator, UnsupportedModel

EXACT = PAPER.but(r_max=0.0)


def test_shapes_and_symmetry_and_model_untouched() -> None:
    model, x = net()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = set(vars(model))
    prop = Propagator(model, 0.25, (2, 8, 8))
    out = prop.eval()(x)
    assert out.mean.shape == (5, 4)
    assert out.cov.shape == (4, 4)
    assert is_psd(out.cov.detach().double(), 1e-6)
    assert relative(out.cov, out.cov.T) < 1e-5
    assert set(vars(model)) == attributes
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_hardly_any_noise_is_the_network_itself() -> None:
    model, x = net()
    model.double().eval()
    out = Propagator(model, 1e-6, (2, 8, 8))(x.double())
    torch.testing.assert_close(out.mean, model(x.double()), atol=1e-6, rtol=0)


def test_linear_network_without_overlap_is_exact() -> None:
    model = nn.Sequential(
        covprop.Normalize([0.1, 0.2], [0.5, 0.25]),
        nn.Conv2d(2, 5, 2, stride=2), nn.Conv2d(5, 4, 1), nn.AvgPool2d(2), nn.BatchNorm2d(4),
        nn.Flatten(), nn.Linear(16, 6), nn.Linear(6, 3),
    ).double().eval()  # fmt: skip
    sigma = 0.3
    out = Propagator(model, sigma, (2, 8, 8), EXACT)(torch.rand(2, 2, 8, 8, dtype=torch.float64))
    eye = sigma**2 * torch.eye(2, dtype=torch.float64)
    (expected,) = dense_covariance(model, eye, (2, 8, 8))
    assert relative(out.cov, expected) < 1e-8


def test_network_against_monte_carlo() -> None:
    """One hidden layer of independent windows: mean exact, covariance an upper bound."""
    model = nn.Sequential(nn.Conv2d(1, 8, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    x = torch.rand(1, 1, 4, 4)
    out = Propagator(model, 0.5, (1, 4, 4), EXACT)(x)
    draws = monte_carlo_logits(model, x[0], 0.5, 200_000)
    error = draws.std(0) / len(draws) ** 0.5
    assert ((out.mean[0] - draws.mean(0)).abs() < 5 * error).all()
    sampled = torch.cov(draws.T).double()
    assert is_psd(out.cov.detach().double() - sampled, 1e-3)


@pytest.mark.parametrize("functional", [False, True])
def test_in_place_relu_changes_what_is_read_later(functional: bool) -> None:
    class Overwrite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = nn.Conv2d(1, 2, 1), nn.ReLU(inplace=True)
            self.last = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            y = F.relu(x, inplace=True) if functional else self.act(x)  # x now holds relu(x) too
            return self.last((x + y).flatten(1))

    model = Overwrite().double()
    x = torch.randn(6, 1, 1, 1, dtype=torch.float64)
    out = Propagator(model, 1e-6, (1, 1, 1))(x)
    torch.testing.assert_close(out.mean, model(x), atol=1e-6, rtol=0)


def test_a_view_changed_in_place_is_refused_where_the_value_is_read_again() -> None:
    class View(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.conv, self.last, self.again = nn.Conv2d(1, 2, 1), nn.Linear(8, 2), again

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            y = x.flatten(1)
            y.relu_()  # x now holds relu(x) too
            return self.last(y + x.flatten(1) if self.again else y)

    with pytest.raises(UnsupportedModel, match=r"relu_: .* it changes, in place, a view"):
        Propagator(View(again=True), 0.25, (1, 2, 2))
    model = View(again=False).double()
    x = torch.randn(6, 1, 2, 2, dtype=torch.float64)
    out = Propagator(model, 1e-6, (1, 2, 2))(x)
    torch.testing.assert_close(out.mean, model(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", [None, nn.Hardswish, nn.GELU])
def test_compiles_without_a_break_forward_and_backward(
    training: bool, activation: type[nn.Module] | None
) -> None:
    model, x = net()
    if activation is not None:
        model = nn.Sequential(model, activation(), nn.Linear(4, 3))
    prop = Propagator(model, 0.25, (2, 8, 8)).train(training)
    twin = copy.deepcopy(prop)
    compiled = torch.compile(prop, fullgraph=True, backend="aot_eager")
    for module in (compiled, twin):
        out = module(x)
        (out.mean.square().sum() + out.cov.trace()).backward()
    for ours, expected in zip(prop.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_deepcopy_refers_to_its_own_modules() -> None:
    model, x = net()
    prop = Propagator(model, 0.25, (2, 8, 8)).eval()
    twin = copy.deepcopy(prop)
    expected = prop(x)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2.0)
    assert torch.equal(prop(x).mean, expected.mean)
    assert not torch.allclose(twin(x).mean, expected.mean)


def test_functional_call_with_grad() -> None:
    model, x = net()
    prop = Propagator(model, 0.25, (2, 8, 8)).eval()
    weights = {name: value.detach().clone() for name, value in prop.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        out = torch.func.functional_call(prop, values, (x,))
        return out.mean.square().sum() + out.cov.trace()

    ours = torch.func.grad(loss)(weights)
    out = prop(x)
    (out.mean.square().sum() + out.cov.trace()).backward()
    for name, parameter in prop.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_autocast_keeps_the_covariance_in_float32() -> None:
    model, x = net(norm=False)
    prop = Propagator(model, 0.25, (2, 8, 8)).eval()
    expected = prop(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = prop(x)
    assert out.mean.dtype == torch.bfloat16
    assert out.cov.dtype == torch.float32
    assert torch.equal(out.cov, expected.cov)
    torch.testing.assert_close(out.mean.float(), expected.mean, atol=0.05, rtol=0.05)


def test_float64() -> None:
    model, x = net()
    out = Propagator(model.double(), 0.25, (2, 8, 8))(x.double())
    assert out.mean.dtype == out.cov.dtype == torch.float64


def test_data_parallel() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, x = net()
        prop = Propagator(model, 0.25, (2, 8, 8))
        twin = copy.deepcopy(prop)
        for module in (nn.parallel.DistributedDataParallel(prop), twin):
            out = module(x)
            (out.mean.square().sum() + out.cov.trace()).backward()
        for ours, expected in zip(prop.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad)
    finally:
        dist.destroy_process_group()


def test_frozen_reuses_one_covariance() -> None:
    model, x = net()
    prop = Propagator(model, 0.25, (2, 8, 8)).eval()
    expected = prop(x)
    with prop.frozen():
        out = prop(x)
        assert not out.cov.requires_grad
        with torch.no_grad():
            model.last.weight.mul_(3.0)
        assert torch.equal(prop(x).cov, out.cov)  # not computed again
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.cov, expected.cov)
    assert not torch.allclose(prop(x).cov, out.cov)


def test_gradients_equal_finite_differences() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    ).double()
    prop = Propagator(model, 0.4, (1, 3, 3))
    x = torch.rand(4, 1, 3, 3, dtype=torch.float64)
    names, values = zip(*prop.named_parameters(), strict=True)

    def run(*parameters: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.func.functional_call(prop, dict(zip(names, parameters, strict=True)), (x,))
        return out.mean, out.cov

    assert torch.autograd.gradcheck(run, tuple(v.detach().requires_grad_() for v in values))


def test_act_norm_model_trains_through_the_propagator() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), ActNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    prop = Propagator(model, 0.2, (1, 4, 4))
    out = prop(torch.rand(8, 1, 4, 4))
    assert model[1].initialized
    out.cov.trace().backward()
    assert model[1].log_scale.grad is not None


def test_settings_by_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="settings is 'PAPER': give"):
        Propagator(net(), 0.25, (3, 8, 8), settings="PAPER")  # type: ignore[arg-type]


def test_bad_input_is_one_sentence() -> None:
    model, _ = net()
    prop = Propagator(model, 0.25, (2, 8, 8))
    with pytest.raises(InvalidInput, match=r"built for \[batch, 2, 8, 8\]"):
        prop(torch.zeros(1, 2, 9, 8))
    with pytest.raises(InvalidInput, match="is on meta and the model on cpu"):
        prop(torch.zeros(1, 2, 8, 8, device="meta"))
    with pytest.raises(UnsupportedModel, match="does not accept an input of shape"):
        Propagator(model, 0.25, (3, 8, 8))
    with pytest.raises(UnsupportedModel, match=r"logits \[batch, classes\]"):
        Propagator(nn.Conv2d(1, 2, 1), 0.25, (1, 8, 8))
