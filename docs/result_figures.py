"""Figures: certified accuracy, ACR against seconds, estimated against certified radius.

A method has one colour in all of them, and an estimator one. Lines of methods are solid with Muon,
dashed with SGD, and dotted where the paper's method was changed until it learns.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from covprop.report.curves import RC
from covprop.report.style import line
from covprop.report.summary import Summary

BINS = 8
PANELS = 3
METHODS = ("late", "consistency", "gaussian", "macer", "reach", "radius", "radius-reference")
ESTIMATORS = ("shared", "linearized", "linearized:4", "calibrated")
SECONDS = (10, 20, 50, 100, 200, 500)
DASHED, DOTTED = (4, 2), (1, 1.5)


def method_look(method: str) -> dict[str, Any]:
    """Colour and dashes of a method."""
    name, _, variant = method.rpartition("-")
    base = name if variant in ("muon", "sample") else method
    if base not in METHODS:
        return {"color": "#777777"}
    look = {"color": line(METHODS.index(base)).light}
    dashes = {"muon": None, "sample": DOTTED}.get(variant, DASHED)
    return look | ({"dashes": dashes} if dashes else {})


def estimator_look(estimator: str) -> dict[str, Any]:
    """Colour of an estimator; its earlier form is dashed."""
    name, _, earlier = estimator.partition(" ")
    index = ESTIMATORS.index(name) if name in ESTIMATORS else len(ESTIMATORS)
    return {"color": line(index).light} | ({"dashes": DASHED} if earlier else {})


def certified_curves(jobs: Sequence[tuple[str, str, Sequence[Summary]]]) -> bytes:
    """Certified accuracy against radius, over the images of all seeds: (method, label, runs)."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(6.2, 4.0 + 0.2 * len(jobs)), layout="constrained")
        axes = figure.subplots()
        for method, name, members in jobs:
            rows = [member.certification.rows for member in members]
            reached = np.sort(np.concatenate([np.where(r.correct, r.radius, -1.0) for r in rows]))
            radius = np.concatenate([[0.0], reached[reached > 0]])
            share = 1 - np.searchsorted(reached, radius, side="left") / len(reached)
            acr = reached.clip(0).mean()
            label = f"{name}  (ACR {acr:.3f})"
            axes.step([*radius, radius[-1]], [*share, 0.0], **method_look(method), label=label)
        axes.set(xlabel=r"certified $\ell_2$ radius $r$", ylabel="certified accuracy")
        axes.set(xlim=(0, None), ylim=(0, 1))
        axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
        axes.grid(True)
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
        return _png(figure)


def time_to_acr(
    curves: Mapping[str, Sequence[tuple[float, float]]], thresholds: Sequence[float]
) -> bytes:
    """ACR against seconds of training, a point a finished run."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(6.2, 3.8), layout="constrained")
        axes = figure.subplots()
        for name, curve in curves.items():
            seconds, acr = zip(*sorted(curve), strict=True)
            look = method_look(name)
            filled = {} if "dashes" not in look else {"markerfacecolor": "white"}
            axes.plot(seconds, acr, marker="o", markersize=5, **look, **filled, label=name)
        for threshold in thresholds:
            axes.axhline(threshold, color="#999999", linewidth=0.7, dashes=(4, 3))
        axes.set(xscale="log", xlabel="seconds of training", ylabel="average certified radius")
        axes.set_xticks(SECONDS, [f"{second}" for second in SECONDS])
        axes.xaxis.set_minor_formatter("")
        every = [second for curve in curves.values() for second, _ in curve]
        axes.set_xlim(0.9 * min(every), 1.1 * max(every))
        axes.grid(True)
        axes.legend(frameon=False)
        return _png(figure)


def calibration(models: Sequence[tuple[str, Summary]]) -> bytes:
    """Mean certified radius by bins of the estimated one, a panel a model."""
    distinct = dict(models)
    across = min(PANELS, len(distinct))
    down = -(-len(distinct) // across)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(3.1 * across, 2.9 * down), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(distinct) :]:
            axes.set_visible(False)
        for axes, (name, summary) in zip(grid.flat, distinct.items(), strict=False):
            end = 0.0
            for agreement in summary.agreements:
                x, y = binned(agreement.estimated, agreement.certified)
                look = estimator_look(agreement.estimator)
                axes.plot(x, y, marker="o", markersize=3, **look, label=agreement.estimator)
                end = max(end, float(agreement.certified.max(initial=0.0)))
            axes.plot([0, end], [0, end], color="#999999", linewidth=0.8, dashes=(4, 3))
            limit = 3 * end or 1
            for drawn in axes.lines:
                if min(drawn.get_xdata()) > limit:
                    drawn.set_label(f"{drawn.get_label()} (farther right)")
            axes.set(xlabel="estimated radius", ylabel="certified radius", xlim=(0, limit))
            axes.set_title(name, fontsize=8, loc="left")
            axes.grid(True)
            axes.legend(frameon=False)
        return _png(figure)


def binned(
    estimated: np.ndarray[tuple[int], np.dtype[np.float64]],
    certified: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> tuple[list[float], list[float]]:
    """Mean estimated and mean certified radius in bins of equally many images."""
    order = np.argsort(estimated, kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    return (
        [float(estimated[part].mean()) for part in parts],
        [float(certified[part].mean()) for part in parts],
    )


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
