"""What an exhibit is, and how its figure becomes PNG and SVG.

A PNG stands on white, in print and on a dark page alike. An SVG has the same colours, and a style
sheet that exchanges them, background included, where the reader prefers a dark page; programs
that know no style sheets show it as it is.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from covprop.report.curves import RC as REPORT_RC
from covprop.report.curves import new_figure as new_figure  # of this module too
from covprop.report.style import any_letters, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

INK, DIM, GRID, PAPER = "#1b1f24", "#5c6670", "#e2e5ea", "#ffffff"
SAMPLES, TRACKED, LINEAR, EXACT, BOX, OTHER = (line(i).light for i in (0, 1, 2, 3, 4, 6))
"""One colour for one way to see the noise: samples blue, the tracked covariance orange, the
linearised one green, the exact one purple, interval bounds ochre."""

DARK = {
    **{line(i).light.lower(): line(i).dark for i in range(7)},
    **{INK: "#e7eaee", DIM: "#9aa4b0", GRID: "#2c323a", PAPER: "#14171b"},
    **{"#444444": "#b9c1ca", "#666666": "#8d96a1"},
}
RC: dict[Any, Any] = {
    **REPORT_RC,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.edgecolor": DIM,
    "xtick.color": DIM,
    "ytick.color": DIM,
    "grid.color": GRID,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "mathtext.fontset": "dejavusans",
}
Cell = str | int | float | None
RawTable = tuple[Sequence[str], Sequence[Sequence[Cell]]]


@dataclass(frozen=True)
class Exhibit:
    """A figure or a table, the data behind it, and a caption that says how to read it."""

    name: str  # stem of its files
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    figure: Figure | None = None
    tabulated: bool = False  # whether the page shows the rows as a table
    raw: Mapping[str, RawTable] = field(default_factory=dict)  # draws and grids: stem -> table

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Every file of the exhibit: name.csv, and name.png and name.svg where it has a figure."""
        made = {f"{self.name}.csv": comma_separated(self.columns, self.rows)}
        for stem, table in self.raw.items():
            made[f"{self.name}_{stem}.csv"] = comma_separated(*table, digits=4)
        if self.figure is not None:
            made[f"{self.name}.png"] = encode(self.figure, "png")
            made[f"{self.name}.svg"] = encode(self.figure, "svg")
        return made


def comma_separated(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], digits: int = 6
) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{c:.{digits}g}" if isinstance(c, float) else c for c in row])
    return text.getvalue().encode()


@contextmanager
def look() -> Iterator[None]:
    """matplotlib in the style of the reports."""
    import matplotlib

    with matplotlib.rc_context(RC), any_letters():
        yield


def encode(figure: Figure, kind: str) -> bytes:
    """The bytes of a figure; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with look():
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue() if kind == "png" else adapt(buffer.getvalue().decode()).encode()


def adapt(svg: str) -> str:
    """An SVG that turns dark with the page around it."""
    used = {colour for colour in DARK if colour in svg}
    swaps = "".join(
        f'[style*="{kind}: {colour}"]{{{kind}:{DARK[colour]}!important}}'
        for colour in sorted(used)
        for kind in ("fill", "stroke")
        if f"{kind}: {colour}" in svg
    )
    style = f"<style>@media (prefers-color-scheme:dark){{{swaps}}}</style>"
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    return re.sub(r"(<svg\b[^>]*>)", rf"\1{style}", svg, count=1)


def density(axes: Axes, points: NDArray[np.float64]) -> None:
    """Samples [n, 2] as a two-dimensional histogram: the more, the less transparent."""
    from matplotlib.colors import to_rgb

    bins = 60
    low, high = points.min(0), points.max(0)
    pad = 0.04 * (high - low) + 1e-9
    x_edges = np.linspace(low[0] - pad[0], high[0] + pad[0], bins + 1)
    y_edges = np.linspace(low[1] - pad[1], high[1] + pad[1], bins + 1)
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], (x_edges, y_edges))
    full = np.quantile(counts[counts > 0], 0.9)  # a ReLU piles samples up in a few bins
    shade = (counts.T / full).clip(0, 1) ** 0.6
    rgba = np.empty((*shade.shape, 4))
    rgba[..., :3], rgba[..., 3] = to_rgb(SAMPLES), 0.9 * shade
    extent = (x_edges[0], x_edges[-1], y_edges[0], y_edges[-1])
    axes.imshow(
        rgba, extent=extent, origin="lower", aspect="auto", interpolation="none", zorder=1.8
    )


def ellipse_points(
    mean: NDArray[np.float64], cov: NDArray[np.float64], deviations: float
) -> NDArray[np.float64]:
    """The curve (x − μ)ᵀ Σ⁻¹ (x − μ) = deviations², [n, 2]."""
    values, vectors = np.linalg.eigh(cov)
    angle = np.linspace(0, 2 * np.pi, 121)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    return mean + deviations * (vectors @ (np.sqrt(values.clip(0))[:, None] * circle)).T


def ellipses(
    axes: Axes,
    mean: NDArray[np.float64],
    cov: NDArray[np.float64],
    colour: str,
    label: str,
    dash: tuple[float, ...] = (),
) -> None:
    """One and two standard deviations, and the mean."""
    for deviations, width in ((1, 1.8), (2, 1.1)):
        curve = ellipse_points(mean, cov, deviations)
        named = label if deviations == 1 else "_"
        axes.plot(*curve.T, color=colour, linewidth=width, label=named,
                  dashes=dash or (None, None))  # fmt: skip
    axes.plot(*mean, marker="+", color=colour, markersize=7, markeredgewidth=1.4)


def square(axes: Axes, *points: NDArray[np.float64]) -> None:
    """The same scale along both axes, on a square that holds all points [n, 2]."""
    every = np.concatenate(points)
    low, high = every.min(0), every.max(0)
    half = 0.54 * float((high - low).max())
    x, y = map(float, 0.5 * (low + high))
    axes.set(xlim=(x - half, x + half), ylim=(y - half, y + half))
    axes.set_box_aspect(1)


def swatch(colour: str) -> Any:
    """A legend's handle for something drawn as density or bars."""
    from matplotlib.patches import Patch

    return Patch(color=colour, alpha=0.8, linewidth=0)
