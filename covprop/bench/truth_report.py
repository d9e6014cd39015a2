"""The table of `covprop bench truth`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from covprop.bench.machine import Facts
from covprop.bench.report import Report, Table
from covprop.estimate.truth import Truth


def truth_report(
    rows: Sequence[Truth], name: str, sigma: float, samples: int, facts: Facts
) -> Report:
    """Predicted over Monte Carlo variance of the margin, one row an estimator."""
    columns = ["estimator", "10 %", "50 %", "90 %", "correlation of logarithms", "images"]
    title = f"Predicted over Monte Carlo margin variance, {name}, σ = {sigma:g}"
    notes = [
        f"Monte Carlo: {samples} samples an image, a relative error of about "
        f"{math.sqrt(2 / samples):.2g}; 1 is the truth, above 1 the estimate is cautious."
    ]
    notes += [f"{row.estimator}: {row.note}" for row in rows if row.note]
    return Report(
        verb="truth",
        name=name,
        facts=facts,
        settings={"sigma": sigma, "samples": samples},
        rows=[{k: _plain(v) for k, v in asdict(row).items()} for row in rows],
        tables=[Table(title, columns, [_cells(row) for row in rows])],
        notes=notes,
    )


def _cells(row: Truth) -> list[str]:
    figures = (row.low, row.median, row.high, row.correlation)
    shown = ["–" if math.isnan(value) else f"{value:.3g}" for value in figures]
    return [row.estimator, *shown, str(row.images)]


def _plain(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value
