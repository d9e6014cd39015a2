import math

import pytest
import torch
from torch import nn

from covprop.errors import InvalidInput
from covprop.estimate import margin
from covprop.estimate.truth import Truth, _compare, estimator_table, largest, measured_variance


def linear_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))


def test_on_a_linear_network_every_estimator_is_right() -> None:
    """Exact but for the Monte Carlo error of the truth, √(2/n) = 1.8 %, and of samples."""
    rows = estimator_table(linear_model(), torch.rand(16, 3, 2, 2), sigma=0.3, samples=6000)
    for row in rows:
        assert row.median == pytest.approx(1.0, abs=0.45 if row.estimator == "calibrated" else 0.06)
        assert row.low <= row.median <= row.high
    assert {row.estimator: row.images for row in rows}["dense"] == 8
    correlation = {row.estimator: row.correlation for row in rows}
    assert correlation["linearized"] > 0.95


def test_measured_variance_of_a_linear_map() -> None:
    model, x = linear_model(), torch.rand(5, 3, 2, 2)
    answer = margin(model, x, 0.3, "linearized")
    (found,) = measured_variance(model, x, 0.3, 20_000, [answer])
    weight = model[1].weight.double()
    exact = 0.09 * (weight[answer.top] - weight[answer.runner_up]).square().sum(1)
    assert torch.allclose(found, exact, rtol=0.05)


def test_quantiles_and_correlation_of_known_ratios() -> None:
    measured = torch.logspace(0, 2, 11, dtype=torch.float64)
    ratio = torch.arange(1.0, 12.0, dtype=torch.float64)
    found = _compare("shared", ratio * measured, measured)
    assert (found.low, found.median, found.high) == pytest.approx((2.0, 6.0, 10.0))
    logs = torch.stack([(ratio * measured).log(), measured.log()])
    assert found.correlation == pytest.approx(torch.corrcoef(logs)[0, 1].item())
    assert found.images == 11


def test_a_large_network_is_spared_the_dense_estimator() -> None:
    """Refused before it would allocate: 100,352 units would take 80 GB."""
    model = nn.Sequential(
        nn.Conv2d(1, 128, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 3)
    )
    rows = {r.estimator: r for r in estimator_table(model, torch.rand(2, 1, 28, 28), 0.25, 20)}
    assert largest(model, (1, 28, 28)) == 28 * 28 * 129
    assert "dense estimator" in rows["dense"].note
    assert math.isnan(rows["dense"].median)
    assert rows["sampled"].images == 2


def test_a_network_that_cannot_be_propagated_is_asked_of_the_others() -> None:
    """The whole table was refused for it."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    rows = {r.estimator: r for r in estimator_table(model, torch.rand(3, 1, 8, 8), 0.25, 2000)}
    for name in ("shared", "calibrated", "dense"):
        assert rows[name].images == 0
        assert rows[name].note.startswith("Sequential has one operation that covprop cannot")
        assert "1: nn.MaxPool2d" in rows[name].note
        assert "\n" not in rows[name].note
    for name in ("linearized", "sampled"):
        assert rows[name].images == 3
        assert rows[name].note == ""
        assert 0.2 < rows[name].median < 5


def test_mode_and_random_state_are_left_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 4)).train()
    state = torch.get_rng_state()
    first = estimator_table(model, torch.ones(3, 3, 2, 2), 0.3, 50)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert first == estimator_table(model, torch.ones(3, 3, 2, 2), 0.3, 50)


def test_images_without_variance_are_named() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    nn.init.zeros_(model[1].weight)
    rows = estimator_table(model, torch.rand(3, 3, 2, 2), 0.3, 10)
    assert all(row.images == 0 and "3 images" in row.note for row in rows)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        estimator_table(linear_model(), torch.rand(1, 3, 2, 2), 0.3, 1)
    assert Truth("x").images == 0
