"""Tables with a row an image, as people's programs write them: Excel, pandas, R, and ours."""

from __future__ import annotations

import csv
from pathlib import Path

PLACES = ("index", "idx", "unnamed: 0", "")
"""What the column is called that numbers the images; the last two are pandas' ways."""
DELIMITERS = ",\t;"


def read_rows(path: Path | str) -> list[dict[str, str]]:
    """The rows by column, in the order of the column that numbers them, if there is one.

    Names of columns are in small letters without blanks around. The delimiter is the one of comma,
    tab and semicolon that the first line has most of. Raises OSError, ValueError or csv.Error.
    """
    with Path(path).open(encoding="utf-8-sig", newline="") as file:  # Excel begins with a mark
        first, second = file.readline(), file.readline()
        file.seek(0)
        # The second line decides where the first has one name for more columns, as R writes it.
        delimiter = max(DELIMITERS, key=lambda d: (first.count(d), second.count(d)))
        lines = [line for line in csv.reader(file, delimiter=delimiter) if line]
    names = [name.strip().lower() for name in lines[0]] if lines else []
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"it has more than one column {twice[0] or 'without a name'}")
    for number, line in enumerate(lines[1:], 1):
        if len(line) != len(names):
            raise ValueError(
                f"row {number} is too {'short' if len(line) < len(names) else 'long'}: "
                f"{len(line)} values for {len(names)} columns"
            )
    rows = [dict(zip(names, line, strict=True)) for line in lines[1:]]
    place = next((name for name in PLACES if name in names), None)
    if place is None and "id" in names and _numbered([row["id"] for row in rows]):
        place = "id"
    if place is not None:
        rows.sort(key=lambda row: int(row[place]))
        if [int(row[place]) for row in rows] != list(range(len(rows))):
            raise ValueError(f"its column {place or '(first)'} must count 0, 1, 2, … once each")
    return rows


def _numbered(ids: list[str]) -> bool:
    """Whether a column `id` numbers the images: whole numbers from 0 on, in any order.

    Ids that grow, or are no numbers, say nothing of the order. Others do, but not which it is.
    """
    if not all(one.strip().isdecimal() for one in ids):
        return False
    numbers = [int(one) for one in ids]
    if sorted(numbers) == list(range(len(numbers))):
        return True
    if sorted(numbers) != numbers:
        raise ValueError(
            "its column id is not in order and does not count from 0; sort the rows by the order "
            "of the images, or number these 0, 1, 2, … in a column index"
        )
    return False
