"""Tables of several runs taken together: over seeds, differences, over data sets and noise."""

import re
from collections import Counter
from collections.abc import Sequence

from covprop.report.cells import ABSENT, Cell, Column, duration_cell, number_cell
from covprop.report.differences import NOTE as DIFFERENCES_NOTE
from covprop.report.differences import difference_columns
from covprop.report.seeds import Group, by_recipe
from covprop.report.summary import Summary

SEEDS_NOTE = "Runs that differ in the seed alone: mean, and ± the standard deviation over the runs."
OVERVIEW_NOTE = (
    "By the run's name: ± is the standard deviation over seeds, or for one run half the width of "
    "its interval. Names that stand at one data set and σ only are left out."
)

Setting = tuple[str, float]  # data set, σ


def grouped(
    radii: Sequence[float], summaries: Sequence[Summary]
) -> list[tuple[str, list[Column], str]]:
    """The tables that there are runs for: title, table, and the note below it."""
    groups = by_recipe(summaries)
    made = []
    repeated = [group for group in groups if len(group.members) > 1]
    if repeated:
        made.append(("Over seeds", seed_columns(radii, repeated), SEEDS_NOTE))
    if differences := difference_columns(radii, groups):
        made.append(("Compared with the best, on the same images", differences, DIFFERENCES_NOTE))
    if overview := overview_columns(groups):
        made.append(("By data set and noise", overview, OVERVIEW_NOTE))
    return made


def seed_columns(radii: Sequence[float], groups: Sequence[Group]) -> list[Column]:
    """Runs that differ in the seed alone, by columns: one row a recipe."""

    def cells(values: Sequence[tuple[float, float]], scale: float, digits: int) -> tuple[Cell, ...]:
        return tuple(
            Cell(f"{scale * mean:.{digits}f}", f"±{scale * deviation:.{digits}f}", mean)
            for mean, deviation in values
        )

    return [
        Column("recipe", tuple(Cell(g.name) for g in groups), numeric=False),
        Column("seeds", tuple(number_cell(len(g.members)) for g in groups)),
        Column("ACR", cells([g.acr for g in groups], 1, 3)),
        *(
            Column(f"r={r:g}", cells([g.certified(k) for g in groups], 100, 1), radius=r)
            for k, r in enumerate(radii)
        ),
        Column("training", tuple(duration_cell(g.train_seconds) for g in groups)),
    ]


def overview_columns(groups: Sequence[Group]) -> list[Column]:
    """One row a recipe, one column a data set and σ; empty if no recipe is in two of these.

    A recipe is known by its run's name without folder, seed and σ, so that `a/plain-0.25-seed0`
    and `b/plain-0.50-seed0` are one row, `plain`. Where that would put two runs into one cell,
    the folder stays: `a/plain` and `b/plain`.
    """
    placed = [(_without_sigma(g), place, g) for g in groups if (place := _setting(g)) is not None]
    taken = Counter((name.rsplit("/", 1)[-1], place) for name, place, _ in placed)
    ambiguous = {short for (short, _), runs in taken.items() if runs > 1}
    cells: dict[str, dict[Setting, Cell]] = {}
    for name, place, group in placed:
        short = name.rsplit("/", 1)[-1]
        cells.setdefault(name if short in ambiguous else short, {})[place] = _acr_cell(group)
    rows = {name: row for name, row in cells.items() if len(row) > 1}
    first_seen = list(dict.fromkeys(data for _, (data, _), _ in placed))
    places = {place for row in rows.values() for place in row}
    if not rows:
        return []
    return [
        Column("ACR of", tuple(Cell(name) for name in rows), numeric=False),
        *(
            Column(f"{data}, σ={sigma:g}", tuple(r.get(place, Cell(ABSENT)) for r in rows.values()))
            for place in sorted(places, key=lambda p: (first_seen.index(p[0]), p[1]))
            for data, sigma in [place]
        ),
    ]


def _setting(group: Group) -> Setting | None:
    c = group.members[0].certification
    return (c.images_of, c.sigma) if c.images_of and c.sigma is not None else None


def _without_sigma(group: Group) -> str:
    """`late-0.50` of a run at σ = 0.5 is `late`, and so is `late (σ = 0.5)` of one certified at
    several; another number is part of the name."""
    sigma = group.members[0].certification.sigma
    name = group.name.removesuffix(f" (σ = {sigma:g})") if sigma is not None else group.name
    parts = re.fullmatch(r"(.*[^/])-(\d+(?:\.\d+)?)", name)
    return parts[1] if parts and float(parts[2]) == sigma else name


def _acr_cell(group: Group) -> Cell:
    mean, deviation = group.acr
    if len(group.members) == 1:
        deviation = group.members[0].acr.half
    return Cell(f"{mean:.3f}", f"±{deviation:.3f}" if deviation > 0 else "", mean)
