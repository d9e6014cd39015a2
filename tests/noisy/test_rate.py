"""The estimate of the noise rate against labels whose truth is known."""

from typing import Any

import numpy as np
import pytest

from covprop.errors import InvalidInput
from covprop.noisy.rate import (
    _estimate,
    _off_diagonal,
    confident_class,
    confident_joint,
    estimate_rate,
    lower_weight,
)


def test_confident_joint_by_hand() -> None:
    """Thresholds .8 (labels 0: .9, .7) and .6 (labels 1: .8, .4)."""
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])
    given = np.array([0, 0, 1, 1])
    assert confident_class(given, p).tolist() == [0, 2, 1, 2]
    assert confident_joint(given, p).tolist() == [[1, 0, 1], [0, 1, 1]]
    p[3] = [0.9, 0.1]  # the threshold of class 1 becomes .45
    assert confident_joint(given, p).tolist() == [[1, 0, 1], [1, 1, 0]]
    found = estimate_rate(given, p)
    assert found.confident_joint.rate == pytest.approx((0 * 2 + 0.5 * 2) / 4)
    assert found.contradicted == 0.25


def test_a_class_nobody_has() -> None:
    p = np.array([[0.1, 0.2, 0.7], [0.9, 0.05, 0.05]])
    assert confident_class(np.array([0, 0]), p).tolist() == [3, 0]


def test_equal_images_reach_their_own_mean() -> None:
    p = np.repeat([[0.7, 0.3]], 10, 0)
    assert confident_class(np.zeros(10, dtype=np.int64), p).tolist() == [0] * 10


def test_a_label_of_which_nothing_is_known_counts_as_right() -> None:
    """As a resample may have it: five images labelled 0, confident of none, and 2 of 3 right."""
    assert _off_diagonal(np.array([[0, 0, 5], [1, 2, 0]])) == pytest.approx(1 / 8)


def predictions(
    truth: np.ndarray, classes: int, sureness: float, rng: np.random.Generator
) -> np.ndarray:
    """Probabilities of a network that knows the truth, more or less."""
    logits = rng.normal(size=(len(truth), classes))
    logits[np.arange(len(truth)), truth] += sureness
    p = np.exp(logits)
    return p / p.sum(1, keepdims=True)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.45])
@pytest.mark.parametrize("kind", ["pair", "symmetric"])
def test_the_interval_holds_the_truth_for_a_good_network(rate: float, kind: str) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 10, 4000)
    shift = 1 if kind == "pair" else rng.integers(1, 10, 4000)
    given = np.where(rng.random(4000) < rate, (truth + shift) % 10, truth)
    found = estimate_rate(given, predictions(truth, 10, 6.0, rng))
    true = float((given != truth).mean())
    assert abs(found.rate - true) < 0.03
    assert found.low - 0.01 <= true <= found.high + 0.01


def test_a_poor_network_is_less_sure() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 10, 4000)
    given = np.where(rng.random(4000) < 0.3, (truth + 1) % 10, truth)
    good, poor = (estimate_rate(given, predictions(truth, 10, s, rng)) for s in (6.0, 2.0))
    assert poor.high - poor.low > 2 * (good.high - good.low)


def test_fewer_images_are_less_sure() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 8000)
    given = np.where(rng.random(8000) < 0.3, (truth + 1) % 3, truth)
    p = predictions(truth, 3, 6.0, rng)
    widths = [f.high - f.low for f in (estimate_rate(given[:n], p[:n]) for n in (200, 8000))]
    assert widths[0] > 3 * widths[1]


def test_the_bootstrap_of_a_sure_network_is_the_binomial() -> None:
    given = np.arange(2000) % 2
    truth = np.where(np.arange(2000) < 1400, given, 1 - given)  # 600 wrong
    error = np.sqrt(0.3 * 0.7 / 2000)
    for confidence, deviates in ((0.95, 1.96), (0.5, 0.674)):
        found = estimate_rate(given, np.eye(2)[truth], confidence=confidence).confident_joint
        assert found.rate == pytest.approx(0.3)
        assert found.high - found.rate == pytest.approx(deviates * error, rel=0.25)
        assert found.rate - found.low == pytest.approx(deviates * error, rel=0.25)


def test_the_interval_is_the_hull_of_all_three() -> None:
    """A poor network: few labels are confidently contradicted, and the two heaps run together."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 10, 1000)
    given = np.where(rng.random(1000) < 0.1, (truth + 1) % 10, truth)
    found = estimate_rate(given, predictions(truth, 10, 2.0, rng), resamples=5)
    assert found.low == found.contradicted < min(found.confident_joint.low, found.mixture.low)
    assert found.high == found.mixture.high > found.confident_joint.high
    found = estimate_rate(given, predictions(truth, 10, 0.5, rng), resamples=5)
    assert found.low == found.mixture.low < min(found.confident_joint.low, found.contradicted)
    assert found.high == found.confident_joint.high > found.mixture.high


def test_a_biased_bootstrap_still_holds_the_value() -> None:
    """How many of 50 cells are filled: a resample of 50 counts fills about 32."""
    rng = np.random.default_rng(0)
    filled = _estimate(np.ones(50, int), lambda c: float((c > 0).sum()), 20, [0.025, 0.975], rng)
    assert filled.high == filled.rate == 50
    assert 20 < filled.low < 40


def test_the_mixture_finds_two_heaps() -> None:
    histogram = np.zeros(200, dtype=int)
    histogram[10:20], histogram[170:190] = 30, 35  # 300 and 700
    assert lower_weight(histogram) == pytest.approx(0.3, abs=0.01)


def test_labels_and_probabilities_that_do_not_belong_together() -> None:
    with pytest.raises(InvalidInput, match="do not belong together"):
        estimate_rate(np.array([0, 1]), np.ones((3, 2)))
    with pytest.raises(InvalidInput, match=r"outside 0\.\.1"):
        estimate_rate(np.array([0, 2]), np.ones((2, 2)))
    with pytest.raises(InvalidInput, match="do not belong together"):
        estimate_rate(np.array([[0], [1]]), np.eye(2))
    with pytest.raises(InvalidInput, match="labels are float64; give class numbers"):
        estimate_rate(np.array([0.0, 1.0]), np.eye(2))


@pytest.mark.parametrize(
    "row", [[2.0, -1.0], [0.5, 0.4], [1.0, 1.0], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0]]
)
def test_rows_that_are_no_probabilities(row: list[float]) -> None:
    with pytest.raises(InvalidInput, match=r"row 1 of the probabilities is no .*softmax"):
        estimate_rate(np.array([0, 1]), np.array([[0.9, 0.1], row]))


def test_rounded_probabilities_and_lists_of_them_will_do() -> None:
    rng = np.random.default_rng(0)
    p = predictions(rng.integers(0, 1000, 50), 1000, 6.0, rng).astype(np.float16)
    assert 0 <= estimate_rate(np.arange(50), p, resamples=2).rate <= 1
    lists = estimate_rate([0, 1], [[0.9, 0.1], [0.2, 0.8]])  # type: ignore[arg-type]
    assert lists == estimate_rate(np.array([0, 1]), np.array([[0.9, 0.1], [0.2, 0.8]]))


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64])
def test_any_whole_numbers_will_do_as_labels(kind: type) -> None:
    """Files of labels are often uint8, in which 25 · 101 is 221."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 100, 2000)
    given = np.where(rng.random(2000) < 0.3, (truth + 1) % 100, truth)
    p = predictions(truth, 100, 6.0, rng)
    assert estimate_rate(given.astype(kind), p) == estimate_rate(given, p)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"confidence": 2}, "confidence must be at least 0 and at most 1, not 2"),
        ({"confidence": np.nan}, "confidence must be a number"),
        ({"resamples": 0}, "resamples must be at least 1"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        estimate_rate(np.array([0, 1]), np.eye(2), **options)
