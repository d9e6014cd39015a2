"""Two units under noise: exact where the network is linear, shared Σ where it is tracked."""

import numpy as np
import pytest
import torch
from torch import nn

from covprop import PAPER, InvalidInput, Propagator
from covprop.inspect.distribution import exhibit, pairs, step_means
from covprop.inspect.layers import find_layers


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(45, 4)
    ).eval()


def test_the_first_layer_is_the_same_all_ways() -> None:
    """Before any ReLU the samples, the linearisation and (without its factor) Σ agree."""
    prop = Propagator(network(), 0.3, (2, 8, 8), PAPER.but(r_max=0.0))
    (pair,) = pairs(prop, torch.rand(2, 8, 8), find_layers(prop.plan)[:1], (1, 4), samples=20_000)
    np.testing.assert_allclose(pair.tracked, pair.linear, rtol=1e-4)
    np.testing.assert_allclose(pair.tracked_mean, pair.linear_mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.cov(pair.draws.T), pair.linear, rtol=0.1, atol=2e-3)
    np.testing.assert_allclose(pair.draws.mean(0), pair.linear_mean, atol=0.01)
    assert pair.pixel == (3, 3)
    assert pair.channels == (1, 4)


def test_means_of_steps_end_in_the_propagators_mean() -> None:
    prop = Propagator(network(), 0.3, (2, 8, 8))
    x = torch.rand(2, 2, 8, 8)
    torch.testing.assert_close(step_means(prop, x)[prop.plan.output], prop(x).mean)


def test_the_linearised_covariance_is_the_jacobians() -> None:
    model = network()
    prop = Propagator(model, 0.2, (2, 8, 8))
    image = torch.rand(2, 8, 8)
    pair = pairs(prop, image, find_layers(prop.plan), (0, 2), samples=100)[-1]
    jacobian = torch.autograd.functional.jacobian(lambda v: model(v[None])[0, [0, 2]], image)
    rows = jacobian.flatten(1).double()
    np.testing.assert_allclose(pair.linear, (0.04 * rows @ rows.T).numpy(), rtol=1e-4)
    full = prop(image[None]).cov.detach()[[0, 2]][:, [0, 2]]
    np.testing.assert_allclose(pair.tracked, full.numpy(), rtol=1e-5)


def test_the_noisiest_channels_are_chosen_and_mistakes_named() -> None:
    prop = Propagator(network(), 0.2, (2, 8, 8))
    layers = find_layers(prop.plan)
    pair = pairs(prop, torch.rand(2, 8, 8), layers[:1], samples=500)[0]
    variances = prop.model[0].weight.square().sum((1, 2, 3))
    assert set(pair.channels) == set(variances.topk(2).indices.tolist())
    shown = exhibit([pair], 7)
    assert "of image 7 at" in shown.caption
    assert [row[4] for row in shown.rows] == ["samples", "tracked", "linearised"]
    with pytest.raises(InvalidInput, match="has channels 0 to 4"):
        pairs(prop, torch.rand(2, 8, 8), layers[:1], (0, 5), samples=50)
    with pytest.raises(InvalidInput, match="two different ones"):
        pairs(prop, torch.rand(2, 8, 8), layers[:1], (1, 1), samples=50)
