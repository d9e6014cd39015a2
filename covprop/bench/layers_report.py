"""The tables and figures of `covprop bench layers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from covprop.bench import memory, plots
from covprop.bench.layers import FORWARD, Cost, Depth, Fit, LayerTime, Passes, linear_fit
from covprop.bench.machine import Facts
from covprop.bench.report import Report, Table, mebibytes, milliseconds
from covprop.bench.subject import Subject


def layers_report(
    found: Sequence[Passes],
    bytes_by_batch: dict[int, tuple[int, int]],
    depths: Sequence[Depth],
    layers: Sequence[LayerTime],
    subject: Subject,
    facts: Facts,
) -> Report:
    """Everything `covprop bench layers` has to say."""
    tables = [_passes_table(found, subject), _memory_table(bytes_by_batch, subject)]
    notes = [f"Peak memory: {memory.HOW[subject.device.type]}."]
    rows: list[dict[str, object]] = [
        {
            "batch": one.batch,
            "pass": side,
            "seconds": time.as_dict(),
            "over_forward": one.ratio(side),
        }
        for one in found
        for side, time in one.times.items()
    ]
    rows += [
        {"batch": batch, "plain_bytes": plain, "shared_bytes": shared}
        for batch, (plain, shared) in bytes_by_batch.items()
    ]
    if depths:
        fits = _fits(depths)
        tables += [_depth_table(depths), _fit_table(depths, fits)]
        notes += _verdicts(fits)
        rows += [
            {
                "model": one.model,
                "layers": one.layers,
                "work": one.work,
                "captured": one.captured,
                "flops": one.flops,
                "seconds": one.time.as_dict(),
            }
            for one in depths
        ]
        rows += [{"fit": by, "work": work, **asdict(fit)} for (work, by), fit in fits.items()]
    if layers:
        tables.append(_layer_table(layers))
        rows += [
            {"layer": one.name, "kind": one.kind, "seconds": one.time.as_dict()} for one in layers
        ]
    return Report(
        verb="layers",
        name=subject.name,
        facts=facts,
        settings=subject.settings(),
        rows=rows,
        tables=tables,
        notes=notes,
        figures=lambda: _figures(found, depths),
    )


def _passes_table(found: Sequence[Passes], subject: Subject) -> Table:
    rows = [
        [str(one.batch), side, milliseconds(time), f"{one.ratio(side):.3f}"]
        for one in found
        for side, time in one.times.items()
    ]
    title = f"Passes through {subject.name} ({subject.precision}), in turn"
    return Table(title, ["batch", "pass", "ms", "over plain forward"], rows, left=2)


def _memory_table(bytes_by_batch: dict[int, tuple[int, int]], subject: Subject) -> Table:
    rows = [
        [str(batch), mebibytes(plain), mebibytes(shared), f"{shared / plain:.3f}"]
        for batch, (plain, shared) in bytes_by_batch.items()
    ]
    columns = ["batch", "plain, MiB", "shared, MiB", "shared over plain"]
    return Table(f"Peak memory of a training step of {subject.name}, eager", columns, rows)


def _depth_table(depths: Sequence[Depth]) -> Table:
    rows = [
        [
            one.model,
            one.work,
            "CUDA graph" if one.captured else "eager",
            str(one.layers),
            milliseconds(one.time),
            f"{1e6 * one.time.median / one.layers:.1f}",
            f"{one.flops / 1e9:.2f}",
            f"{one.flops / one.time.median / 1e9:,.0f}",
        ]
        for one in depths
    ]
    columns = ["network", "covariance pass", "run as", "layers", "ms", "µs a layer", "GFLOP"]
    columns += ["GFLOP/s"]
    return Table("Covariance pass by depth, in turn", columns, rows, left=3)


Fits = dict[tuple[str, Cost], Fit]


def _fits(depths: Sequence[Depth]) -> Fits:
    """Every pass against the number of layers and against its operations."""
    works = dict.fromkeys(one.work for one in depths)
    costs: tuple[Cost, ...] = ("layers", "flops")
    return {
        (work, by): linear_fit([one for one in depths if one.work == work], by)
        for work in works
        for by in costs
    }


def _fit_table(depths: Sequence[Depth], fits: Fits) -> Table:
    names = list(dict.fromkeys(one.model for one in depths))
    rows = []
    for (work, by), fit in fits.items():
        slope = f"{1e6 * fit.slope:.2f} µs a layer"
        if by == "flops":
            slope = f"{1e15 * fit.slope:.2f} µs a GFLOP"
        residuals = [f"{1e3 * left:+.3f}" for left in fit.residuals]
        start, share = f"{1e3 * fit.start:+.3f}", f"{fit.r_squared:.4f}"
        rows.append([work, by, slope, start, share, *residuals])
    columns = ["covariance pass", "against", "slope", "intercept, ms", "R²"]
    columns += [f"{name}: measured − fitted, ms" for name in names]
    return Table("Straight lines through these times", columns, rows, left=2)


def _verdicts(fits: Fits) -> list[str]:
    """Which of the two explains the time better, in words."""
    notes = []
    for work in dict.fromkeys(work for work, _ in fits):
        layers, flops = fits[work, "layers"], fits[work, "flops"]
        better = (
            "number of layers" if layers.r_squared >= flops.r_squared else "number of operations"
        )
        notes.append(
            f"Covariance pass, {work}: R² = {layers.r_squared:.4f} against the number of layers, "
            f"{flops.r_squared:.4f} against the operations; the {better} explains it better."
        )
    notes.append(
        "PreActResNet-50 and 101 have bottleneck blocks, whose layers have other widths than those "
        "of 18 and 34: a line through all of them mixes two kinds of layer."
    )
    return notes


def _layer_table(layers: Sequence[LayerTime]) -> Table:
    total = sum(one.time.median for one in layers)
    rows = [
        [
            one.name,
            one.kind,
            str(one.channels),
            milliseconds(one.time),
            f"{100 * one.time.median / total:.1f}",
        ]
        for one in layers
    ]
    columns = ["layer", "operation", "channels", "ms", "% of all"]
    return Table("Covariance pass by layer", columns, rows, left=2)


def _figures(found: Sequence[Passes], depths: Sequence[Depth]) -> dict[str, bytes]:
    figures = {}
    if len(found) > 1:
        sides = [side for side in found[0].times if side != FORWARD]
        series = {side: [(one.batch, one.ratio(side)) for one in found] for side in sides}
        figures["batch"] = plots.lines(series, "batch", "time over a plain forward pass")
    labels = {"layers": "convolutions and linear layers", "flops": "GFLOP"}
    units = {"layers": 1.0, "flops": 1e9}
    lines: dict[str, dict[str, plots.Line]] = {"layers": {}, "flops": {}}
    for (work, by), fit in _fits(depths).items():
        mine = [one for one in depths if one.work == work]
        points = [(getattr(one, by) / units[by], 1e3 * one.time.median) for one in mine]
        names = [one.model for one in mine]
        lines[by][work] = plots.Line(points, names, 1e3 * units[by] * fit.slope, 1e3 * fit.start)
    for cost, drawn in lines.items():
        if drawn:
            name = "depth" if cost == "layers" else "operations"
            figures[name] = plots.fits(drawn, labels[cost], "covariance pass, ms")
    return figures
