"""Estimated against certified radius: for make_results.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from result_points import Point, grid, points, ratios

from covprop.report.summary import Summary

SUMMARIZED = ("linearized:4", "linearized", "calibrated", "shared")


def truth_table(results: Path, wave: str) -> tuple[str, list[tuple[str, Summary]]]:
    """A row for every estimate of every trained model, and these models; ("", []) without any."""
    trained = estimated(results, wave)
    if not trained:
        return "", []
    collapsed = [p for p in trained if all(math.isnan(a.pearson) for a in p.estimated.agreements)]
    found = [(p, a) for p in trained if p not in collapsed for a in p.estimated.agreements]
    rows = []
    for point, agreement in found:
        means = [f"{r.mean():.3f}" for r in (agreement.certified, agreement.estimated)]
        agree = [number(value) for value in (agreement.pearson, agreement.spearman)]
        spread = " / ".join(map(number, ratios(point.estimated, agreement)))
        rows.append([f"`{point.name}`", agreement.estimator, *means, *agree, spread])
    titles = ["job", "estimator", "mean certified", "mean estimated", "Pearson", "Spearman"]
    left_out = any(p.estimated.certification.rows.skipped.any() for p, _ in found)
    note = "\nImages whose guess was wrong were not bounded and are left out.\n" * left_out
    note += "\nMean certified is no ACR: a wrong answer counts with its radius, if it has one, "
    note += "not as 0.\n"
    if collapsed:
        names = ", ".join(f"`{point.name}`" for point in collapsed)
        note += f"\nAll images certified alike, so that there is nothing to compare: {names}.\n"
    text = grid([*titles, "estimated / certified, 10 / 50 / 90 %"], rows) + note
    return text, [(p.name, p.estimated) for p, _ in found]


def truth_summary(results: Path, waves: Sequence[str]) -> str:
    """Each estimator's median ratio and rank correlation, from lowest to highest network.

    Networks that were trained for an estimate are not among them (their jobs begin with "radius").
    "" where none of the waves has estimates.
    """
    rows = []
    for wave in waves:
        trained = [p for p in estimated(results, wave) if not p.name.startswith("radius")]
        if not trained:
            continue
        cells = []
        for estimator in SUMMARIZED:
            found = [
                (ratios(p.estimated, a)[1], a.spearman)
                for p in trained
                for a in p.estimated.agreements
                if a.estimator == estimator and not math.isnan(a.spearman)
            ]
            medians = [median for median, _ in found if not math.isnan(median)]
            cells += [span(medians) + f" ({len(medians)})" * bool(medians)]
            cells += [span([rank for _, rank in found])]
        rows.append([f"`{wave}`", *cells])
    titles = ["wave", *(title for name in SUMMARIZED for title in (f"`{name}`", "rank"))]
    return grid(titles, rows) if rows else ""


def estimated(results: Path, wave: str) -> list[Point]:
    """The runs of a wave whose radii were estimated."""
    return [point for point in points(results, wave) if point.estimated.agreements]


def span(values: list[float]) -> str:
    """The lowest and the highest, once if they are the same to two digits."""
    if not values:
        return "–"
    return " to ".join(dict.fromkeys(number(value) for value in (min(values), max(values))))


def number(value: float) -> str:
    """Two decimals, or a dash where there is none (all radii alike, or none inside)."""
    return "–" if math.isnan(value) else f"{value:.2f}"
