"""Reports: from certification logs to tables, curves and one page.

A report reads files only and never a model. `write` does it all:

    certifications, warnings = read(["runs/a", "runs/b"])
    radii, summaries = summarize(certifications)
    write(radii, summaries, Path("report"), warnings)
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from covprop.errors import InvalidInput
from covprop.report.read import Certification, read
from covprop.report.summary import Interval, Summary, summarize

__all__ = ["Certification", "Interval", "Summary", "read", "summarize", "write", "write_page"]


def write_page(
    radii: Sequence[float], summaries: Sequence[Summary], path: Path, warnings: Sequence[str] = ()
) -> Path:
    """Write the HTML page."""
    from covprop.report.page import render

    return _replace(path, render(radii, summaries, warnings).encode())


def write(
    radii: Sequence[float], summaries: Sequence[Summary], folder: Path, warnings: Sequence[str] = ()
) -> list[Path]:
    """Write tables (Markdown, LaTeX, CSV), figures (PNG, SVG) and the page into a folder."""
    from covprop.report import curves, tables

    made = tables.tables(radii, summaries)
    files = {
        "table.md": "\n".join(tables.markdown(table, note) for table, note in made).encode(),
        "table.tex": "\n".join(tables.latex(table, note) for table, note in made).encode(),
        "table.csv": tables.comma_separated(radii, summaries).encode(),
        **curves.figures(summaries),
    }
    if any(s.agreements for s in summaries):
        files["estimated.csv"] = tables.estimates_csv(summaries).encode()
    written = [_replace(folder / name, content) for name, content in files.items()]
    return [*written, write_page(radii, summaries, folder / "report.html", warnings)]


def _replace(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder; give the name of a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None
    return path
