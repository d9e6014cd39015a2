"""One row a method, one column a data set and noise: for make_results.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from result_points import Point, failures, grid, plus_minus, points

from covprop.report.differences import comparable, difference

OVERVIEW = {
    "MNIST": ("mnist-0.25", "mnist-0.50"),
    "SVHN": ("svhn-0.25", "svhn-0.50"),
    "CIFAR-10": ("cifar10-0.25", "cifar10-0.50", "cifar10-1.00"),
}
VARIANT = re.compile(
    r"-(\d+epochs|steps|warmup|from-start|no-norm|compiled|lr[\d.]+|lambda[\d.]+)(?=-|$)"
)


def overview_table(results: Path, methods: Sequence[str], paper: dict[str, str]) -> str:
    """The ACR of each method; of its rows that of most seeds, among equals the highest."""
    rows = [["published by the paper", *(paper.get(wave, "–") for wave in waves())]]
    found = [(points(results, wave), failures(results, wave)) for wave in waves()]
    for method in methods:
        cells = []
        for ended, not_ended in found:
            best = row_of(ended, [method])
            failed: list[dict[str, Any]] = [f for f in not_ended if is_of(f["name"], method)]
            cells.append(with_seeds(best) if best else failed[0]["why"] if failed else "–")
        rows.append([f"`{method}`", *cells])
    return grid(["ACR", *waves().values()], rows)


def leads_table(results: Path, ours: Sequence[str], others: Sequence[str]) -> str:
    """What the best of our methods has over each other one.

    Each by the row that the overview has of it. ± is the standard error over images.
    """
    found = [points(results, wave) for wave in waves()]
    best = [row_of(ended, ours) for ended in found]
    rows = [["best", *(f"`{point.name}`" if point else "–" for point in best)]]
    for method in others:
        theirs = [row_of(ended, [method]) for ended in found]
        pairs = zip(best, theirs, strict=True)
        rows.append([f"over `{method}`", *(lead(*pair) for pair in pairs)])
    return grid(["lead in ACR", *waves().values()], rows) if any(best) else ""


def waves() -> dict[str, str]:
    """The waves of the tables, and what each is called in a title."""
    named = [
        (wave, f"{data}, σ = {wave.split('-')[1]}") for data in OVERVIEW for wave in OVERVIEW[data]
    ]
    return dict(named)


def row_of(found: Iterable[Point], methods: Sequence[str]) -> Point | None:
    """Of all rows of these methods that of most seeds, and among equals the highest."""
    of_these = [p for p in found if any(is_of(p.name, method) for method in methods)]
    return max(of_these, key=lambda p: (p.seeds, p.group.acr[0]), default=None)


def best_rows(found: Sequence[Point]) -> dict[str, Point]:
    """The row of every method that has one, best first."""
    methods = dict.fromkeys(VARIANT.sub("", point.name) for point in found)
    best = {method: point for method in methods if (point := row_of(found, [method]))}
    return dict(sorted(best.items(), key=lambda item: -item[1].group.acr[0]))


def is_of(job: str, method: str) -> bool:
    """Whether a job is of a method, whatever its length, schedule or λ."""
    return VARIANT.sub("", job) == method


def with_seeds(point: Point) -> str:
    """The ACR, and over how many seeds where its ± is a deviation between them."""
    return plus_minus(point) + (f" ({point.seeds} seeds)" if point.seeds > 1 else "")


def lead(ours: Point | None, other: Point | None) -> str:
    """The difference of two rows with its standard error, image by image."""
    if ours is None or other is None or not comparable(ours.group, other.group):
        return "–"
    found = difference(ours.group, other.group)
    return f"{found.mean:+.3f} ± {found.error:.3f}".replace("-", "−")
