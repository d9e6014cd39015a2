"""The table of a report in four forms: terminal, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covprop.report.cells import (
    ABSENT,
    Cell,
    Column,
    abstain_cell,
    as_float,
    by_row,
    correlation_cell,
    interval_cell,
    mean_cell,
    number_cell,
    samples_cell,
    training_cell,
)
from covprop.report.grouped import grouped
from covprop.report.summary import P_NAMES, Summary

NOTE = (
    "Certified accuracy in % at ℓ2 radius r; ACR: average certified radius; "
    "±: half the width of the 95 % bootstrap interval over the images (which says nothing about "
    "0 % and 100 %, so none is given there)."
)
SAMPLES_NOTE = (
    " samples: noisy copies drawn of each image; where not all had as many, their mean and the "
    "most that may be drawn, and of a sequential certification δ, by how much all of those would "
    "be expected to raise a radius. α: the probability with which a radius may be wrong."
)
SKIPPED_NOTE = (
    " ≥: wrong guesses were not bounded (--skip-wrong), which changes neither ACR nor certified "
    "accuracy; which of them would have abstained is unknown."
)
P_NOTE = (
    "Share of all images in %: wrong, abstained, and correct by the lower confidence bound of p_A, "
    "the probability of the top class under noise."
)
AGREEMENT_NOTE = (
    "Estimated radii come from a closed form and certify nothing; their correlation with the "
    "certified radius runs over all images that have both, an abstention counting as radius 0. "
    "Mean certified, right or wrong: over these images, a radius certified for a wrong class in "
    "full, which counts as 0 in the ACR."
)
SKIPPED_P_NOTE = " Wrong guesses that were not bounded are wrong."
SKIPPED_AGREEMENT_NOTE = " Wrong guesses that were not bounded have no certified radius."


def columns(radii: Sequence[float], summaries: Sequence[Summary]) -> list[Column]:
    """The table by columns; a column in which every cell is absent is left out."""

    def column(title: str, cell: Callable[[Summary], Cell], **facts: bool | float) -> Column:
        return Column(title, tuple(cell(s) for s in summaries), **facts)  # type: ignore[arg-type]

    made = [
        column("run", lambda s: Cell(s.certification.name), numeric=False),
        column("data", lambda s: Cell(s.certification.images_of or ABSENT), numeric=False),
        column("method", lambda s: Cell(s.certification.method or ABSENT), numeric=False),
        column("σ", lambda s: number_cell(s.certification.sigma)),
        column("ACR", lambda s: interval_cell(s.acr, 1, 3)),
        *(
            Column(
                f"r={r:g}",
                tuple(interval_cell(s.certified[k], 100, 1) for s in summaries),
                radius=r,
            )
            for k, r in enumerate(radii)
        ),
        column("abstain %", lambda s: abstain_cell(s.abstain, s.certification)),
        column("images", lambda s: number_cell(len(s.certification.rows))),
        column("samples", lambda s: samples_cell(s.certification)),
        column("α", lambda s: number_cell(as_float(s.certification.meta.get("alpha")))),
        column("training", lambda s: training_cell(s.certification)),
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
        Column("images", tuple(number_cell(len(a.certified)) for _, a in found)),
        Column("mean certified, right or wrong", tuple(mean_cell(a.certified) for _, a in found)),
        Column("mean estimated", tuple(mean_cell(a.estimated) for _, a in found)),
        Column("Pearson", tuple(correlation_cell(a.pearson) for _, a in found)),
        Column("Spearman", tuple(correlation_cell(a.spearman) for _, a in found)),
    ]


def tables(radii: Sequence[float], summaries: Sequence[Summary]) -> list[tuple[list[Column], str]]:
    """Every table of a report with the note below it; p_A and estimates only where known."""
    known = any(s.certification.samples or s.certification.meta for s in summaries)
    skipped = any(s.certification.rows.skipped.any() for s in summaries)
    note = NOTE + SAMPLES_NOTE * known + SKIPPED_NOTE * skipped
    made = [(columns(radii, summaries), note)]
    made += [(table, note) for _, table, note in grouped(radii, summaries)]
    if any(s.p_shares for s in summaries):
        made.append((p_columns(summaries), P_NOTE + SKIPPED_P_NOTE * skipped))
    if any(s.agreements for s in summaries):
        note = AGREEMENT_NOTE + SKIPPED_AGREEMENT_NOTE * skipped
        made.append((agreement_columns(summaries), note))
    return made


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
    for cells in by_row(part):
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
            for cells in by_row(table)
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
    "≥": r"$\geq$",
    "δ": r"$\delta$",
    "α": r"$\alpha$",
    "–": "--",
    "−": "$-$",
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
    body = "\n".join(f"{' & '.join(cell(c) for c in cells)} \\\\" for cells in by_row(table))
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
    facts += ["mean_samples", "n", "alpha", "mode", "not_bounded"]
    ends = [f"{name}{end}" for name in intervals for end in ("", "_low", "_high")]
    writer.writerow([*facts, *ends, *shares, "p_a_source"])
    for s in summaries:
        c = s.certification
        numbers = [end for interval in (s.acr, s.abstain, *s.certified) for end in interval]
        known = [c.name, c.path, c.images_of, c.method, c.sigma, len(c.rows)]
        known += [c.train_seconds, c.epochs]
        known += [c.samples, *(c.meta.get(key) for key in ("n", "alpha", "mode"))]
        known.append(int(c.rows.skipped.sum()))
        row = [*known, *numbers, *(s.p_shares or [None] * len(P_NAMES)), c.p_source]
        writer.writerow(["" if fact is None else fact for fact in row])
    return out.getvalue()


def estimates_csv(summaries: Sequence[Summary]) -> str:
    """Estimated and certified radius side by side, a row an image that has both, and estimator."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["name", "idx", "label", "predict", "certified_radius", "estimator", "estimated_radius"]
    )
    for c in (s.certification for s in summaries):
        rows = c.rows
        for estimator, estimated in c.estimates.items():
            for i in range(len(rows)):
                if math.isfinite(estimated[i]) and not rows.skipped[i]:
                    facts = [rows.idx[i], rows.label[i], rows.predict[i], rows.radius[i]]
                    writer.writerow([c.name, *facts, estimator, estimated[i]])
    return out.getvalue()
