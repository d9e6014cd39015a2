"""ACR against seconds of training, by method: for make_results.py."""

from __future__ import annotations

from collections.abc import Sequence

from result_points import Point, base_name

from covprop.report.cells import duration


def curves(found: Sequence[Point]) -> dict[str, list[tuple[float, float]]]:
    """(seconds, ACR) of every point that was timed alone, by job whatever its length."""
    by_job: dict[str, list[tuple[float, float]]] = {}
    for point in found:
        if point.timed_alone and point.seconds is not None:
            place = (point.seconds, point.group.acr[0])
            by_job.setdefault(base_name(point.name), []).append(place)
    return by_job


def first_above(curve: Sequence[tuple[float, float]], threshold: float) -> str:
    """The shortest run that reaches a threshold."""
    return next((duration(s) for s, acr in sorted(curve) if acr >= threshold), "not reached")
