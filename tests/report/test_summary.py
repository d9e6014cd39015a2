import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
from certifications import Row, add_estimates, draw_rows, make_run, tsv

from covprop.report.read import read
from covprop.report.summary import (
    P_EDGES,
    bootstrap_mean,
    proportion,
    radii_for,
    radii_up_to,
    summarize,
)


def accuracy(rows: list[Row], radius: float) -> float:
    """The definition, in plain Python."""
    return sum(r["correct"] and r["radius"] >= radius for r in rows) / len(rows)


def test_table_numbers_follow_their_definitions(tmp_path: Path) -> None:
    for seed, sigma in ((1, 0.25), (2, 0.5)):
        make_run(tmp_path / f"run{seed}", seed, sigma)
    radii, summaries = summarize(read([tmp_path])[0])
    everything = [draw_rows(1, 0.25), draw_rows(2, 0.5)]
    largest = max(r["radius"] for rows in everything for r in rows if r["correct"])
    assert radii == tuple(0.25 * k for k in range(20) if 0.25 * k <= largest)
    assert len(radii) > 4
    for rows, summary in zip(everything, summaries, strict=True):
        acr = sum(r["correct"] * r["radius"] for r in rows) / len(rows)
        assert summary.acr.value == pytest.approx(acr)
        assert summary.acr.low < acr < summary.acr.high
        assert [c.value for c in summary.certified] == [accuracy(rows, r) for r in radii]
        abstained = sum(r["predict"] == -1 for r in rows) / len(rows)
        assert 0 < abstained == summary.abstain.value


def test_a_radius_of_exactly_r_counts(tmp_path: Path) -> None:
    rows = draw_rows(1, 0.25)
    for row in rows:
        row |= {"predict": row["label"], "correct": 1, "radius": 0.25}
    (tmp_path / "log.tsv").write_text(tsv(rows))
    radii, (summary,) = summarize(read([tmp_path])[0])
    assert radii == (0.0, 0.25)
    assert [c.value for c in summary.certified] == [1.0, 1.0]


def test_nothing_correct_leaves_radius_0_alone(tmp_path: Path) -> None:
    rows = draw_rows(1, 0.25)
    for row in rows:
        row |= {"predict": -1, "correct": 0, "radius": 0.0}
    (tmp_path / "log.tsv").write_text(tsv(rows))
    certifications, _ = read([tmp_path])
    assert radii_for(certifications) == (0.0,)
    _, (summary,) = summarize(certifications)
    assert summary.acr == (0, 0, 0)
    assert summary.curve.accuracy.tolist() == [0.0]


def test_the_curve_is_the_definition_at_every_radius(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    rows = draw_rows(1, 0.25)
    _, (summary,) = summarize(read([tmp_path])[0])
    curve = summary.curve
    assert curve.radius[0] == 0
    for radius in [0.0, 1e-9, *(r["radius"] for r in rows), *np.linspace(0, 1.2, 101)]:
        k = int(np.searchsorted(curve.radius, radius, side="left"))
        step = curve.accuracy[k] if k < len(curve.radius) else 0.0
        assert step == pytest.approx(accuracy(rows, radius))
    assert (curve.low <= curve.accuracy).all()
    assert (curve.accuracy <= curve.high).all()


def test_intervals_of_proportions_are_those_of_resampling() -> None:
    rng = random.Random(0)
    n, count = 60, 21
    outcomes = [i < count for i in range(n)]
    shares = sorted(sum(rng.choices(outcomes, k=n)) / n for _ in range(8000))
    value, low, high = proportion(float(count), n)
    assert value == count / n
    # 8,000 resamples fix a quantile to within one image.
    assert low == pytest.approx(shares[200], abs=1.01 / n)
    assert high == pytest.approx(shares[7800], abs=1.01 / n)
    # Of many images, where 90 % would be 7 images narrower at either end.
    counts = np.sort(np.random.default_rng(0).binomial(2000, 0.35, 200_000))
    _, low, high = proportion(700.0, 2000)
    assert 2000 * low == pytest.approx(counts[5_000], abs=1.01)
    assert 2000 * high == pytest.approx(counts[195_000], abs=1.01)


def test_interval_of_a_mean_is_that_of_resampling_and_repeats() -> None:
    rng = random.Random(0)
    values = [rng.expovariate(1.0) for _ in range(50)]
    means = sorted(sum(rng.choices(values, k=50)) / 50 for _ in range(8000))
    interval = bootstrap_mean(np.array(values))
    spread = means[7800] - means[200]
    assert interval.value == pytest.approx(sum(values) / 50)
    assert interval.low == pytest.approx(means[200], abs=0.06 * spread)
    assert interval.high == pytest.approx(means[7800], abs=0.06 * spread)
    assert bootstrap_mean(np.array(values)) == interval


def test_the_bootstrap_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        interval = bootstrap_mean(rng.normal(1.0, 0.5, 100))
        hits += interval.low <= 1.0 <= interval.high
    assert 178 <= hits <= 199  # Binomial(200, .94) leaves this range less than once in 500 times


def test_p_shares_count_every_image_once(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    rows = draw_rows(1, 0.25)
    _, (summary,) = summarize(read([tmp_path])[0])
    assert summary.p_shares is not None
    assert sum(summary.p_shares) == pytest.approx(1)
    expected = [
        sum(not r["correct"] and r["predict"] != -1 for r in rows),
        sum(r["predict"] == -1 for r in rows),
    ]
    for low, high in itertools.pairwise(P_EDGES):
        closed = high == P_EDGES[-1]
        expected.append(
            sum(
                bool(r["correct"]) and low <= r["p_lower"] and (closed or r["p_lower"] < high)
                for r in rows
            )
        )
    assert [round(share * len(rows)) for share in summary.p_shares] == expected
    assert sum(count > 0 for count in expected) >= 5


def ranks(values: list[float]) -> list[float]:
    """Ranks with ties at their mean."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]


def pearson(x: list[float], y: list[float]) -> float:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return top / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def test_correlations_of_estimated_and_certified_radius(tmp_path: Path) -> None:
    log = make_run(tmp_path / "run")
    rows, rng = draw_rows(1, 0.25), random.Random(5)
    estimated = {r["idx"]: r["radius"] * rng.uniform(0.5, 1.5) + 0.01 for r in rows[5:]}
    add_estimates(log, {"shared": estimated, "flat": dict.fromkeys(estimated, 1.0)})
    _, (summary,) = summarize(read([tmp_path])[0])
    shared, flat = summary.agreements
    certified = [r["radius"] for r in rows[5:]]
    x, y = certified, list(estimated.values())
    assert shared.estimator == "shared"
    assert shared.certified.tolist() == certified
    assert shared.pearson == pytest.approx(pearson(x, y))
    assert shared.spearman == pytest.approx(pearson(ranks(x), ranks(y)))
    assert sum(shared.kind == 2) == sum(r["correct"] for r in rows[5:])
    assert math.isnan(flat.pearson)
    assert math.isnan(flat.spearman)


def test_radii_on_another_scale_make_no_table_without_end() -> None:
    assert radii_up_to(4.1) == tuple(0.25 * k for k in range(17))
    assert radii_up_to(10.0)[-2:] == (9.75, 10.0)
    assert radii_up_to(200.0)[1] == 8.0
    for largest in (0.0, 11.0, 1e6, 1e300):
        radii = radii_up_to(largest)
        assert len(radii) <= 41
        assert radii[0] == 0
        assert radii[-1] <= largest
