"""Normalisation rules against the dense Jacobian, in eval and with the batch's own scale."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_covariance, random_covariance, relative
from torch import nn

from covprop import PAPER, ActNorm, InvalidInput, Normalize, Propagator, UnsupportedModel, check
from covprop.propagate.rules.norm import act_norm, batch_norm, batch_variance, normalize


def random_batch_norm(kind: type[nn.Module], channels: int, affine: bool = True) -> nn.Module:
    layer = kind(channels, affine=affine).double()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.2, 3.0)
    if affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return layer.eval()


@given(st.integers(1, 5), st.sampled_from([1, 2, 3]), st.booleans(), st.integers(0, 9))
def test_batch_norm_eval(channels: int, dimensions: int, affine: bool, seed: int) -> None:
    kind = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1]
    layer = random_batch_norm(kind, channels, affine)
    cov = random_covariance(channels, seed)
    expected = dense_covariance(layer, cov, (channels, *(2,) * dimensions))[0]
    assert relative(batch_norm(layer, cov, PAPER, mean=None), expected) < 1e-10


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_statistics_is_refused(training: bool) -> None:
    """In evaluation too it would scale an image by the others of its batch."""
    norm = nn.BatchNorm2d(2, track_running_stats=False)
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(8, 2)).train(training)
    with pytest.raises(UnsupportedModel, match="track_running_stats=True"):
        check(model, input_shape=(2, 2, 2))


def test_batch_norm_in_training_uses_the_batch() -> None:
    layer = random_batch_norm(nn.BatchNorm2d, 3).train()
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64) * 3
    cov = random_covariance(3)
    scale = layer.weight / torch.sqrt(x.var((0, 2, 3), correction=0) + layer.eps)
    expected = torch.diag(scale) @ cov @ torch.diag(scale)
    assert relative(batch_norm(layer, cov, PAPER, mean=x), expected) < 1e-12


def test_batch_norm_after_flatten_expands_to_features() -> None:
    layer = random_batch_norm(nn.BatchNorm1d, 12)
    model = nn.Sequential(nn.Flatten(), layer, nn.Linear(12, 2).double())
    out = Propagator(model, 0.5, (3, 2, 2))(torch.zeros(1, 3, 2, 2, dtype=torch.float64))
    (expected,) = dense_covariance(model, 0.25 * torch.eye(3, dtype=torch.float64), (3, 2, 2))
    assert relative(out.cov, expected) < 1e-10


def test_act_norm_starts_from_data_and_scales() -> None:
    layer = ActNorm(3).double()
    x = torch.randn(64, 3, 5, 5, dtype=torch.float64) * torch.tensor([1.0, 2, 5]).view(1, 3, 1, 1)
    layer.eval()(x)
    assert not layer.initialized  # evaluation never initialises
    y = layer.train()(x + 7)
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(
        y.var((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0
    )
    before = layer.shift.detach().clone()
    layer(x * 100)
    assert torch.equal(layer.shift, before)  # only the first batch
    cov = random_covariance(3)
    expected = dense_covariance(layer, cov, (3, 1, 1))[0]
    assert relative(act_norm(layer, cov, PAPER, mean=None), expected) < 1e-10


def test_act_norm_does_not_start_from_an_empty_batch() -> None:
    """Its weights became nan for good."""
    layer = ActNorm(3)
    with pytest.raises(InvalidInput, match=r"no value a channel here.*two images or more"):
        layer(torch.rand(0, 3, 4, 4))
    assert layer(torch.rand(2, 3, 4, 4)).isfinite().all()


@pytest.mark.parametrize("number", [-1, 0, 2.5, True, None])
def test_act_norm_of_no_number_of_channels_is_one_sentence(number: int) -> None:
    with pytest.raises(InvalidInput, match=f"num_features {number}: give the number of channels"):
        ActNorm(number)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_act_norm_does_not_start_from_one_value_a_channel(shape: tuple[int, ...]) -> None:
    """Its scale became 1000, and the next image came out a thousand times too large."""
    layer, x = ActNorm(3), torch.rand(shape)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(3, 2))
    for run in (layer, Propagator(model, 0.5, shape[1:])):
        with pytest.raises(InvalidInput, match=r"one value a channel here.*two images or more"):
            run(x)
    assert not layer.initialized
    torch.testing.assert_close(layer.eval()(x), x)
    layer.train()(torch.cat([x, x + 1]))
    torch.testing.assert_close(layer.log_scale.exp(), torch.full((3,), 2.0), rtol=1e-4, atol=0)


def test_loaded_act_norm_is_not_initialised_again() -> None:
    first, second = ActNorm(2), ActNorm(2)
    first(torch.randn(8, 2, 3, 3) + 4)
    second.load_state_dict(first.state_dict())
    second(torch.randn(8, 2, 3, 3) * 9)
    torch.testing.assert_close(first.shift, second.shift)


def test_act_norm_put_back_to_its_beginning_starts_from_data_again() -> None:
    layer, x = ActNorm(3), torch.randn(20, 3, 2, 2)
    beginning = {name: value.clone() for name, value in layer.state_dict().items()}
    for _ in range(2):
        layer(x)
    nn.Sequential(layer).load_state_dict({f"0.{name}": v for name, v in beginning.items()})
    assert layer.pending
    assert relative(layer(5 * x + 2).var((0, 2, 3), correction=0), torch.ones(3)) < 1e-3
    assert not layer.pending


@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_scales_the_noise(channels: int) -> None:
    layer = Normalize([0.4] * channels, [0.2 + 0.1 * c for c in range(channels)]).double()
    cov = random_covariance(channels)
    expected = dense_covariance(layer, cov, (channels, 2, 2))[0]
    assert relative(normalize(layer, cov, PAPER), expected) < 1e-10


@pytest.mark.parametrize(("stds", "channels"), [(1, 3), (3, 1)])
def test_normalize_that_broadcasts(stds: int, channels: int) -> None:
    """One std for all channels; one channel that becomes several with the same noise."""
    layer = Normalize([0.4] * stds, [0.2 + 0.1 * c for c in range(stds)]).double()
    cov = random_covariance(channels)
    model = nn.Sequential(layer, nn.Flatten()).double()
    noise = torch.linalg.cholesky(cov) @ torch.randn(100_000, channels, 1, dtype=torch.float64)
    sampled = model(noise[..., None]).T.cov()
    assert relative(normalize(layer, cov, PAPER), sampled) < 0.03
    check(model, (channels, 2, 2))


def test_batch_norm_in_training_wants_more_than_one_value() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))
    prop, x = Propagator(model, 0.25, (3, 4, 4)), torch.rand(2, 3, 4, 4)
    with pytest.raises(InvalidInput, match=r"one value a channel.*two images or more, or .*eval"):
        prop(x[:1])
    assert prop(x).cov.isfinite().all()
    assert prop.eval()(x[:1]).cov.isfinite().all()


@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5, 2)])
def test_batch_variance_equals_torchs(shape: tuple[int, ...]) -> None:
    x = (torch.randn(shape, dtype=torch.float64) + 5).requires_grad_()
    expected = x.var([0, *range(2, x.ndim)], correction=0)
    found = batch_variance(x)
    assert torch.allclose(found, expected, rtol=1e-12, atol=0)
    weights = torch.randn(3, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(v @ weights, x)[0] for v in (found, expected))
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-13)
    assert torch.autograd.gradcheck(batch_variance, (x,))
    assert torch.autograd.gradgradcheck(batch_variance, (x,))


def test_batch_variance_far_from_zero_in_half_precision() -> None:
    x = (100 + torch.randn(16, 3, 8, 8)).bfloat16().requires_grad_()
    expected = x.detach().double().var([0, 2, 3], correction=0)
    found = batch_variance(x)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert gradient.dtype == torch.bfloat16
    wide = x.detach().double()
    centred = wide - wide.mean((0, 2, 3), keepdim=True)
    truth = 2 * centred / (16 * 64)
    assert float((gradient.double() - truth).norm() / truth.norm()) < 5e-3
