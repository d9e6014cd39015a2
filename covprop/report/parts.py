"""Many runs in several folders: tables and figures of each folder, and an overview of all.

A hundred curves in one figure tell nothing, and a table of all of them is as wide as its largest
noise asks for. Runs that lie in one folder were put there to be compared.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from covprop.report.cells import Column
from covprop.report.grouped import OVERVIEW_NOTE, overview_columns
from covprop.report.seeds import by_recipe
from covprop.report.summary import Summary, summarize
from covprop.report.tables import tables

MANY = 12
"""Up to so many runs are shown together, wherever they lie."""

Noted = tuple[list[Column], str]  # a table and the note below it


class Part(NamedTuple):
    """The runs of one folder: its path below the one that holds all, and their numbers."""

    folder: str
    radii: tuple[float, ...]
    summaries: list[Summary]


def parts(summaries: Sequence[Summary]) -> list[Part]:
    """More than `MANY` runs by folder, each with radii of its own; none where they are one part.

    Example: the runs of `results/mnist-0.25` and `results/svhn-0.25` are the parts `mnist-0.25`
    and `svhn-0.25`, and `mnist-0.25/late`, so called among all, is `late` in its part.
    """
    by_folder: dict[Path, list[Summary]] = {}
    for summary in summaries:
        by_folder.setdefault(summary.certification.folder, []).append(summary)
    if len(summaries) <= MANY or len(by_folder) == 1:
        return []
    above = Path(os.path.commonpath(list(by_folder)))
    if above in by_folder:
        above = above.parent
    found = []
    for folder, members in by_folder.items():
        named = (member.certification for member in members)
        own = [replace(c, name=c.name.rsplit("/", 1)[-1]) for c in named]
        found.append(Part(folder.relative_to(above).as_posix(), *summarize(own)))
    return found


def headed_tables(
    radii: Sequence[float], summaries: Sequence[Summary], found: Sequence[Part]
) -> list[tuple[str, list[Noted]]]:
    """Every table of a report by heading: all without one, or each part's, then the overview."""
    if not found:
        return [("", tables(radii, summaries))]
    made = [(part.folder, tables(part.radii, part.summaries)) for part in found]
    if overview := overview_columns(by_recipe(summaries)):
        made.append(("All folders", [(overview, OVERVIEW_NOTE)]))
    return made


def joined(
    made: Sequence[tuple[str, list[Noted]]], form: Callable[[list[Column], str], str], heading: str
) -> str:
    """The tables as one text, each written by `form`, with `heading` before those that have one."""
    texts = []
    for title, noted in made:
        texts += [heading.format(title)] if title else []
        texts += [form(table, note) for table, note in noted]
    return "\n".join(texts)
