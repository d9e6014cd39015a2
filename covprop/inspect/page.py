"""All exhibits on one HTML page, in the look of the reports."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from covprop.inspect.figures import Cell, Exhibit
from covprop.report.page import filled

TYPES = {"csv": "text/csv", "png": "image/png", "svg": "image/svg+xml"}


def render(exhibits: Sequence[Exhibit], title: str, lead: str) -> str:
    """The page as text; figures and data stand in it as data addresses."""
    return filled(
        "covprop.inspect",
        title=title,
        lead=lead,
        exhibits=[_shown(exhibit) for exhibit in exhibits],
    )


def _shown(exhibit: Exhibit) -> dict[str, Any]:
    files = {name: address(name, content) for name, content in exhibit.files.items()}
    numeric = [
        all(cell is None or not isinstance(cell, str) for cell in column)
        for column in zip(*exhibit.rows, strict=True)
    ]
    return {
        "name": exhibit.name,
        "title": exhibit.title,
        "caption": exhibit.caption,
        "picture": files.get(f"{exhibit.name}.svg"),
        "columns": exhibit.columns,
        "rows": [[text(c) for c in row] for row in exhibit.rows] if exhibit.tabulated else [],
        "numeric": numeric,
        "files": [(name, files[name]) for name in (f"{exhibit.name}.csv",)],
    }


def address(name: str, content: bytes) -> str:
    """A file as an address that holds it."""
    kind = TYPES[name.rpartition(".")[2]]
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def text(cell: Cell) -> str:
    """A cell as a reader wants it: four digits, thousands apart, a dash for nothing.

    Example:
        >>> text(1234567), text(0.123456), text(None)
        ('1,234,567', '0.1235', '–')
    """
    if cell is None or cell != cell:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.4g}" if abs(cell) >= 1e-3 or cell == 0 else f"{cell:.1e}"
