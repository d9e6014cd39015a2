"""The toy: what its caption says is so."""

import numpy as np
import pytest

from covprop.inspect import toy


@pytest.fixture(scope="module")
def measured() -> toy.Toy:
    return toy.measure()


def test_exact_moments_are_those_of_samples(measured: toy.Toy) -> None:
    for stage in measured.stages:
        n = len(stage.draws)
        error = 5 * np.sqrt(np.diag(stage.exact) / n)
        assert (np.abs(stage.draws.mean(0) - stage.exact_mean) < error).all()
        np.testing.assert_allclose(
            np.cov(stage.draws.T), stage.exact, atol=0.08 * stage.exact.max()
        )


def test_tracked_is_exact_up_to_the_relu_and_larger_after_it(measured: toy.Toy) -> None:
    for stage in measured.stages[:2]:
        np.testing.assert_allclose(stage.tracked, stage.exact, rtol=1e-12)
    for stage in measured.stages[2:]:
        np.testing.assert_allclose(stage.tracked_mean, stage.exact_mean, rtol=1e-9)
    assert (np.diag(measured.stages[2].tracked) > np.diag(measured.stages[2].exact)).all()
    assert measured.tracked_ratio > 1


def test_nothing_leaves_the_boxes(measured: toy.Toy) -> None:
    start = measured.stages[0]
    inside = ((start.draws >= start.box_lower) & (start.draws <= start.box_upper)).all(1)
    assert 0.85 < inside.mean() < 0.95
    for stage in measured.stages:
        draws = stage.draws[inside]
        assert (draws >= stage.box_lower - 1e-12).all()
        assert (draws <= stage.box_upper + 1e-12).all()


def test_sampling_settles_like_one_over_root_n(measured: toy.Toy) -> None:
    scatter = measured.settling.std(0)
    n = np.array(toy.COUNTS)
    slope = np.polyfit(np.log(n), np.log(scatter), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.12)
    np.testing.assert_allclose(measured.settling[:, -1], 1.0, atol=0.05)


def test_exhibits_hold_the_numbers(measured: toy.Toy) -> None:
    planes, settling = toy.exhibits(measured)
    assert len(planes.rows) == 4 * 5
    assert len(settling.rows) == len(toy.COUNTS)
    assert len(settling.columns) == len(settling.rows[0])
