"""The figures of the benchmarks, as SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from covprop.report.style import line

Points = Sequence[tuple[float, float]]


def bars(values: Mapping[str, float], label: str, notes: Mapping[str, str] | None = None) -> bytes:
    """One horizontal bar a name, with its value and what else there is to say."""
    figure, axes = _figure(0.45 * len(values) + 1.0)
    names = list(values)[::-1]
    drawn = axes.barh(names, [values[name] for name in names], color=line(0).light)
    said = [f"{values[name]:.3g}{(notes or {}).get(name, '')}" for name in names]
    axes.bar_label(drawn, said, padding=3)
    axes.set_xlabel(label)
    axes.margins(x=0.2)
    return _svg(figure)


def lines(series: Mapping[str, Points], x: str, y: str) -> bytes:
    """One line a name, markers at what was measured, on logarithmic axes."""
    figure, axes = _figure(4.0)
    for index, (name, points) in enumerate(series.items()):
        look = line(index)
        dash: Any = (0, look.dash) if look.dash else "solid"
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axes.plot(xs, ys, marker="o", label=name, color=look.light, linestyle=dash)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({point[0] for points in series.values() for point in points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)
    return _svg(figure)


class Line(NamedTuple):
    """Named points and the straight line fitted to them."""

    points: Points
    names: Sequence[str]
    slope: float
    start: float


def fits(series: Mapping[str, Line], x: str, y: str) -> bytes:
    """Named points and the straight line through them, for every name of the series."""
    figure, axes = _figure(4.0)
    for index, (label, one) in enumerate(series.items()):
        color = line(index).light
        for (at, value), name in zip(one.points, one.names, strict=True):
            axes.annotate(
                name, (at, value), textcoords="offset points", xytext=(6, -10), fontsize=8
            )
        axes.plot(*zip(*one.points, strict=True), "o", color=color, label=label)
        ends = [0.0, max(at for at, _ in one.points)]
        axes.plot(ends, [one.start + one.slope * end for end in ends], color=color, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)
    return _svg(figure)


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
