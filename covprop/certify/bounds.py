"""Confidence bounds on p_A, and the radius they certify.

Every function here is plain numpy on arrays: `k` counts, `n` samples, `alpha` the probability of
being wrong. `run_looks` is the one procedure behind both the fixed and the sequential certificate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from covprop.errors import InvalidInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Looks of the sequential procedure: how fast they thin out, and the part of α kept for the last
# one, so that an image that runs to the end loses almost nothing against the fixed procedure.
GROWTH = 1.2
LAST_SHARE = 0.2


def clopper_pearson(k: ArrayLike, n: ArrayLike, alpha: float) -> Floats:
    """Exact one-sided lower bound: the p with P(Binomial(n, p) ≥ k) = alpha, and 0 for k = 0.

    >>> round(float(clopper_pearson(100, 100, 0.001)), 4)      # alpha ** (1 / n)
    0.9333
    """
    k, n = np.asarray(k, dtype=float), np.asarray(n, dtype=float)
    p = betaincinv(np.maximum(k, 1e-9), n - k + 1.0, alpha)
    return np.where((k > 0) & (p >= 0), p, 0.0)  # at an alpha of 1e-300 p may be NaN


def empirical_bernstein(mean: ArrayLike, var: ArrayLike, n: ArrayLike, alpha: float) -> Floats:
    """Lower bound on the mean of [0, 1] variables (Maurer & Pontil 2009, theorem 4).

    mean − √(2 var ln(2/α) / n) − 7 ln(2/α) / (3 (n − 1)), where var is the unbiased sample
    variance. One sample bounds nothing: the result is 0 then, and never below 0.
    """
    mean, var, n = (np.asarray(a, dtype=float) for a in (mean, var, n))
    log = math.log(2.0 / alpha)
    slack = np.sqrt(2.0 * np.maximum(var, 0.0) * log / n) + 7.0 * log / (3.0 * np.maximum(n - 1, 1))
    return np.where(n > 1, np.clip(mean - slack, 0.0, 1.0), 0.0)


@dataclass(frozen=True)
class Tally:
    """What was seen of one class over `n` samples: one entry an image.

    `total` and `square` are Σ p and Σ p² of the class's probability (soft certificates only).
    """

    n: int
    count: Ints
    total: Floats | None = None
    square: Floats | None = None

    def lower(self, alpha: float) -> Floats:
        """Lower bound on p_A, wrong with probability at most alpha."""
        return self._bound(alpha, upper=False)

    def upper(self, alpha: float) -> Floats:
        """Upper bound on p_A, wrong with probability at most alpha."""
        return 1.0 - self._bound(alpha, upper=True)

    def _bound(self, alpha: float, *, upper: bool) -> Floats:
        # An upper bound on p is one minus the lower bound on 1 − p.
        if self.total is None or self.square is None:
            return clopper_pearson(self.n - self.count if upper else self.count, self.n, alpha)
        mean = self.total / self.n
        var = (self.square - self.total * mean) / max(self.n - 1, 1)
        return empirical_bernstein(1.0 - mean if upper else mean, var, self.n, alpha)


def certified_radius(p_lower: ArrayLike, sigma: float) -> Floats:
    """σ Φ⁻¹(p_lower) where p_lower > 1/2, else 0."""
    p = np.asarray(p_lower, dtype=float)
    return np.where(p > 0.5, sigma * ndtri(np.maximum(p, 0.5)), 0.0)


def best_lower(share: ArrayLike, n: int, alpha: float, *, soft: bool = False) -> Floats:
    """The largest lower bound that n samples can give, if `share` of them is for the class."""
    share = np.asarray(share, dtype=float)
    if soft:
        return empirical_bernstein(share, 0.0, n, alpha)
    return clopper_pearson(share * n, n, alpha)


def sample_warning(n: int, alpha: float, sigma: float, *, soft: bool = False) -> str | None:
    """One sentence if n samples are too few for this alpha, else None."""
    best = float(best_lower(1.0, n, alpha, soft=soft))
    if best < 0.5:
        return (
            f"n = {n} samples cannot reach alpha = {alpha:g}: even if all of them agree the lower "
            f"bound is {best:.3f} < 1/2, so every image abstains; "
            f"take n >= {fewest_samples(alpha, soft=soft)}"
        )
    if not soft and clopper_pearson(n - 1, n, alpha) < 0.5:
        return (
            f"n = {n} samples barely reach alpha = {alpha:g}: an image abstains unless all of them "
            f"agree, and no radius can exceed {float(certified_radius(best, sigma)):.3g}; "
            f"take more samples"
        )
    return None


def fewest_samples(alpha: float, *, soft: bool = False) -> int:
    """The smallest n with which an image can be certified at all."""
    n = 1
    while best_lower(1.0, n, alpha, soft=soft) < 0.5:
        n += 1
    return n


@dataclass(frozen=True)
class Looks:
    """When to look at the counts, and how much of alpha each look may spend."""

    sizes: tuple[int, ...]
    alphas: tuple[float, ...]


def looks(n: int, alpha: float, *, sequential: bool, step: int = 1) -> Looks:
    """One look at n, or a geometric grid of looks (multiples of `step`) that ends at n.

    The lower bounds of all looks hold together with probability 1 − Σ α_k = 1 − α (union bound),
    so stopping at any of them is valid.
    """
    if not sequential:
        return Looks((n,), (alpha,))
    sizes, size = [], step
    while size < n:
        sizes.append(size)
        size = max(size + step, math.ceil(size * GROWTH / step) * step)
    if not sizes:
        return Looks((n,), (alpha,))
    early = alpha * (1.0 - LAST_SHARE) / len(sizes)
    return Looks((*sizes, n), (*[early] * len(sizes), alpha - early * len(sizes)))


def most_lower(plan: Looks, *, soft: bool = False) -> float:
    """The largest lower bound that any look can give: that of samples which all agree.

    Looks share α, so that it is less than one look at as many samples gives.
    """
    spent = zip(plan.sizes, plan.alphas, strict=True)
    return max(float(best_lower(1.0, size, alpha, soft=soft)) for size, alpha in spent)


@dataclass(frozen=True)
class Question:
    """What a sequential certificate must answer before it may stop.

    `delta`: going on to all n samples is expected to certify at most delta more. `at_least`:
    whether n samples certify these radii.
    """

    delta: float | None = None
    at_least: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.delta is None) == (not self.at_least):
            raise InvalidInput("a sequential certificate needs one of delta and at_least, not both")
        for value in self.at_least if self.delta is None else (self.delta,):
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"delta and at_least are positive radii, not {value}")

    def answered(self, low: Floats, final: Floats) -> NDArray[np.bool_]:
        """Whether `low`, which is certified, and `final`, which n samples may give, answer it."""
        if self.delta is not None:
            return final - low <= self.delta
        radii = np.array(self.at_least)
        return np.all((low[..., None] >= radii) | (final[..., None] < radii), axis=-1)


def judge(
    tally: Tally,
    plan: Looks,
    alpha: float,
    lower: Floats,
    upper: Floats,
    *,
    sigma: float,
    question: Question | None,
    soft: bool,
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """One look that may spend alpha: the bounds on p_A so far, and which images have their answer.

    Without a question only the last look answers.
    """
    n, total = plan.sizes[-1], sum(plan.alphas)
    lower = np.maximum(lower, tally.lower(alpha))
    if question is None:
        return lower, upper, np.full(lower.shape, tally.n == n)
    upper = np.minimum(upper, tally.upper(alpha))
    # What n samples would certify if the class came up as often as it still may.
    final = np.maximum(best_lower(upper, n, total, soft=soft), lower)
    radii = (certified_radius(p, sigma) for p in (lower, final))
    return lower, upper, question.answered(*radii) | (tally.n == n)


def run_looks(
    draw: Callable[[int, Ints], Tally],
    asked: NDArray[np.bool_],
    plan: Looks,
    *,
    sigma: float,
    question: Question | None = None,
    soft: bool = False,
) -> tuple[Floats, Ints, Ints]:
    """Look after look, until every image asked for has its answer or has used all samples.

    The others get bound, count and samples 0. `draw(size, active)` returns the tally of the active
    images after `size` samples each. Returns the lower bound on p_A, the count and the number of
    samples of every image. P(bound > p_A) is at most Σ α_k, and so, separately, is the probability
    of having stopped too early.
    """
    images = len(asked)
    lower, upper = np.zeros(images), np.ones(images)
    count, used = np.zeros(images, np.int64), np.zeros(images, np.int64)
    active = np.flatnonzero(asked)
    for size, alpha in zip(plan.sizes, plan.alphas, strict=True):
        if active.size == 0:
            break
        tally = draw(size, active)
        count[active], used[active] = tally.count, size
        lower[active], upper[active], answered = judge(
            tally, plan, alpha, lower[active], upper[active],
            sigma=sigma, question=question, soft=soft,
        )  # fmt: skip
        active = active[~answered]
    return lower, count, used
