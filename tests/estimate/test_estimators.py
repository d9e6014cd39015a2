"""Five estimators of one margin, against Monte Carlo, dense algebra and each other."""

import pytest
import torch
from oracles import dense_covariance, monte_carlo_logits, relative
from torch import Tensor, nn

from covprop import PAPER, CovpropError, HermiteActivation, InvalidInput, Margin, Propagator, margin
from covprop.estimate import ESTIMATORS


class Residual(nn.Module):
    """Small, with a residual branch, so that branches are correlated."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, stride=2)
        self.branch = nn.Conv2d(4, 4, 3, padding=1)
        self.act = activation or nn.ReLU()
        self.last = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = x + self.branch(self.act(x))
        return self.last(self.act(x).view(x.size(0), -1))


def images(count: int = 3) -> Tensor:
    return torch.rand(count, 1, 7, 7, generator=torch.Generator().manual_seed(1))


def scaled(model: nn.Module) -> nn.Module:
    """Weights large enough that the nonlinearity matters within the noise."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model.eval()


@pytest.mark.parametrize("estimator", ["shared", "linearized", "dense"])
def test_small_logits_in_half_precision(estimator: str) -> None:
    """Their variance is below the smallest number of float16; a radius has not the logits' size."""
    model, x = scaled(Residual()), images(2)
    model.last.requires_grad_(False).weight.mul_(1e-4)
    model.last.bias.mul_(1e-4)
    whole = margin(model, x, 0.3, estimator).radius
    half = margin(model.half(), x.half(), 0.3, estimator).radius
    torch.testing.assert_close(half, whole, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_all_accept_the_same_model_and_answer_in_the_same_form(estimator: str) -> None:
    model, x = scaled(Residual()), images()
    result = margin(model, x, sigma=0.3, estimator=estimator)
    assert isinstance(result, Margin)
    assert all(field.shape == (3,) for field in result)
    torch.testing.assert_close(result.radius, 0.3 * result.mean / result.var.sqrt())
    assert (result.top != result.runner_up).all()
    assert (result.mean >= 0).all()
    calm = margin(model, x, sigma=1e-4, estimator=estimator)  # hardly any noise: the clean classes
    assert calm.top.tolist() == model(x).argmax(1).tolist()


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.2), nn.Tanh()], ids=str)
def test_dense_agrees_with_monte_carlo(activation: nn.Module) -> None:
    """What is left between the two is that pre-activations are not quite Gaussian."""
    model, x = scaled(Residual(activation)), images(2)
    ours = margin(model, x, sigma=0.3, estimator="dense")
    for k in range(2):
        draws = monte_carlo_logits(model, x[k], 0.3, 40_000)
        gap = draws[:, ours.top[k]] - draws[:, ours.runner_up[k]]
        assert ours.mean[k].item() == pytest.approx(gap.mean().item(), abs=0.1 * gap.std().item())
        assert ours.var[k].item() == pytest.approx(gap.var().item(), rel=0.15)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.LeakyReLU(0.2), nn.GELU(), nn.Tanh(), nn.SiLU(), HermiteActivation(3)],
    ids=lambda a: type(a).__name__,
)
def test_one_hidden_layer_is_exact_for_dense(activation: nn.Module) -> None:
    """With one hidden layer pre-activations are Gaussian: mean and variance within error bars."""
    model = scaled(nn.Sequential(nn.Flatten(), nn.Linear(49, 20), activation, nn.Linear(20, 3)))
    x = images(1)
    ours = margin(model, x, sigma=0.5, estimator="dense")
    draws = monte_carlo_logits(model, x[0], 0.5, 400_000)
    gap = draws[:, ours.top[0]] - draws[:, ours.runner_up[0]]
    n = len(gap)
    kurtosis = ((gap - gap.mean()) ** 4).mean() / gap.var() ** 2
    mean_error = gap.std() / n**0.5
    var_error = gap.var() * ((kurtosis - 1) / n) ** 0.5
    assert abs(ours.mean[0] - gap.mean()) < 5 * mean_error
    assert abs(ours.var[0] - gap.var()) < 5 * var_error


@pytest.mark.parametrize("estimator", ["shared", "linearized", "dense"])
def test_linear_networks_are_exact(estimator: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2, stride=2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    ).double()
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    options = {"settings": PAPER.but(r_max=0.0)} if estimator == "shared" else {}
    ours = margin(model, x, sigma=0.4, estimator=estimator, **options)
    (cov,) = dense_covariance(model, 0.16 * torch.eye(1, dtype=torch.float64), (1, 8, 8))
    a, b = ours.top, ours.runner_up
    expected = cov[a, a] + cov[b, b] - 2 * cov[a, b]
    assert relative(ours.var, expected) < 1e-8


def test_linearized_is_differentiable_for_training() -> None:
    model, x = Residual().double(), images().double()
    names, values = zip(*model.named_parameters(), strict=True)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return margin(self.model, x, 0.25, estimator="linearized", create_graph=True).radius

    wrapped = Wrapped()
    loss = wrapped(x).sum()
    gradients = torch.autograd.grad(loss, values, allow_unused=True)
    step, direction = 1e-6, [torch.randn_like(v) for v in values]
    ahead = {f"model.{n}": v + step * d for n, v, d in zip(names, values, direction, strict=True)}
    back = {f"model.{n}": v - step * d for n, v, d in zip(names, values, direction, strict=True)}
    difference = (
        torch.func.functional_call(wrapped, ahead, (x,)).sum()
        - torch.func.functional_call(wrapped, back, (x,)).sum()
    ) / (2 * step)
    pairs = zip(gradients, direction, strict=True)
    expected = sum((g * d).sum() for g, d in pairs if g is not None)
    assert difference.item() == pytest.approx(expected.item(), rel=1e-4)


def test_linearized_leaves_no_graph_and_no_grad_behind() -> None:
    model, x = Residual(), images()
    result = margin(model, x, sigma=0.3, estimator="linearized")
    assert not result.radius.requires_grad
    assert not x.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    noisy = margin(model, x, sigma=0.3, estimator="linearized", samples=8)
    assert torch.isfinite(noisy.radius).all()


def test_calibrated_mean_is_nearer_to_monte_carlo_than_shared() -> None:
    model, x = scaled(Residual()), images(8)
    truth = margin(model, x, sigma=0.6, estimator="sampled", samples=4000)
    shared = margin(model, x, sigma=0.6, estimator="shared")
    corrected = margin(model, x, sigma=0.6, estimator="calibrated", samples=32)
    assert (corrected.mean - truth.mean).norm() < (shared.mean - truth.mean).norm()
    assert (corrected.var.log() - truth.var.log()).norm() < (
        shared.var.log() - truth.var.log()
    ).norm()


def test_sampled_is_seeded_by_a_generator() -> None:
    model, x = Residual(), images()
    runs = [
        margin(model, x, 0.3, "sampled", samples=50, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    ]
    assert torch.equal(runs[0].var, runs[1].var)


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1), x


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_a_cast_in_forward_changes_no_estimate(kind: torch.dtype) -> None:
    class Cast(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).to(kind)

    layers = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(75, 4)
    x = images()
    for estimator in ("shared", "linearized", "dense"):
        plain, cast = (margin(m(*layers), x, 0.3, estimator) for m in (nn.Sequential, Cast))
        torch.testing.assert_close(cast.radius.float(), plain.radius, rtol=0.02, atol=1e-3)


def test_bad_input_is_one_sentence() -> None:
    model, x = Residual(), images()
    with pytest.raises(InvalidInput, match="choose one of shared, calibrated"):
        margin(model, x, 0.3, estimator="guess")
    with pytest.raises(InvalidInput, match="sigma is"):
        margin(model, x, -1.0)
    with pytest.raises(InvalidInput, match=r"images must lie in \[0, 1\], .* span \[0, 2\]"):
        margin(model, torch.linspace(0, 2, 49).view(1, 1, 7, 7), 0.3)
    with pytest.raises(InvalidInput, match="the images hold NaN"):
        margin(model, torch.full((1, 1, 7, 7), torch.nan), 0.3)
    with pytest.raises(InvalidInput, match="the images are a sparse tensor"):
        margin(model, x.to_sparse(), 0.3)
    beyond = margin(model, x + 1, 0.3, value_range=None)
    assert beyond.top.tolist() == model(x + 1).argmax(1).tolist()
    with pytest.raises(InvalidInput, match="at least 2"):
        margin(model, x, 0.3, "sampled", samples=1)
    with pytest.raises(InvalidInput, match=r"generator is 3: give a torch\.Generator"):
        margin(model, x, 0.3, "sampled", generator=3)
    big = nn.Sequential(nn.Flatten(), nn.Linear(30_000, 2))
    with pytest.raises(InvalidInput, match="meant for small networks"):
        margin(big, torch.zeros(1, 3, 100, 100), 0.3, "dense")
    one = nn.Sequential(nn.Flatten(), nn.Linear(49, 1))
    for estimator in ESTIMATORS:
        with pytest.raises(InvalidInput, match="at least two classes"):
            margin(one, x, 0.3, estimator)
        with pytest.raises(InvalidInput, match=r"x is torch\.uint8: give float images"):
            margin(model, x.byte(), 0.3, estimator)
        with pytest.raises(CovpropError, match="one tensor of logits"):
            margin(TwoOutputs(), x, 0.3, estimator)
    norm = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(49, 2))
    for estimator in ("linearized", "sampled"):
        with pytest.raises(InvalidInput, match=r"does not accept .* expected 4D input"):
            margin(norm, x[0], 0.3, estimator)


@pytest.mark.parametrize("estimator", ["shared", "linearized", "sampled"])
def test_a_network_that_fails_without_a_word_is_named_with_the_error(estimator: str) -> None:
    class Wordless(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    with pytest.raises(CovpropError, match="ValueError"):
        margin(nn.Sequential(Wordless()), images(), 0.5, estimator)


def test_propagated_covariance_bounds_the_sampled_one_for_a_trained_like_network() -> None:
    model, x = scaled(Residual()), images(1)
    cov = Propagator(model, 0.3, (1, 7, 7))(x).cov.detach()
    draws = monte_carlo_logits(model, x[0], 0.3, 20_000)
    assert torch.diagonal(cov).sum() > draws.var(0).sum()


def test_a_model_of_two_inputs_and_a_pass_of_nothing_are_one_sentence() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    x = torch.rand(1, 1, 2, 2)
    for estimator in ("linearized", "sampled"):
        with pytest.raises(InvalidInput, match=r"^Two does not accept .* missing 1 required"):
            margin(Two(), x, 0.5, estimator)
    with pytest.raises(InvalidInput, match=r"^chunk is 0"):
        margin(nn.Flatten(), x, 0.5, "sampled", chunk=0)
    with pytest.raises(InvalidInput, match=r"^chunk is 2.5: .* whole number"):
        margin(nn.Flatten(), x, 0.5, "sampled", chunk=2.5)
    with pytest.raises(InvalidInput, match=r"torch\.as_tensor\(x\), not Flatten and ndarray"):
        margin(nn.Flatten(), x.numpy(), 0.5)
