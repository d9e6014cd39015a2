"""The figures of the benchmarks, as SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from covprop.report.style import line

Points = Sequence[tuple[float, float]]


def bars(values: Mapping[str, float], label: str, scale: float = 1.0) -> bytes:
    """One horizontal bar a name, with its value."""
    figure, axes = _figure(0.45 * len(values) + 1.0)
    names = list(values)[::-1]
    heights = [scale * values[name] for name in names]
    drawn = axes.barh(names, heights, color=line(0).light)
    axes.bar_label(drawn, fmt="%.3g", padding=3)
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    return _svg(figure)


def lines(series: Mapping[str, Points], x: str, y: str, log: bool = True) -> bytes:
    """One line a name, markers at what was measured."""
    figure, axes = _figure(4.0)
    for index, (name, points) in enumerate(series.items()):
        look = line(index)
        dash: Any = (0, look.dash) if look.dash else "solid"
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axes.plot(xs, ys, marker="o", label=name, color=look.light, linestyle=dash)
    if log:
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


def fit(points: Points, names: Sequence[str], slope: float, start: float, x: str, y: str) -> bytes:
    """Named points and the straight line through them."""
    figure, axes = _figure(4.0)
    for (at, value), name in zip(points, names, strict=True):
        axes.annotate(name, (at, value), textcoords="offset points", xytext=(6, -10), fontsize=8)
    axes.plot(*zip(*points, strict=True), "o", color=line(0).light)
    ends = [0.0, max(at for at, _ in points)]
    axes.plot(ends, [start + slope * end for end in ends], color=line(1).light, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
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
