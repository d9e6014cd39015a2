"""The numbers of a report: certified accuracy, average certified radius, p_A, correlations.

With c_i = 1 where image i is classified correctly and R_i its certified radius:

    certified accuracy at r = mean_i c_i · [R_i ≥ r]        ACR = mean_i c_i · R_i

Intervals are 95 % percentile bootstrap intervals over the images. Resampling n images with
replacement makes the count behind a proportion p exactly Binomial(n, p), so its bootstrap
quantiles need no sampling; the ACR is resampled with a fixed seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from covprop.report.read import Certification

Floats = NDArray[np.float64]

STEP = 0.25
MOST_STEPS = 40  # wider tables are unreadable
LEVEL = 0.95
RESAMPLES = 5_000

# Correct predictions by the lower bound of p_A; the last edge is closed.
P_EDGES = (0.5, 0.75, 0.9, 0.99, 0.999, 1.0)
P_NAMES = ("wrong", "abstained", "0.5-0.75", "0.75-0.9", "0.9-0.99", "0.99-0.999", "0.999-1")


class Interval(NamedTuple):
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


class Curve(NamedTuple):
    """Certified accuracy as steps: `accuracy[k]` holds for radius[k-1] < r ≤ radius[k].

    `radius` starts at 0 and ends at the largest certified radius; beyond it the accuracy is 0.
    """

    radius: Floats
    accuracy: Floats
    low: Floats
    high: Floats


class Agreement(NamedTuple):
    """How estimated radii go with certified ones on the same images."""

    estimator: str
    certified: Floats
    estimated: Floats
    kind: NDArray[np.int64]  # 0 wrong, 1 abstained, 2 correct
    pearson: float
    spearman: float


@dataclass(frozen=True)
class Summary:
    """One row of the table and what its figures need."""

    certification: Certification
    acr: Interval
    certified: tuple[Interval, ...]
    abstain: Interval  # at least that, where wrong guesses were not bounded
    curve: Curve
    p_shares: tuple[float, ...] | None  # one share a name in P_NAMES; None without p_A
    agreements: tuple[Agreement, ...]


def proportion(count: Floats | float, n: int) -> tuple[Floats, Floats, Floats]:
    """Proportion and the ends of its percentile bootstrap interval."""
    p = np.asarray(count, dtype=np.float64) / n
    tail = (1 - LEVEL) / 2
    return p, stats.binom.ppf(tail, n, p) / n, stats.binom.ppf(1 - tail, n, p) / n


def bootstrap_mean(values: Floats) -> Interval:
    """Mean with its percentile bootstrap interval from `RESAMPLES` seeded resamples."""
    rng = np.random.default_rng(0)
    n = len(values)
    chunk = max(1, 4_000_000 // n)  # bounds the memory of the index table
    means = np.concatenate(
        [
            values[rng.integers(0, n, (min(chunk, RESAMPLES - done), n))].mean(axis=1)
            for done in range(0, RESAMPLES, chunk)
        ]
    )
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def radii_for(certifications: Sequence[Certification]) -> tuple[float, ...]:
    """The radii of the table: 0, 0.25, … up to the largest at which any run is correct."""
    return radii_up_to(
        max(float(c.rows.radius[c.rows.correct].max(initial=0.0)) for c in certifications)
    )


def radii_up_to(largest: float) -> tuple[float, ...]:
    """0, 0.25, …; in coarser steps where these would be more columns than anybody reads.

    >>> radii_up_to(0.8), radii_up_to(40.0)[:3]
    ((0.0, 0.25, 0.5, 0.75), (0.0, 1.0, 2.0))
    """
    step = STEP
    while largest / step > MOST_STEPS:  # on another scale than that of pixels in [0, 1]
        step *= 2
    return tuple(step * k for k in range(int(largest / step) + 1))


def certified_curve(certification: Certification) -> Curve:
    """The whole step curve of certified accuracy with its pointwise interval."""
    rows = certification.rows
    reached = np.sort(rows.radius[rows.correct])
    radius = np.unique(np.concatenate([[0.0], reached]))
    count = len(reached) - np.searchsorted(reached, radius, side="left")
    return Curve(radius, *proportion(count.astype(np.float64), len(rows)))


def p_shares(certification: Certification) -> tuple[float, ...] | None:
    """Shares of all images: wrong, abstained, then correct ones by the lower bound of p_A.

    A wrong guess that was not bounded counts as wrong, though it might have abstained.
    """
    rows, p_lower = certification.rows, certification.p_lower
    if p_lower is None:
        return None
    wrong = np.count_nonzero(~rows.correct & ~rows.abstained)
    bins, _ = np.histogram(p_lower[rows.correct], bins=P_EDGES)
    counts = [wrong, np.count_nonzero(rows.abstained), *bins]
    return tuple(float(count) / len(rows) for count in counts)


def agreements(certification: Certification) -> tuple[Agreement, ...]:
    """Each estimator against the certificate, over images that have both; abstentions count 0.

    A guess that was not bounded has no certified radius; its 0 would be set against an estimate.
    """
    rows = certification.rows
    kind = np.where(rows.abstained, 1, np.where(rows.correct, 2, 0)).astype(np.int64)
    found = []
    for estimator, estimated in certification.estimates.items():
        both = np.isfinite(estimated) & ~rows.skipped
        x, y = rows.radius[both], estimated[both]
        varies = len(x) > 2 and np.ptp(x) > 0 and np.ptp(y) > 0
        found.append(
            Agreement(
                estimator,
                x,
                y,
                kind[both],
                float(stats.pearsonr(x, y).statistic) if varies else float("nan"),
                float(stats.spearmanr(x, y).statistic) if varies else float("nan"),
            )
        )
    return tuple(found)


def summarize(certifications: Sequence[Certification]) -> tuple[tuple[float, ...], list[Summary]]:
    """All numbers of a report: the radii of the table, and a summary for each certification."""
    radii = radii_for(certifications)
    return radii, [_summary(c, radii) for c in certifications]


def _summary(certification: Certification, radii: tuple[float, ...]) -> Summary:
    rows = certification.rows
    counts = np.array([np.count_nonzero(rows.correct & (rows.radius >= r)) for r in radii])
    share = proportion(counts.astype(np.float64), len(rows))
    abstain = proportion(float(np.count_nonzero(rows.abstained)), len(rows))
    return Summary(
        certification=certification,
        acr=bootstrap_mean(rows.correct * rows.radius),
        certified=tuple(Interval(*map(float, ends)) for ends in zip(*share, strict=True)),
        abstain=Interval(*map(float, abstain)),
        curve=certified_curve(certification),
        p_shares=p_shares(certification),
        agreements=agreements(certification),
    )
