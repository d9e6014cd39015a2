"""The tables and figures of `covprop bench layers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from covprop.bench import memory, plots
from covprop.bench.layers import FORWARD, Depth, Layer, Passes, linear_fit
from covprop.bench.machine import Facts
from covprop.bench.report import Report, Table, mebibytes, milliseconds
from covprop.bench.subject import Subject
from covprop.bench.timing import Timing


def _ms(time: Timing) -> str:
    return milliseconds(time.median, time.low, time.high)


def layers_report(
    found: Sequence[Passes],
    bytes_by_batch: dict[int, tuple[int, int]],
    depths: Sequence[Depth],
    layers: Sequence[Layer],
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
        fit, work = linear_fit(depths), linear_fit(depths, "flops")
        tables.append(_depth_table(depths))
        notes.append(
            f"Covariance pass: {1e6 * fit.slope:.1f} µs a layer "
            f"{1e6 * fit.start:+.1f} µs, R² = {fit.r_squared:.4f}; "
            f"against the floating-point operations R² = {work.r_squared:.4f}."
        )
        rows += [
            {
                "model": one.model,
                "layers": one.layers,
                "flops": one.flops,
                "seconds": one.time.as_dict(),
            }
            for one in depths
        ]
        rows += [{"fit": "layers", **asdict(fit)}, {"fit": "flops", **asdict(work)}]
    if layers:
        tables.append(_layer_table(layers))
        rows += [
            {"layer": one.name, "kind": one.kind, "seconds": one.time.as_dict()} for one in layers
        ]
    return Report(
        verb="layers",
        name=subject.name,
        facts=facts,
        settings={
            "model": subject.model,
            "width": subject.width,
            "norm": subject.norm,
            "image_shape": list(subject.image_shape),
            "precision": subject.precision,
        },
        rows=rows,
        tables=tables,
        notes=notes,
        figures=lambda: _figures(found, depths),
    )


def _passes_table(found: Sequence[Passes], subject: Subject) -> Table:
    rows = [
        [str(one.batch), side, _ms(time), f"{one.ratio(side):.3f}"]
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
            str(one.layers),
            _ms(one.time),
            f"{1e6 * one.time.median / one.layers:.1f}",
            f"{one.flops / 1e9:.2f}",
            f"{one.flops / one.time.median / 1e9:,.0f}",
        ]
        for one in depths
    ]
    columns = ["network", "layers", "covariance pass, ms", "µs a layer", "GFLOP", "GFLOP/s"]
    return Table("Covariance pass by depth, in turn", columns, rows)


def _layer_table(layers: Sequence[Layer]) -> Table:
    total = sum(one.time.median for one in layers)
    rows = [
        [
            one.name,
            one.kind,
            str(one.channels),
            _ms(one.time),
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
    if depths:
        fit = linear_fit(depths)
        points = [(one.layers, 1000 * one.time.median) for one in depths]
        names = [one.model for one in depths]
        slope, start = 1000 * fit.slope, 1000 * fit.start
        figures["depth"] = plots.fit(
            points, names, slope, start, "convolutions and linear layers", "covariance pass, ms"
        )
    return figures
