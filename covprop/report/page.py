"""One HTML page that holds everything: no network, no fonts, no scripts but its own.

Text, axes and curves stand in the markup, so the page prints and reads without JavaScript; the
script adds sorting, hovering and switching runs on and off.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from covprop import __version__
from covprop.report.cells import Column, by_row, correlation_cell, duration
from covprop.report.grouped import grouped
from covprop.report.style import OUTCOMES, line
from covprop.report.summary import P_NAMES, Agreement, Curve, Summary
from covprop.report.tables import columns

# The drawing area of every plot: stretched to the page, while strokes keep their width.
SIDE = 1000
KINDS = ("wrong", "abstained", "correct")


def render(
    radii: Sequence[float],
    summaries: Sequence[Summary],
    warnings: Sequence[str] = (),
    folders: Sequence[str] = (),
) -> str:
    """The page as text; with `folders`, links to the pages there in the place of the figures.

    Example: `Path("report.html").write_text(render(*summarize(certifications)))`.
    """
    from markupsafe import Markup

    end = axis_end(max(float(s.curve.radius[-1]) for s in summaries))
    table = columns(radii, summaries)
    return filled(
        "covprop.report",
        title="Certified accuracy",
        script=Markup(_static("covprop.report", "page.js")),
        warnings=warnings,
        folders=[(folder, quote(f"{folder}/report.html")) for folder in folders],
        lines=[line(i) for i in range(len(summaries))],
        table=table,
        rows=by_row(table),
        scales=[_scale(column) for column in table],
        grouped=[
            (title, part, note, by_row(part)) for title, part, note in grouped(radii, summaries)
        ],
        runs=[_run(s, end) for s in summaries],
        ticks=ticks(end),
        outcomes=list(zip(P_NAMES, OUTCOMES, strict=True)),
        sources=sorted({s.certification.p_source for s in summaries if s.p_shares}),
        scatters=[_scatter(s, a) for s in summaries for a in s.agreements],
        skipped=any(s.certification.rows.skipped.any() for s in summaries),
        facts={"end": end, "runs": [_hover_facts(s) for s in summaries]},
    )


def filled(package: str, **values: Any) -> str:
    """A package's page.html with these values, in the look of the reports."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = Markup(_static("covprop.report", "page.css"))
    template = environment.from_string(_static(package, "page.html"))
    return template.render(version=__version__, style=style, **values)


def _static(package: str, name: str) -> str:
    return (resources.files(package) / "static" / name).read_text(encoding="utf-8")


def axis_end(largest: float) -> float:
    """Where the radius axis ends: a little beyond the largest radius."""
    return largest * 1.03 if largest > 0 else 1.0


def ticks(end: float) -> list[tuple[str, float]]:
    """Labels of an axis from 0 to `end`, with their places in per cent of its length."""
    rough = end / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    count = int(end / step + 1e-9)
    return [(f"{k * step:.4g}", round(100 * k * step / end, 3)) for k in range(count + 1)]


def _scale(column: Column) -> float:
    """What fills the bar behind a column's numbers: 100 % for accuracy, the largest for ACR."""
    if column.radius is not None:
        return 1.0
    return max(c.value or 0.0 for c in column.cells) if column.title == "ACR" else 0.0


def _run(summary: Summary, end: float) -> dict[str, Any]:
    c, curve = summary.certification, summary.curve
    facts = {
        "log": str(c.path),
        "images": f"{len(c.rows):,}",
        "σ": "unknown" if c.sigma is None else f"{c.sigma:g}",
        "certification": f"{duration(float(c.rows.seconds.sum()))} in all, "
        f"{duration(float(c.rows.seconds.mean()))} an image",
    }
    if c.rows.skipped.any():
        facts["wrong guesses"] = f"{c.rows.skipped.sum():,} were not bounded"
    if c.samples is not None:
        facts["samples"] = f"{c.samples:,.0f} an image on average"
    if c.p_source:
        facts["lower bound of p_A"] = c.p_source
    if c.train_seconds is not None:
        facts["training"] = f"{duration(c.train_seconds)}, {c.unfinished or f'{c.epochs} epochs'}"
    facts |= {key: _plain(value) for key, value in c.meta.items() if key != "sigma"}
    return {
        "name": c.name,
        "acr": f"{summary.acr.value:.3f}",
        "path": step_path(curve.radius, curve.accuracy, end),
        "band": band_path(curve, end),
        "shares": summary.p_shares,
        "facts": facts,
        "config": c.config_text,
    }


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _hover_facts(summary: Summary) -> dict[str, Any]:
    curve = summary.curve
    return {
        "name": summary.certification.name,
        "x": _rounded(curve.radius),
        "y": _rounded(curve.accuracy),
        "lo": _rounded(curve.low),
        "hi": _rounded(curve.high),
    }


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [round(float(v), 6) for v in values]


def _points(x: Iterable[float], y: Iterable[float], end: float) -> list[tuple[str, str]]:
    return [(f"{SIDE * a / end:.1f}", f"{SIDE * (1 - b):.1f}") for a, b in zip(x, y, strict=True)]


def step_path(x: NDArray[np.float64], y: NDArray[np.float64], end: float) -> str:
    """SVG path of a step curve where y[k] holds up to x[k] and 0 beyond the last."""
    points = _points(x, y, end)
    path = [f"M{points[0][0]} {points[0][1]}"]
    for px, py in points[1:]:
        path.append(f"V{py}H{px}")
    return "".join([*path, f"V{SIDE}"])


def band_path(curve: Curve, end: float) -> str:
    """SVG outline between the ends of the interval: there along the top, back along the bottom."""
    top = step_path(curve.radius, curve.high, end).removesuffix(f"V{SIDE}")
    points = _points(curve.radius, curve.low, end)[::-1]
    back = [f"L{points[0][0]} {points[0][1]}"]
    for (_, py), (px, _) in itertools.pairwise(points):
        back.append(f"V{py}H{px}")
    return f"{top}{''.join(back)}V{points[-1][1]}Z"


def _scatter(summary: Summary, agreement: Agreement) -> dict[str, Any]:
    x, y = agreement.certified, agreement.estimated
    right = axis_end(float(x.max(initial=0.0)))
    low, top = min(0.0, float(y.min(initial=0.0))), float(y.max(initial=0.0))
    top = axis_end(top) if top > 0 else 1.0
    dots = []
    for kind, label in enumerate(KINDS):
        chosen = agreement.kind == kind
        places = _points(x[chosen], (y[chosen] - low) / (top - low), right)
        dots.append((label, int(chosen.sum()), "".join(f"M{px} {py}h0" for px, py in places)))
    equal = min(right, top)
    return {
        "name": summary.certification.name,
        "estimator": agreement.estimator,
        "images": len(x),
        "pearson": correlation_cell(agreement.pearson).text,
        "spearman": correlation_cell(agreement.spearman).text,
        "dots": dots,
        "equal": "M{} {}L{} {}".format(
            *_points([0.0], [-low / (top - low)], right)[0],
            *_points([equal], [(equal - low) / (top - low)], right)[0],
        ),
        "x_ticks": ticks(right),
        "y_ticks": [(t, 100 * (p / 100 * top - low) / (top - low)) for t, p in ticks(top)],
    }
