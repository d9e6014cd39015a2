"""Runs that differ in the seed alone, taken together: mean and standard deviation."""

import re
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covprop.errors import InvalidInput
from covprop.report.summary import Summary
from covprop.train.recipe import resolve

OF_ONE_RUN = ("seed", "weights", "skip_wrong", "not_bounded")
"""What tells the certifications of two seeds apart though their numbers mean the same."""


@dataclass(frozen=True)
class Group:
    """Certified runs of one recipe, one a seed."""

    name: str
    members: tuple[Summary, ...]

    @property
    def acr(self) -> tuple[float, float]:
        """Mean and standard deviation over the runs; 0 for one run alone."""
        return mean_and_deviation([member.acr.value for member in self.members])

    def certified(self, k: int) -> tuple[float, float]:
        """The same of the certified accuracy at the k-th radius of the table."""
        return mean_and_deviation([member.certified[k].value for member in self.members])

    @property
    def train_seconds(self) -> float | None:
        known = [m.certification.train_seconds for m in self.members]
        seconds = [value for value in known if value is not None]
        return statistics.fmean(seconds) if seconds else None


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n − 1); 0 for one value.

    >>> mean_and_deviation([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def by_recipe(summaries: Sequence[Summary]) -> list[Group]:
    """Every recipe with its runs, in the order of the first one of each.

    Runs belong together if their folders lie side by side, the same images were certified, and
    their resolved recipes and the settings of their certification are equal but for the seed.
    """
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(_key(summary), []).append(summary)
    return [Group(_name(members), tuple(members)) for members in groups.values()]


def _key(summary: Summary) -> str:
    c = summary.certification
    if not c.config_text:  # a bare log says nothing of its seed
        return f"alone {c.path}"
    config = _today(tomllib.loads(c.config_text))
    if isinstance(config.get("train"), dict):
        config["train"].pop("seed", None)
    meta = {key: value for key, value in c.meta.items() if key not in OF_ONE_RUN}
    parts = (str(c.path.parent.parent), c.path.name, repr(config), repr(meta), c.rows.idx.tolist())
    return "\n".join(map(str, parts))


def _today(config: dict[str, Any]) -> dict[str, Any]:
    """With the options that came into the program after the run, at their defaults."""
    try:
        return resolve(config).as_dict()
    except InvalidInput:  # not a recipe of this version
        return config


def _name(members: Sequence[Summary]) -> str:
    """The runs' common name; `-seed0` at its end is not part of it."""
    names = [re.sub(r"-seed\d+$", "", member.certification.name) for member in members]
    return names[0] if len(set(names)) == 1 else members[0].certification.name
