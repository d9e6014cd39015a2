"""Bounds against their definitions, and the sequential procedure's coverage by simulation."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from covprop.certify.bounds import (
    Looks,
    Question,
    Tally,
    certified_radius,
    clopper_pearson,
    empirical_bernstein,
    fewest_samples,
    judge,
    looks,
    run_looks,
    sample_warning,
)
from covprop.errors import InvalidInput

# Radii of every tenth image of Cohen et al.'s published log (CIFAR-10, ResNet-110, σ = 0.25);
# 0 is an abstention, 0.978 the largest radius their n and α allow.
PUBLISHED = np.fromstring(
    """
    0.378 0.313 0.753 0.46 0.978 0.978 0.518 0.01 0.0 0.441 0.731 0.228 0.978 0.88 0.372 0.806
    0.577 0.49 0.467 0.708 0.0 0.181 0.0 0.512 0.978 0.978 0.663 0.781 0.187 0.517 0.478 0.0459
    0.543 0.955 0.0 0.0768 0.105 0.37 0.0625 0.597 0.762 0.0 0.168 0.0 0.978 0.978 0.802 0.978
    0.322 0.978
    """,
    sep=" ",
)


@pytest.mark.parametrize("alpha", [0.001, 0.05])
@pytest.mark.parametrize(("k", "n"), [(1, 10), (7, 10), (10, 10), (990, 1000), (99_999, 100_000)])
def test_clopper_pearson_inverts_the_binomial_tail(k: int, n: int, alpha: float) -> None:
    p = float(clopper_pearson(k, n, alpha))
    assert stats.binom.sf(k - 1, n, p) == pytest.approx(alpha, rel=1e-6)
    tally = Tally(n, np.array([k]))
    assert tally.lower(alpha)[0] == p
    if k < n:
        assert stats.binom.cdf(k, n, tally.upper(alpha)[0]) == pytest.approx(alpha, rel=1e-6)
    else:
        assert tally.upper(alpha)[0] == 1.0


def test_clopper_pearson_of_nothing_is_zero() -> None:
    assert clopper_pearson([0, 0], [1, 100], 0.001).tolist() == [0.0, 0.0]


def test_a_bound_that_cannot_be_computed_is_zero() -> None:
    """NaN is not below ½, so that its image would not abstain."""
    found = clopper_pearson([2, 3, 4, 5], 5, 1e-300)
    assert (found[:3] == 0).all()
    assert found[3] == pytest.approx(1e-60)


def test_empirical_bernstein_formula_and_coverage() -> None:
    rng = np.random.default_rng(0)
    x = rng.beta(8, 1, size=(4000, 200))
    mean, var = x.mean(1), x.var(1, ddof=1)
    alpha, n = 0.05, 200
    log = math.log(2 / alpha)
    expected = mean - np.sqrt(2 * var * log / n) - 7 * log / (3 * (n - 1))
    low = empirical_bernstein(mean, var, n, alpha)
    np.testing.assert_allclose(low, expected, rtol=1e-12)
    assert (low > 8 / 9).mean() <= alpha
    soft = Tally(n, np.zeros(4000, np.int64), x.sum(1), (x * x).sum(1))
    np.testing.assert_allclose(soft.lower(alpha), low, rtol=1e-9)
    assert (soft.upper(alpha) < 8 / 9).mean() <= alpha
    assert empirical_bernstein(1.0, 0.0, 1, alpha) == 0.0
    assert empirical_bernstein(0.5, 0.25, 10, alpha) == 0.0  # and not below


def test_a_variance_that_rounding_makes_negative_is_none() -> None:
    tally = Tally(1000, np.array([1000]), np.array([900.0]), np.array([810.0 - 1e-9]))
    assert tally.lower(0.05)[0] == empirical_bernstein(0.9, 0.0, 1000, 0.05)
    assert tally.upper(0.05)[0] == 1 - empirical_bernstein(1 - 0.9, 0.0, 1000, 0.05)


def test_radius_is_sigma_times_the_quantile() -> None:
    p = np.array([0.2, 0.5, 0.8, 0.999])
    np.testing.assert_allclose(
        certified_radius(p, 0.25), [0, 0, 0.25 * stats.norm.ppf(0.8), 0.25 * stats.norm.ppf(0.999)]
    )


@pytest.mark.parametrize(("alpha", "n"), [(0.001, 10), (0.01, 7), (0.05, 5)])
def test_too_few_samples_are_named(alpha: float, n: int) -> None:
    assert fewest_samples(alpha) == n == math.ceil(math.log2(1 / alpha))
    message = sample_warning(n - 1, alpha, 0.25) or ""
    assert "every image abstains" in message
    assert f"n >= {n}" in message
    assert sample_warning(100_000, alpha, 0.25) is None


def test_too_few_samples_of_a_soft_certificate() -> None:
    n = fewest_samples(0.001, soft=True)
    assert (
        empirical_bernstein(1.0, 0.0, n, 0.001) >= 0.5 > empirical_bernstein(1.0, 0, n - 1, 0.001)
    )
    assert f"n >= {n}" in (sample_warning(n - 1, 0.001, 0.25, soft=True) or "")


def test_samples_that_must_all_agree_are_named() -> None:
    assert "unless all of them agree" in (sample_warning(10, 0.001, 0.25) or "")
    assert "unless all of them agree" in (sample_warning(13, 0.001, 0.25) or "")
    assert sample_warning(14, 0.001, 0.25) is None


@pytest.mark.parametrize(("n", "step"), [(100_000, 65), (1000, 256), (100, 256), (257, 256)])
def test_looks_spend_alpha_once_and_end_at_n(n: int, step: int) -> None:
    plan = looks(n, 0.001, sequential=True, step=step)
    assert plan.sizes[-1] == n
    assert list(plan.sizes) == sorted(set(plan.sizes))
    assert all(size % step == 0 for size in plan.sizes[:-1])
    assert sum(plan.alphas) == pytest.approx(0.001, rel=1e-12)
    if len(plan.sizes) > 1:
        assert plan.alphas[-1] == pytest.approx(0.0002)  # a fifth is kept for the end
        assert plan.alphas[:-1] == (plan.alphas[0],) * (len(plan.sizes) - 1)
    assert looks(n, 0.001, sequential=False) == Looks((n,), (0.001,))


def test_a_question_is_answered_at_its_very_limit() -> None:
    low, final = np.array([0.25, 0.25, 0.5, 0.25]), np.array([0.5, 0.51, 0.75, 0.25])
    assert Question(delta=0.25).answered(low, final).tolist() == [True, False, True, True]
    # Reached exactly is reached; what may still be reached exactly is open.
    assert Question(at_least=(0.5,)).answered(low, final).tolist() == [False, False, True, True]
    both = Question(at_least=(0.25, 0.51))
    assert both.answered(low, final).tolist() == [True, False, False, True]


def test_bounds_of_earlier_looks_stay() -> None:
    """All of them hold together, so that a later look can only narrow them down."""
    plan = Looks((100, 1000), (0.01, 0.01))
    tally = Tally(100, np.array([80, 80]))
    known = np.array([0.1, 0.75]), np.array([0.85, 0.95])
    lower, upper, _ = judge(
        tally, plan, 0.01, *known, sigma=0.5, question=Question(delta=0.1), soft=False
    )
    assert lower.tolist() == [clopper_pearson(80, 100, 0.01), 0.75]
    assert upper.tolist() == [0.85, 1 - clopper_pearson(20, 100, 0.01)]


def simulate(
    p: np.ndarray, plan: Looks, question: Question | None, sigma: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The procedure itself, fed with Bernoulli(p) outcomes, one trial an entry of p."""
    rng = np.random.default_rng(seed)
    count = np.zeros(len(p), np.int64)
    at = 0

    def draw(size: int, active: np.ndarray) -> Tally:
        nonlocal at
        count[active] += rng.binomial(size - at, p[active])
        at = size
        return Tally(size, count[active])

    lower, _, used = run_looks(draw, np.full(len(p), True), plan, sigma=sigma, question=question)
    return lower, used


@pytest.mark.parametrize(
    "question",
    [
        Question(delta=0.1),
        Question(delta=0.4),
        Question(at_least=(0.4,)),
        Question(at_least=(0.2, 0.4)),
    ],
)
@pytest.mark.parametrize("p", [0.48, 0.55, 0.9, 0.99])
def test_coverage_of_the_sequential_bound(p: float, question: Question) -> None:
    alpha, trials, sigma = 0.05, 4000, 0.5
    plan = looks(4000, alpha, sequential=True, step=64)
    lower, used = simulate(np.full(trials, p), plan, question, sigma)
    allowed = alpha * trials + 3 * math.sqrt(alpha * trials)
    assert (lower > p).sum() <= allowed
    # The other side: stopped before n although n samples would have said something else.
    low = certified_radius(lower, sigma)
    early = used < plan.sizes[-1]
    fixed = certified_radius(clopper_pearson(4000 * p, 4000, alpha), sigma)
    if question.delta is not None:
        wrong = early & (fixed > low + question.delta)
    else:
        asked = np.array(question.at_least)
        wrong = early & ((low[:, None] < asked) & (fixed >= asked)).any(1)
    assert wrong.sum() <= allowed


def test_a_bound_without_the_union_would_fail_this_coverage() -> None:
    """The simulation can tell: spending all of alpha at every look breaks the promise."""
    honest = looks(4000, 0.05, sequential=True, step=64)
    greedy = Looks(honest.sizes, (0.05,) * len(honest.sizes))
    lower, _ = simulate(np.full(4000, 0.9), greedy, Question(delta=1e-9), 0.5)
    assert (lower > 0.9).mean() > 0.1


def test_samples_saved_on_a_published_distribution() -> None:
    sigma, n, alpha = 0.25, 100_000, 0.001
    p = np.where(PUBLISHED > 0, stats.norm.cdf(PUBLISHED / sigma), 0.45).repeat(4)
    p = np.where(PUBLISHED.repeat(4) == 0.978, 1 - 1e-6, p)
    fixed, _ = simulate(p, looks(n, alpha, sequential=False), None, sigma)
    plan = looks(n, alpha, sequential=True, step=65)
    lower, used = simulate(p, plan, Question(at_least=(0.5,)), sigma)
    agree = (certified_radius(lower, sigma) >= 0.5) == (certified_radius(fixed, sigma) >= 0.5)
    assert used.mean() < 0.08 * n
    assert agree.mean() > 0.98
    lower, used = simulate(p, plan, Question(delta=0.05), sigma)
    lost = certified_radius(fixed, sigma) - certified_radius(lower, sigma)
    assert used.mean() < 0.35 * n
    assert lost.mean() < 0.025
    assert (lost > 0.05).mean() < 0.02


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delta": 0.1, "at_least": (0.1,)},
        *({"delta": value} for value in (-1.0, 0.0, math.inf, math.nan)),
        *({"at_least": (0.1, value)} for value in (-1.0, 0.0, math.inf, math.nan)),
    ],
)
def test_a_question_is_one_positive_radius(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Question(**options)
