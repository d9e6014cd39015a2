"""The table of a report in four forms: terminal, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from covprop.report.summary import P_NAMES, Interval, Summary

NOTE = (
    "Certified accuracy in % at ℓ2 radius r; ACR: average certified radius; "
    "±: half the width of the 95 % bootstrap interval over the images (which says nothing about "
    "0 % and 100 %, so none is given there)."
)
P_NOTE = (
    "Share of all images in %: wrong, abstained, and correct by the lower confidence bound of p_A, "
    "the probability of the top class under noise."
)
AGREEMENT_NOTE = (
    "Estimated radii come from a closed form and certify nothing; their correlation with the "
    "certified radius runs over all images that have both, an abstention counting as radius 0."
)
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


def columns(radii: Sequence[float], summaries: Sequence[Summary]) -> list[Column]:
    """The table by columns; a column in which every cell is absent is left out."""

    def column(title: str, cell: Callable[[Summary], Cell], **facts: bool | float) -> Column:
        return Column(title, tuple(cell(s) for s in summaries), **facts)  # type: ignore[arg-type]

    made = [
        column("run", lambda s: Cell(s.certification.name), numeric=False),
        column("data", lambda s: Cell(s.certification.data or ABSENT), numeric=False),
        column("method", lambda s: Cell(s.certification.method or ABSENT), numeric=False),
        column("σ", lambda s: _number(s.certification.sigma)),
        column("ACR", lambda s: _interval(s.acr, 1, 3)),
        *(
            Column(
                f"r={r:g}", tuple(_interval(s.certified[k], 100, 1) for s in summaries), radius=r
            )
            for k, r in enumerate(radii)
        ),
        column("abstain %", lambda s: _interval(s.abstain, 100, 1)),
        column("images", lambda s: _number(len(s.certification.rows))),
        column("training", lambda s: _duration(s.certification.train_seconds)),
    ]
    return [c for c in made if any(cell.text != ABSENT for cell in c.cells)]


def p_columns(summaries: Sequence[Summary]) -> list[Column]:
    """The distribution of p_A by columns, for the runs where it is known."""
    known = [s for s in summaries if s.p_shares]
    shares = list(zip(*(s.p_shares or () for s in known), strict=True))
    return [
        Column("run", tuple(Cell(s.certification.name) for s in known), numeric=False),
        *(
            Column(name.replace("-", "–"), tuple(Cell(f"{100 * v:.1f}", value=v) for v in values))
            for name, values in zip(P_NAMES, shares, strict=False)
        ),
        Column("p_A was", tuple(Cell(s.certification.p_source) for s in known), numeric=False),
    ]


def agreement_columns(summaries: Sequence[Summary]) -> list[Column]:
    """Estimated against certified radius by columns: one row a run and estimator."""
    found = [(s, a) for s in summaries for a in s.agreements]
    return [
        Column("run", tuple(Cell(s.certification.name) for s, _ in found), numeric=False),
        Column("estimator", tuple(Cell(a.estimator) for _, a in found), numeric=False),
        Column("images", tuple(_number(len(a.certified)) for _, a in found)),
        Column("mean certified", tuple(_mean(a.certified) for _, a in found)),
        Column("mean estimated", tuple(_mean(a.estimated) for _, a in found)),
        Column("Pearson", tuple(_correlation(a.pearson) for _, a in found)),
        Column("Spearman", tuple(_correlation(a.spearman) for _, a in found)),
    ]


def _mean(values: NDArray[np.float64]) -> Cell:
    return _number(round(float(values.mean()), 3))


def _correlation(value: float) -> Cell:
    return Cell(ABSENT) if math.isnan(value) else Cell(f"{value:.2f}", value=value)


def tables(radii: Sequence[float], summaries: Sequence[Summary]) -> list[tuple[list[Column], str]]:
    """Every table of a report with the note below it; p_A and estimates only where known."""
    made = [(columns(radii, summaries), NOTE)]
    if any(s.p_shares for s in summaries):
        made.append((p_columns(summaries), P_NOTE))
    if any(s.agreements for s in summaries):
        made.append((agreement_columns(summaries), AGREEMENT_NOTE))
    return made


def _number(value: float | None) -> Cell:
    return Cell(ABSENT) if value is None else Cell(f"{value:g}", value=value)


def _interval(interval: Interval, scale: float, digits: int) -> Cell:
    return Cell(
        f"{scale * interval.value:.{digits}f}",
        f"±{scale * interval.half:.{digits}f}" if interval.half > 0 else "",
        interval.value,
        interval,
    )


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


def _duration(seconds: float | None) -> Cell:
    return Cell(ABSENT) if seconds is None else Cell(duration(seconds), value=seconds)


def print_table(table: Sequence[Column], note: str, console: Console) -> None:
    """Print to a terminal; columns that do not fit go on in a second table below."""
    first, *rest = table
    while rest:
        fitting = _fitting(first, rest, console.width)
        _print_part([first, *rest[:fitting]], console)
        rest = rest[fitting:]
        if rest:
            console.print()
    console.print(Text(f"{note}\n", style="dim"))


def _fitting(first: Column, rest: Sequence[Column], width: int) -> int:
    """How many columns go beside the first one; at least one."""
    used = _width(first)
    for count, column in enumerate(rest):
        used += _width(column)
        if used > width and count:
            return count
    return len(rest)


def _width(column: Column) -> int:
    cells = [max(Text(c.text).cell_len, len(c.plus_minus)) for c in column.cells]
    return max(len(column.title), *cells) + 2


def _print_part(part: Sequence[Column], console: Console) -> None:
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in part:
        grid.add_column(
            Text(column.title),
            justify="right" if column.numeric else "left",
            overflow="fold",
        )
    for cells in zip(*(column.cells for column in part), strict=True):
        grid.add_row(*(_terminal_cell(cell) for cell in cells))
    console.print(grid)


def _terminal_cell(cell: Cell) -> Text:
    text = Text(cell.text)
    return text.append(f"\n{cell.plus_minus}", style="dim") if cell.plus_minus else text


def markdown(table: Sequence[Column], note: str) -> str:
    """A table in GitHub's Markdown."""
    lines = [
        [_markdown_text(c.title) for c in table],
        ["---:" if c.numeric else ":---" for c in table],
        *(
            [_markdown_text(" ".join(filter(None, (c.text, c.plus_minus)))) for c in cells]
            for cells in zip(*(column.cells for column in table), strict=True)
        ),
    ]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{body}\n\n{_markdown_text(note)}\n"


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\|<>&*`\[\]])", r"\\\1", text)


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "σ": r"$\sigma$",
    "ℓ": r"$\ell$",
    "±": r"$\pm$",
    "–": "--",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def latex(table: Sequence[Column], note: str) -> str:
    """A table for a paper; needs the package booktabs."""
    layout = "".join("r" if c.numeric else "l" for c in table)

    def cell(c: Cell) -> str:
        return _tex(c.text) + (f"\\,{{\\scriptsize{_tex(c.plus_minus)}}}" if c.plus_minus else "")

    title = " & ".join(
        f"$r={c.radius:g}$" if c.radius is not None else _tex(c.title) for c in table
    )
    body = "\n".join(
        f"{' & '.join(cell(c) for c in cells)} \\\\"
        for cells in zip(*(column.cells for column in table), strict=True)
    )
    return (
        f"% {note}\n\\begin{{tabular}}{{{layout}}}\n\\toprule\n{title} \\\\\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def comma_separated(radii: Sequence[float], summaries: Sequence[Summary]) -> str:
    """Everything in full precision, with both ends of each interval."""
    shares = [f"p_a_{name}" for name in P_NAMES]
    intervals = ["acr", "abstain", *(f"certified_{r:.2f}" for r in radii)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    facts = ["name", "file", "data", "method", "sigma", "images", "train_seconds", "epochs"]
    ends = [f"{name}{end}" for name in intervals for end in ("", "_low", "_high")]
    writer.writerow([*facts, *ends, *shares, "p_a_source"])
    for s in summaries:
        c = s.certification
        numbers = [end for interval in (s.acr, s.abstain, *s.certified) for end in interval]
        known = [c.name, c.path, c.data, c.method, c.sigma, len(c.rows), c.train_seconds, c.epochs]
        row = [*known, *numbers, *(s.p_shares or [None] * len(P_NAMES)), c.p_source]
        writer.writerow(["" if fact is None else fact for fact in row])
    return out.getvalue()


def estimates_csv(summaries: Sequence[Summary]) -> str:
    """Estimated and certified radius side by side, a row an image, run and estimator."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["name", "idx", "label", "predict", "certified_radius", "estimator", "estimated_radius"]
    )
    for c in (s.certification for s in summaries):
        rows = c.rows
        for estimator, estimated in c.estimates.items():
            for i in range(len(rows)):
                if math.isfinite(estimated[i]):
                    facts = [rows.idx[i], rows.label[i], rows.predict[i], rows.radius[i]]
                    writer.writerow([c.name, *facts, estimator, estimated[i]])
    return out.getvalue()
