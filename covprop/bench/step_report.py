"""The table and the figures of `covprop bench step`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from covprop.bench import memory, plots
from covprop.bench.machine import Facts
from covprop.bench.report import Report, Table, mebibytes, milliseconds
from covprop.bench.step import METHODS, Cell
from covprop.bench.subject import Subject
from covprop.bench.timing import Effort


def best(cells: Sequence[Cell], method: str, batch: int) -> Cell | None:
    """A method's cell with the smallest ratio over the fastest plain step."""
    mine = [c for c in cells if (c.method, c.batch) == (method, batch) and c.time]
    return min(mine, key=lambda cell: cell.ratio, default=None)


def file_name(subject: Subject, methods: Sequence[str], batches: Sequence[int]) -> str:
    """What tells one measurement from another: subject, precision, batches, and the methods
    where they are not all."""
    parts = [subject.name, subject.precision, "b" + "-".join(map(str, batches))]
    chosen = [name for name in METHODS if name in methods and name != "plain"]
    if len(chosen) + 1 < len(METHODS):
        parts.append("_".join(chosen) or "plain")
    return "_".join(parts)


def step_report(
    cells: Sequence[Cell], subject: Subject, tricks: Sequence[str], effort: Effort, facts: Facts,
    name: str | None = None,
) -> Report:  # fmt: skip
    """Everything `covprop bench step` has to say; `name` is the file's, the subject's without."""
    batches = list(dict.fromkeys(cell.batch for cell in cells))
    names = [name for name in METHODS if any(cell.method == name for cell in cells)]
    rows = [row for b in batches for m in names if (row := _row(cells, m, b, tricks))]
    columns = ["batch", "method", *(f"{trick}, ms" for trick in tricks)]
    columns += ["fastest", "over fastest plain", "peak MiB", "memory over plain"]
    title = (
        f"One training step of {subject.name} ({subject.precision}): median (10 %–90 %)"
        f" of {effort.rounds}"
    )
    how = "channels last" if subject.device.type == "cuda" else "contiguous"
    return Report(
        verb="step",
        name=name or subject.name,
        facts=facts,
        settings={
            **subject.settings(),
            "layout": how,
            "tricks": list(tricks),
            "warmup": effort.warmup,
            "rounds": effort.rounds,
        },
        rows=[_record(cell) for cell in cells],
        tables=[Table(title, columns, rows, left=2)],
        notes=[*_comparisons(cells, batches), *_notes(cells, subject)],
        figures=lambda: _figures(cells, names, batches),
    )


def _row(cells: Sequence[Cell], method: str, batch: int, tricks: Sequence[str]) -> list[str]:
    mine = {c.trick: c for c in cells if (c.method, c.batch) == (method, batch)}
    if not mine:
        return []
    times = [mine[t].time if t in mine else None for t in tricks]
    row = [str(batch), method]
    row += ["–" if t is None else milliseconds(t) for t in times]
    winner = best(cells, method, batch)
    if winner is None:
        return [*row, "–", "–", "–", "–"]
    ratio = _memory_ratio(cells, winner)
    return [
        *row,
        winner.trick,
        f"{winner.ratio:.3f}",
        mebibytes(winner.bytes),
        "–" if math.isnan(ratio) else f"{ratio:.3f}",
    ]


def _memory_ratio(cells: Sequence[Cell], cell: Cell) -> float:
    """Peak memory over that of the plain step with the same trick."""
    for other in cells:
        same = (other.method, other.trick, other.batch) == ("plain", cell.trick, cell.batch)
        if same and other.bytes and cell.bytes:
            return cell.bytes / other.bytes
    return math.nan


def _comparisons(cells: Sequence[Cell], batches: Sequence[int]) -> list[str]:
    """MACER over `shared`, each at its fastest."""
    lines = []
    for batch in batches:
        macer, shared = best(cells, "macer", batch), best(cells, "shared", batch)
        if macer and shared:
            times = macer.ratio / shared.ratio
            lines.append(f"Batch {batch}: MACER takes {times:.2f} times as long as shared.")
    return lines


def _notes(cells: Sequence[Cell], subject: Subject) -> list[str]:
    notes = [
        "A ratio compares two steps that ran in turn; the plain one is the fastest of all tricks.",
        f"Peak memory: {memory.HOW[subject.device.type]}; its ratio is to the plain step with the "
        "same trick.",
    ]
    missing: dict[str, list[str]] = {}
    for cell in cells:
        if cell.note:
            missing.setdefault(cell.note, []).append(f"{cell.method} {cell.trick} {cell.batch}")
    return notes + [f"{', '.join(which)}: {why}." for why, which in missing.items()]


def _record(cell: Cell) -> dict[str, object]:
    return {
        "method": cell.method,
        "trick": cell.trick,
        "batch": cell.batch,
        "seconds": cell.time.as_dict() if cell.time else None,
        "plain_seconds": cell.plain.as_dict() if cell.plain else None,
        "over_plain": cell.ratio if cell.time else None,
        "peak_bytes": cell.bytes,
        "note": cell.note,
    }


def _figures(cells: Sequence[Cell], names: list[str], batches: list[int]) -> dict[str, bytes]:
    """Time by method, and the ratio by batch where there are several."""
    figures = {}
    largest = {b: {n: c for n in names if (c := best(cells, n, b))} for b in batches}
    shown = 256 if 256 in batches else batches[-1]
    times = {n: 1e3 * c.time.median for n, c in largest[shown].items() if c.time}
    ratios = {n: f" ms, {c.ratio:.2f} × plain" for n, c in largest[shown].items()}
    figures["method"] = plots.bars(times, f"ms a step, batch {shown}", ratios)
    if len(batches) > 1:
        lines = {
            name: [(b, largest[b][name].ratio) for b in batches if name in largest[b]]
            for name in names
        }
        figures["batch"] = plots.lines(lines, "batch", "step time over the fastest plain step")
    return figures
