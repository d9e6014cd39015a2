"""Runs that differ in the seed alone, taken together: mean and standard deviation."""

import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from covprop.report.summary import Summary

OF_ONE_RUN = ("seed", "weights", "skip_wrong", "not_bounded")
"""What tells the certifications of two seeds apart though their numbers mean the same."""

LATER: dict[str, dict[str, Any]] = {
    "noise": {"share": 1.0},
    "method consistency": {"from_epoch": 0, "reach": 0.0},
    "method radius": {"layer": 0, "per_class": False},
    "train": {"fast": True},
}
"""Options that came into the program after the first recorded runs, and their defaults: a run that
says so and a run that could not say it yet have the same recipe. A report has this from no
trainer, since it reads files only: what else a config names, an own model's code above all, is
not to be run for a table."""


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
    their resolved recipes and the settings of their certification are equal but for the seed;
    runs that were not trained to their end, if they are equally far.
    A run of a seed that is already among them, a copy for instance, says nothing about seeds; it
    begins a group of its own.
    """
    groups: dict[tuple[str, int], list[Summary]] = {}
    seen: Counter[tuple[str, Any]] = Counter()
    for summary in summaries:
        key, seed = _key(summary), _seed(summary.certification.config_text)
        groups.setdefault((key, seen[key, seed]), []).append(summary)
        seen[key, seed] += 1
    return [Group(_name(members), tuple(members)) for members in groups.values()]


def _key(summary: Summary) -> str:
    c = summary.certification
    if not c.config_text:  # a bare log says nothing of its seed
        return f"alone {c.path}"
    settings = sorted(f"{name} = {value!r}" for name, value in _settings(c.config_text))
    meta = {key: value for key, value in c.meta.items() if key not in OF_ONE_RUN}
    where = c.path.resolve()  # however it was given: `.` and `../b` may lie side by side
    parts = (where.parent.parent, where.name, settings, meta, c.rows.idx.tolist(), c.unfinished)
    return "\n".join(map(str, parts))


def _seed(config_text: str) -> Any:
    train = tomllib.loads(config_text).get("train", {})
    return train.get("seed") if isinstance(train, dict) else None


def _settings(config_text: str) -> Iterator[tuple[str, Any]]:
    """Every option that tells the recipe of a run from others, as `section.key`, and its value."""
    for section, values in tomllib.loads(config_text).items():
        if not isinstance(values, dict):  # no config of this program
            yield section, values
            continue
        later = LATER.get(f"{section} {values['name']}" if "name" in values else section, {})
        for key, value in values.items():
            if (section, key) != ("train", "seed") and not (key in later and value == later[key]):
                yield f"{section}.{key}", value


def _name(members: Sequence[Summary]) -> str:
    """The runs' common name; its `-seed0` is not part of it, nor need all have a folder.

    Runs that were not trained to their end have no common name with those that were.
    """
    names = [re.sub(r"-seed\d+(?=$| \()", "", member.certification.name) for member in members]
    same = len({name.rsplit("/", 1)[-1] for name in names}) == 1
    name = max(names, key=len) if same else members[0].certification.name
    unfinished = members[0].certification.unfinished
    return f"{name} ({unfinished})" if unfinished else name
