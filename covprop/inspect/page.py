"""All exhibits on one HTML page, in the look of the reports."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from covprop.inspect.figures import Cell, Exhibit
from covprop.report.page import filled


def render(exhibits: Sequence[Exhibit], title: str, lead: str) -> str:
    """The page as text; figures and data stand in it as data addresses."""
    return filled(
        "covprop.inspect",
        title=title,
        lead=lead,
        exhibits=[_shown(exhibit) for exhibit in exhibits],
    )


def _shown(exhibit: Exhibit) -> dict[str, Any]:
    data = f"{exhibit.name}.csv"
    picture = exhibit.files.get(f"{exhibit.name}.svg")
    return {
        "name": exhibit.name,
        "title": exhibit.title,
        "caption": exhibit.caption,
        "picture": address("image/svg+xml", picture) if picture else None,
        "columns": exhibit.columns,
        "rows": [[text(c) for c in row] for row in exhibit.rows] if exhibit.tabulated else [],
        "numeric": [
            not any(isinstance(cell, str) for cell in column)
            for column in zip(*exhibit.rows, strict=True)
        ],
        "file": data,
        "data": address("text/csv", exhibit.files[data]),
    }


def address(kind: str, content: bytes) -> str:
    """A file of this type as an address that holds it."""
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
