"""The last layer: moments, probability, estimate and certificate of single images."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from covprop import PAPER, Propagator, certify, margin
from covprop.inspect.last_layer import exhibit, last_layer, spread

SIGMA = 0.3


@pytest.fixture(scope="module")
def prop() -> Propagator:
    torch.manual_seed(0)
    return Propagator(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), SIGMA, (1, 4, 4), PAPER)


def test_a_linear_network_is_known_exactly(prop: Propagator) -> None:
    x = torch.rand(3, 1, 4, 4)
    rows = last_layer(prop, x, [0, 1, 2], [10, 11, 12], samples=4000, n=2000)
    expected = margin(prop.model, x, SIGMA, "linearized")
    own = certify(prop.model, x, sigma=SIGMA, n=2000, index=[10, 11, 12], num_classes=3)
    for k, row in enumerate(rows):
        assert row.image == 10 + k
        assert row.estimated == pytest.approx(float(expected.radius[k]), rel=1e-4)
        assert row.linearized == pytest.approx(row.estimated, rel=1e-4)
        assert row.probability == pytest.approx(
            0.5 * math.erfc(-row.estimated / SIGMA / math.sqrt(2)), rel=1e-4
        )
        assert row.sampled <= row.probability + 0.03  # it must beat every class
        assert row.certified == pytest.approx(float(own.radius[k]))
        assert row.prediction == int(own.prediction[k])
        assert row.certified < row.estimated
        assert row.draws.mean(0) == pytest.approx(row.mean, abs=0.03)


def test_each_radius_is_that_of_its_own_estimator() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    prop, x = Propagator(model, SIGMA, (1, 4, 4), PAPER), torch.rand(3, 1, 4, 4)
    rows = last_layer(prop, x, [0, 1, 2], [0, 1, 2], samples=50, n=1000)
    with torch.no_grad():
        shared, linearized = (margin(model, x, SIGMA, e).radius for e in ("shared", "linearized"))
    assert not torch.allclose(shared, linearized, rtol=0.01)
    for k, row in enumerate(rows):
        assert row.estimated == pytest.approx(float(shared[k]), rel=1e-4)
        assert row.linearized == pytest.approx(float(linearized[k]), rel=1e-4)


def test_the_share_of_samples_counts_every_class() -> None:
    """Of three logits alike each is the largest in a third, and beats one other in a half."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(3, 16))
        model[1].bias.zero_()
    prop = Propagator(model, SIGMA, (1, 4, 4), PAPER)
    (row,) = last_layer(prop, torch.zeros(1, 1, 4, 4), [0], [0], n=1000)
    assert row.sampled == pytest.approx(1 / 3, abs=0.05)


def test_images_are_spread_by_estimated_radius(prop: Propagator) -> None:
    x = torch.rand(40, 1, 4, 4)
    chosen = spread(prop, x)
    radii = margin(prop.model, x, SIGMA).radius[chosen]
    assert len(set(chosen)) == 4
    assert radii.tolist() == sorted(radii.tolist())
    assert len(spread(prop, x[:2])) == 2


def test_the_exhibit_never_mixes_up_estimated_and_certified(prop: Propagator) -> None:
    rows = last_layer(prop, torch.rand(2, 1, 4, 4), [0, 1], [0, 1], samples=200, n=1000)
    rows = [replace(row, linearized=row.linearized + 1) for row in rows]  # else as estimated
    shown = exhibit(rows, ("$a", "b_", "c"), 1000, ordered=True)
    at = shown.columns.index("certified class")
    for row, found in zip(shown.rows, rows, strict=True):
        named = dict(zip(shown.columns, row, strict=True))
        assert named["estimated radius"] == found.estimated
        assert named["linearised estimate"] == found.linearized
        assert named["certified radius"] == found.certified
        assert row[at] == (
            "abstains" if found.prediction < 0 else ("$a", "b_", "c")[found.prediction]
        )
    assert {"last_layer.csv", "last_layer_draws.csv", "last_layer.png", "last_layer.svg"} == set(
        shown.files
    )
