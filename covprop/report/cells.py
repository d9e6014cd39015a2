"""The cells of a report's tables: numbers with their intervals as people read them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from covprop.report.read import Certification
from covprop.report.summary import Interval

ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """What a reader sees, the interval's half-width, and what a click on the header sorts by."""

    text: str
    plus_minus: str = ""
    value: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class Column:
    title: str
    cells: tuple[Cell, ...]
    numeric: bool = True
    radius: float | None = None  # set on the columns of certified accuracy


def by_row(table: Sequence[Column]) -> list[tuple[Cell, ...]]:
    """The cells of a table row by row."""
    return list(zip(*(column.cells for column in table), strict=True))


def mean_cell(values: NDArray[np.float64]) -> Cell:
    return number_cell(round(float(values.mean()), 3) if len(values) else None)


def correlation_cell(value: float) -> Cell:
    return Cell(ABSENT) if math.isnan(value) else Cell(f"{value:.2f}", value=value)


def number_cell(value: float | None) -> Cell:
    return Cell(ABSENT) if value is None else Cell(f"{value:g}", value=value)


def as_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def samples_cell(certification: Certification) -> Cell:
    """How many samples an image had of how many, and what a sequential certification was asked."""
    most, mean = as_float(certification.meta.get("n")), certification.samples
    if mean is None or most is None:
        return number_cell(most if mean is None else mean)
    mode = str(certification.meta.get("mode", ""))
    if "sequential" not in mode and not certification.rows.skipped.any():
        return Cell(f"{most:,.0f}", value=mean)
    within = re.search(r"within ([\d.e-]+)", mode)
    delta = f", δ {within[1]}" if within else ""
    return Cell(f"{mean:,.0f} of {most:,.0f}{delta}", value=mean)


def interval_cell(interval: Interval, scale: float, digits: int) -> Cell:
    return Cell(
        f"{scale * interval.value:.{digits}f}",
        f"±{scale * interval.half:.{digits}f}" if interval.half > 0 else "",
        interval.value,
        interval,
    )


def abstain_cell(interval: Interval, certification: Certification) -> Cell:
    """In per cent; a lower bound where wrong guesses were not bounded, and some would abstain."""
    if certification.rows.skipped.any():
        return Cell(f"≥ {100 * interval.value:.1f}", value=interval.value)
    return interval_cell(interval, 100, 1)


def duration(seconds: float) -> str:
    """A span of time as people say it.

    >>> duration(42.3), duration(754), duration(8100)
    ('42.3 s', '12 min 34 s', '2 h 15 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def duration_cell(seconds: float | None) -> Cell:
    return Cell(ABSENT) if seconds is None else Cell(duration(seconds), value=seconds)


def training_cell(certification: Certification) -> Cell:
    """How long a run was trained, and how far, if not to its end."""
    cell = duration_cell(certification.train_seconds)
    if not certification.unfinished:
        return cell
    known = [cell.text] if cell.text != ABSENT else []
    return replace(cell, text=", ".join([*known, certification.unfinished]))
