"""How many labels are wrong: estimates from the training signal, and how sure they are.

All start from p [n, k], each image's class probabilities averaged over the epochs.

Confident joint (Northcutt et al. 2021): with t_j the mean of p_j over the images labelled j, image
i counts as one of class l = argmax{p_ij : p_ij ≥ t_j}. C[given, l] is scaled so that every row has
the number of images so labelled; the share off its diagonal is the rate.

Mixture: the probabilities of the given labels come from two Gaussians, one around the right labels
and one around the wrong ones; the rate is the weight of the lower one.

The interval is the hull of both estimates' bootstrap intervals and of the share of labels that the
network confidently contradicts (C's off-diagonal over n, unscaled). It covers chance and the
disagreement of the three, not an error they share: a network that has memorised the wrong labels,
or never learned the right ones, misleads them all. So it contains the truth less often than its
confidence says, and in short runs much less often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covprop.errors import InvalidInput
from covprop.options import Fraction, Range, check_value

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
BINS = 200
STEPS = 100  # of the EM fit
SUM_ERROR = 0.01  # of a row of probabilities: half precision and many classes round that much


class Estimate(NamedTuple):
    """A noise rate and the interval of its bootstrap, at the asked confidence."""

    rate: float
    low: float
    high: float


class NoiseRate(NamedTuple):
    """`rate` is the confident joint's; `low`, `high` also cover what the other two say."""

    rate: float
    low: float
    high: float
    confident_joint: Estimate
    mixture: Estimate
    contradicted: float


def estimate_rate(
    given: Integers,
    probability: Floats,
    *,
    confidence: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> NoiseRate:
    """The share of wrong labels among `given` [n], from class probabilities [n, k].

    Example:
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.integers(0, 2, 2000)
        >>> given = np.where(rng.random(2000) < 0.3, 1 - truth, truth)
        >>> sure = rng.uniform(0.7, 1.0, 2000)
        >>> p = np.stack([np.where(truth == c, sure, 1 - sure) for c in (0, 1)], 1)
        >>> found = estimate_rate(given, p)
        >>> abs(found.rate - 0.3) < 0.05, found.low <= found.rate <= found.high
        (True, True)
    """
    given, probability = check(given, probability)
    confidence = check_value("confidence", confidence, Fraction)
    resamples = check_value("resamples", resamples, Annotated[int, Range(1)])
    rng = np.random.default_rng(seed)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    cells = confident_joint(given, probability)
    joint = _estimate(
        cells.ravel(), lambda c: _off_diagonal(c.reshape(cells.shape)), resamples, tails, rng
    )
    quality = probability[np.arange(len(given)), given]
    histogram = np.histogram(quality, bins=BINS, range=(0.0, 1.0))[0]
    mixture = _estimate(histogram, lower_weight, resamples, tails, rng)
    contradicted = float((cells[:, :-1].sum() - np.trace(cells)) / len(given))
    low = min(joint.low, mixture.low, contradicted)
    return NoiseRate(joint.rate, low, max(joint.high, mixture.high), joint, mixture, contradicted)


def check(given: Integers, probability: Floats) -> tuple[Integers, Floats]:
    """Labels and probabilities that belong together, as arrays, or InvalidInput."""
    given, probability = np.asarray(given), np.asarray(probability)
    if given.ndim != 1 or probability.ndim != 2 or len(given) != len(probability) or not given.size:
        raise InvalidInput(
            f"labels of shape {list(given.shape)} and probabilities of shape "
            f"{list(probability.shape)} do not belong together; give one row of class "
            "probabilities an image."
        )
    if not np.issubdtype(given.dtype, np.integer):
        raise InvalidInput(f"the labels are {given.dtype}; give class numbers, as int64.")
    if given.min() < 0 or given.max() >= probability.shape[1]:
        raise InvalidInput(
            f"a label lies outside 0..{probability.shape[1] - 1}, the classes of the probabilities."
        )
    sums = probability.sum(1)
    wrong = ~((probability >= 0).all(1) & (abs(sums - 1) <= SUM_ERROR))  # NaN is wrong too
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidInput(
            f"row {row} of the probabilities is no distribution (smallest "
            f"{probability[row].min():g}, sum {sums[row]:g}); give class probabilities, as softmax "
            "makes them of logits."
        )
    return given.astype(np.int64), probability  # int64, as uint8 wraps around in sums and products


def confident_class(given: Integers, probability: Floats) -> Integers:
    """The class each image confidently belongs to, or k (one past the last) for none, [n]."""
    classes = probability.shape[1]
    counts = np.bincount(given, minlength=classes)
    own = probability[np.arange(len(given)), given]
    sums = np.bincount(given, weights=own, minlength=classes)
    # A class that no image is labelled with has no threshold that could be reached.
    threshold = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    above = np.where(probability >= threshold - 1e-6, probability, -1.0)
    return np.where(above.max(1) < 0, classes, above.argmax(1))


def confident_joint(given: Integers, probability: Floats) -> Integers:
    """C[given class, confident class], [k, k + 1]; the last column is 'confident of none'."""
    shape = (probability.shape[1], probability.shape[1] + 1)
    cells = given * shape[1] + confident_class(given, probability)
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)


def _off_diagonal(cells: NDArray[np.integer]) -> float:
    """The rate from C [k, k + 1]."""
    joint, labelled = cells[:, :-1].astype(np.float64), cells.sum(1)
    confident = joint.sum(1)
    right = np.where(confident > 0, np.diagonal(joint) / np.maximum(confident, 1), 1.0)
    return float(1 - (right * labelled).sum() / max(labelled.sum(), 1))


def lower_weight(histogram: NDArray[np.integer]) -> float:
    """Weight of the lower of two Gaussians fitted by EM to counts on equal bins of [0, 1]."""
    centres = (np.arange(len(histogram)) + 0.5) / len(histogram)
    share = histogram / max(histogram.sum(), 1)
    mean, spread = np.array([0.1, 0.9]), np.array([0.2, 0.2])
    weight = np.array([0.5, 0.5])
    for _ in range(STEPS):
        log_density = -0.5 * ((centres[:, None] - mean) / spread) ** 2 - np.log(spread)
        density = weight * np.exp(log_density - log_density.max(1, keepdims=True))
        mine = share[:, None] * density / density.sum(1, keepdims=True)
        weight = np.maximum(mine.sum(0), 1e-9)
        mean = (mine * centres[:, None]).sum(0) / weight
        variance = (mine * (centres[:, None] - mean) ** 2).sum(0) / weight
        spread = np.sqrt(np.maximum(variance, 1e-4))
    return float(weight[mean.argmin()] / weight.sum())


def _estimate(
    cells: NDArray[np.integer],
    statistic: Callable[[NDArray[np.integer]], float],
    resamples: int,
    tails: list[float],
    rng: np.random.Generator,
) -> Estimate:
    """A statistic of counts, with the percentile interval of its bootstrap."""
    value = statistic(cells)
    again = rng.multinomial(cells.sum(), cells / cells.sum(), size=resamples)
    low, high = np.quantile([statistic(one) for one in again], tails)
    # Percentiles of a biased bootstrap may miss the value itself.
    return Estimate(value, min(value, float(low)), max(value, float(high)))
