"""docs/estimators.md says how far off the linearised radius is as the files under results/ say."""

from pathlib import Path

import numpy as np

from covprop.report import Certification, read
from covprop.report.sidecars import most_certified

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/estimators.md").read_text(encoding="utf-8")
COLUMNS = ("linearized", "linearized:4 (earlier)", "linearized:4")
COLLAPSED = {("radius-reference", 0.25), ("macer", 1.0)}
"""Networks that tell few classes apart; the page names them."""


def shares(c: Certification, estimator: str) -> np.ndarray:
    """Estimated over certified, where the certificate is neither 0 nor at its end."""
    estimated, end = c.estimates[estimator], 0.97 * most_certified(c.meta)
    inside = np.isfinite(estimated) & (c.rows.radius > 0) & (c.rows.radius < end)
    return estimated[inside] / c.rows.radius[inside]


def off(found: np.ndarray) -> float:
    """The factor by which one in five is off, or more; a radius below 0 is off by any."""
    with np.errstate(divide="ignore"):
        factor = np.where(found > 0, np.maximum(found, 1 / np.where(found > 0, found, 1)), np.inf)
    return float(np.quantile(factor, 0.8))


def span(values: list[float], digits: int) -> str:
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def test_how_far_off_it_is_comes_from_the_files() -> None:
    folders = [ROOT / "results" / name for name in ("cifar10-0.25", "cifar10-1.00", "time-to-acr")]
    found: dict[tuple[str, float], list[np.ndarray]] = {}
    jobs: dict[tuple[str, float], list[str]] = {}
    for c in read(folders)[0]:
        job = c.path.parent.name.rpartition("-seed")[0]
        # Only what was certified with all samples: a sequential certificate stops short.
        if not c.path.name.startswith("certify_sigma_") or (job, c.sigma) in COLLAPSED:
            continue
        assert c.sigma is not None
        for estimator in set(COLUMNS) & set(c.estimates):
            if len(ratio := shares(c, estimator)):  # none where all images got one class
                jobs.setdefault((estimator, c.sigma), []).append(job)
                found.setdefault((estimator, c.sigma), []).append(ratio)

    def cells(sigma: float, statistic: object, digits: int) -> list[str]:
        assert callable(statistic)
        return [span([statistic(v) for v in found[e, sigma]], digits) for e in COLUMNS]

    rows = {
        "networks at σ = 0.25, at σ = 1": [
            f"{len(found[e, 0.25])}, {len(found[e, 1.0])}" for e in COLUMNS
        ],
        "median at σ = 0.25, by network": cells(0.25, np.median, 2),
        "one estimate in five is off by this factor or more, σ = 0.25": cells(0.25, off, 1),
        "the same at σ = 1": cells(1.0, off, 1),
    }
    for name, values in rows.items():
        assert f"| {name} | {' | '.join(values)} |" in PAGE
    of_macer = [
        f"{np.median(ratio):.1f}"
        for e in COLUMNS
        for job, ratio in zip(jobs[e, 1.0], found[e, 1.0], strict=True)
        if job in ("macer-steps", "macer-muon")
    ]
    assert f"| median at σ = 1 on MACER's network | {' | '.join(of_macer)} |" in PAGE
