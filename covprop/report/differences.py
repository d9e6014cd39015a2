"""Differences between runs on the same images.

Most of the interval of an ACR is that some images are harder than others. They are so for every
run, so a difference taken image by image is known far better than the two numbers it is made of:

    d_i = c_i R_i of one run − c_i R_i of the other,    mean_i d_i ± t · std(d) / √n,

with c_i = 1 where image i is right and R_i its certified radius, and t Student's quantile. Runs of
several seeds enter by their mean at each image.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from covprop.report.cells import Cell, Column, number_cell
from covprop.report.images import images_certified
from covprop.report.seeds import Group
from covprop.report.summary import LEVEL

NOTE = (
    "A run less the best of those certified in the same way on the same images, image by image: ± "
    "is half the width of the 95 % interval over the images (paired t), and where it is the larger "
    "the two are not told apart. Runs of several seeds enter by their mean; how seeds differ is "
    "not in the interval. The best is the best on these images, which flatters it a little."
)


class Difference(NamedTuple):
    """The mean of a difference over images, and its standard error."""

    mean: float
    error: float
    images: int

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval; NaN for a single image."""
        return float(stats.t.ppf((1 + LEVEL) / 2, self.images - 1)) * self.error


def comparable(one: Group, other: Group) -> bool:
    """Whether both were certified in the same way on the same images, at the same noise."""
    return _certified_how(one) == _certified_how(other)


def _certified_how(group: Group) -> Hashable:
    c = group.members[0].certification
    way = (str(c.meta.get(key)) for key in ("n", "alpha", "mode"))
    return c.images_of, c.sigma, images_certified(c), *way


def difference(one: Group, other: Group, radius: float | None = None) -> Difference:
    """ACR of `one` less that of `other`, or the same of the certified accuracy at a radius."""
    values = _by_image(one, radius) - _by_image(other, radius)
    deviation = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return Difference(float(values.mean()), deviation / math.sqrt(len(values)), len(values))


def _by_image(group: Group, radius: float | None) -> NDArray[np.float64]:
    """What every image counts for, in the order of their numbers."""
    found = []
    for member in group.members:
        rows = member.certification.rows
        counts = (
            rows.correct * rows.radius if radius is None else rows.correct & (rows.radius >= radius)
        )
        found.append(counts[np.argsort(rows.idx)])
    return np.mean(found, axis=0, dtype=np.float64)


def difference_columns(radii: Sequence[float], groups: Sequence[Group]) -> list[Column]:
    """Every recipe less the best it compares with, by columns; empty if none compare."""
    pairs = [(group, best) for best, others in _compared(groups) for group in others]
    if not pairs:
        return []

    def cells(scale: float, digits: int, radius: float | None = None) -> tuple[Cell, ...]:
        return tuple(_cell(difference(*pair, radius), scale, digits) for pair in pairs)

    return [
        Column("recipe", tuple(Cell(group.name) for group, _ in pairs), numeric=False),
        Column("best", tuple(Cell(best.name) for _, best in pairs), numeric=False),
        Column("ACR", cells(1, 3)),
        *(Column(f"r={r:g}", cells(100, 1, r), radius=r) for r in radii),
        Column(
            "images", tuple(number_cell(len(g.members[0].certification.rows)) for g, _ in pairs)
        ),
    ]


def _compared(groups: Sequence[Group]) -> list[tuple[Group, list[Group]]]:
    """The best of each set of runs that compare, and the others, best first."""
    sets: dict[Hashable, list[Group]] = {}
    for group in groups:
        sets.setdefault(_certified_how(group), []).append(group)
    found = [sorted(members, key=lambda g: -g.acr[0]) for members in sets.values()]
    return [(members[0], members[1:]) for members in found if len(members) > 1]


def _cell(found: Difference, scale: float, digits: int) -> Cell:
    half = scale * found.half
    text = f"{scale * found.mean:+.{digits}f}".replace("-", "−")
    if not float(text[1:]):  # neither +0 nor −0
        text = text[1:]
    return Cell(text, f"±{half:.{digits}f}" if half > 0 else "", found.mean)
