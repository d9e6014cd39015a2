"""Reports: from certification logs to tables, curves and one page.

A report reads files only and never a model. `write` does it all:

    certifications, warnings = read(["runs/a", "runs/b"])
    radii, summaries = summarize(certifications)
    write(radii, summaries, Path("report"), warnings)
"""

from collections.abc import Sequence
from pathlib import Path

from covprop.files import write as write_file
from covprop.report.read import Certification, read
from covprop.report.summary import Interval, Summary, summarize

__all__ = ["Certification", "Interval", "Summary", "read", "summarize", "write", "write_page"]

UNICODE = "backslashreplace"
"""A file name need not be UTF-8, a table and a page have to."""


def write_page(
    radii: Sequence[float],
    summaries: Sequence[Summary],
    path: Path,
    warnings: Sequence[str] = (),
    folders: Sequence[str] = (),
) -> Path:
    """Write the HTML page; with `folders`, one that leads to their pages and has no figures."""
    from covprop.report.page import render

    return write_file(path, render(radii, summaries, warnings, folders).encode(errors=UNICODE))


def write(
    radii: Sequence[float], summaries: Sequence[Summary], folder: Path, warnings: Sequence[str] = ()
) -> list[Path]:
    """Write tables (Markdown, LaTeX, CSV), figures (PNG, SVG) and the page into a folder.

    Many runs in several folders get a report for each of these in a folder below.
    """
    from covprop.report import curves, tables
    from covprop.report.parts import headed_tables, joined, parts

    found = parts(summaries)
    made = headed_tables(radii, summaries, found)
    texts = {
        "table.md": joined(made, tables.markdown, "## {}\n"),
        "table.tex": joined(made, tables.latex, "% {}"),
        "table.csv": tables.comma_separated(radii, summaries),
    }
    if any(s.agreements for s in summaries):
        texts["estimated.csv"] = tables.estimates_csv(summaries)
    files = {name: text.encode(errors=UNICODE) for name, text in texts.items()}
    if not found:
        files |= curves.figures(summaries)
    written = [write_file(folder / name, content) for name, content in files.items()]
    for part in found:
        written += write(part.radii, part.summaries, folder / part.folder)
    below = [part.folder for part in found]
    return [*written, write_page(radii, summaries, folder / "report.html", warnings, below)]
