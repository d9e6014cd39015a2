"""The runs of a wave under results/, with what is known of each: for make_results.py."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from covprop.errors import CovpropError
from covprop.report.cells import duration, samples_cell
from covprop.report.read import Certification, read
from covprop.report.seeds import Group, by_recipe
from covprop.report.sidecars import most_certified
from covprop.report.summary import Agreement, Summary, summarize
from covprop.train import load
from covprop.train.length import at_length

WAVES = Path(__file__).parents[1] / "benchmarks" / "waves"


@dataclass(frozen=True)
class Point:
    """Runs of one recipe with what their run.json and the wave's timing say."""

    group: Group
    facts: dict[str, Any]  # of its first run
    beside: tuple[int, ...]  # numbers of runs side by side while it trained
    alone: float | None  # seconds of an epoch with the machine to itself

    @property
    def first(self) -> Summary:
        return self.group.members[0]

    @property
    def seeds(self) -> int:
        return len(self.group.members)

    @property
    def estimated(self) -> Summary:
        """The run with the most estimators, the first of them."""
        return max(self.group.members, key=lambda member: len(member.agreements))

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def seconds(self) -> float | None:
        """Training: epochs × seconds of an epoch alone, or else what the clock said."""
        epochs = self.first.certification.epochs
        if self.alone is not None and epochs is not None:
            return epochs * self.alone
        return self.group.train_seconds

    @property
    def timed_alone(self) -> bool:
        """Whether `seconds` are those of a machine that had nothing else to do."""
        return self.seconds is not None and (self.alone is not None or self.beside == (1,))

    @property
    def training(self) -> str:
        if self.seconds is None:
            return "–"
        beside = " and ".join(map(str, self.beside))
        shared = "" if self.timed_alone else f" ({beside} side by side)"
        return duration(self.seconds) + shared


def grid(titles: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    marks = [":---", *["---:"] * (len(titles) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (titles, marks, *rows))


def plus_minus(point: Point) -> str:
    """ACR with the deviation over seeds, or the interval over images of one run alone."""
    mean, deviation = point.group.acr
    if point.seeds == 1:
        deviation = point.first.acr.half
    return f"{mean:.3f} ± {deviation:.3f}"


def samples(point: Point) -> str:
    """How a row was certified, in few words; the mean number of samples is over its runs."""
    c = point.first.certification
    drawn = [m.certification.samples for m in point.group.members]
    known = [mean for mean in drawn if mean is not None]
    if not known:
        return f"{c.meta['n']:,}"
    return samples_cell(replace(c, samples=statistics.fmean(known))).text


def ratios(summary: Summary, agreement: Agreement) -> tuple[float, float, float]:
    """Quantiles of estimated over certified, where the certificate is neither 0 nor at its end."""
    end = most_certified(summary.certification.meta)
    inside = (agreement.certified > 0) & (agreement.certified < 0.97 * end)
    if not inside.any():
        return (float("nan"),) * 3
    shares = agreement.estimated[inside] / agreement.certified[inside]
    low, median, high = np.quantile(shares, [0.1, 0.5, 0.9])
    return float(low), float(median), float(high)


TIMED_IN = {
    **dict.fromkeys(("cifar10-0.50", "cifar10-1.00", "time-to-acr"), "cifar10-0.25"),
    **dict.fromkeys(("long-0.50", "long-1.00"), "cifar10-0.25"),
    **{"mnist-0.50": "mnist-0.25", "svhn-0.50": "svhn-0.25"},
}
"""Waves whose jobs cost as much as those of another: noise has no price."""


def points(results: Path, wave: str, also: bool = False) -> list[Point]:
    """Everything certified of a wave, in the order of its jobs' names, on the same images.

    These are the fewest that a run was certified on; one that was certified on more of them is
    there with these alone. With `also`, a run that was certified in several ways, or on more
    images, is there once for each of them.
    """
    few, summaries = summarized(results / wave)
    timing = alone_seconds(results, wave)
    found = []
    for group in by_recipe(summaries):
        logs = [member.certification.path for member in group.members]
        runs = [json.loads(log.with_name("run.json").read_text(encoding="utf-8")) for log in logs]
        facts, first = runs[0], group.members[0].certification
        usual = is_main(first) and not few < set(first.rows.idx)
        if facts["status"] == "done" and (usual or also):
            beside = tuple(sorted({int(run["side_by_side"]) for run in runs}))
            found.append(Point(group, facts, beside, timing.get(base_name(facts["name"]))))
    return found


@cache
def summarized(folder: Path) -> tuple[set[int], list[Summary]]:
    """The fewest images that a run of a wave was certified on, and all of its logs; read once."""
    expected = len(list(folder.glob("*/certify_*.tsv")))
    if not expected:
        return set(), []
    certifications, warnings = read([folder])
    if len(certifications) != expected:  # one that is left out would be missed by nobody
        raise CovpropError(" ".join(warnings))
    few = min((set(c.rows.idx) for c in certifications if is_main(c)), key=len, default=set())
    more = [c for c in certifications if is_main(c) and few < set(c.rows.idx)]
    every = [*certifications, *(on_images(few, c) for c in more)]
    _, summaries = summarize(sorted(every, key=lambda c: c.path))
    return few, summaries


def is_main(certification: Certification) -> bool:
    """Whether it is the log that a run was certified with, and no further one."""
    return certification.path.name.startswith("certify_sigma_")


def on_images(few: set[int], c: Certification) -> Certification:
    """A log with some of its images, whose noise is their own, alone; of a fixed N."""
    kept = np.isin(c.rows.idx, list(few))
    columns = ("idx", "label", "predict", "radius", "correct", "seconds")
    rows = replace(c.rows, **{name: getattr(c.rows, name)[kept] for name in columns})
    return replace(
        c,
        rows=rows,
        p_lower=None if c.p_lower is None else c.p_lower[kept],
        samples=float(c.meta["n"] * (~rows.skipped).mean()),
        estimates={name: radii[kept] for name, radii in c.estimates.items()},
    )


def base_name(job: str) -> str:
    """A job's name without its length and λ: one timing serves them all."""
    return re.sub(r"-(\d+epochs|lambda[\d.]+)$", "", job)


def alone_seconds(results: Path, wave: str) -> dict[str, float]:
    """Seconds of an epoch by job from timing.tsv; empty where none was measured."""
    path = results / wave / "timing.tsv"
    if not path.is_file():
        return alone_seconds(results, TIMED_IN[wave]) if wave in TIMED_IN else {}
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {base_name(row[0]): float(row[1]) for row in rows}


def changes(facts: dict[str, Any]) -> list[str]:
    """What a job changes in its recipe as that ships now, apart from its length and seed."""
    usual = ("train.seed=", "train.epochs=", "data.holdout=")
    by_length = at_length(facts["recipe"], facts["epochs"])  # its phases, in proportion
    made = in_wave(facts)
    changed = facts["set"] if made is None else made
    return [c for c in changed if not c.startswith(usual) and c not in by_length]


def in_wave(facts: dict[str, Any]) -> list[str] | None:
    """The job's changes as its wave has them: a recipe may have changed since the run was made.

    Or there is one now of what the run changed in another.
    """
    path = WAVES / f"{facts.get('wave')}.toml"
    if not path.is_file():
        return None
    wave = tomllib.loads(path.read_text(encoding="utf-8"))
    for job in wave["job"]:
        several = isinstance(job.get("epochs", wave.get("epochs")), list)
        name = f"{job['name']}-{facts['epochs']}epochs" if several else job["name"]
        recipe = job.get("recipe", wave.get("recipe"))
        made = [*wave.get("set", []), *job.get("set", [])]
        if name == facts["name"] and (recipe == facts["recipe"] or as_run(recipe, made, facts)):
            return made
    return None


def as_run(recipe: str, made: list[str], facts: dict[str, Any]) -> bool:
    """Whether a recipe with these changes is what a run was made with."""
    seed = [change for change in facts["set"] if change.startswith("train.seed=")]
    now = load(recipe, [*at_length(recipe, facts["epochs"]), *made, *seed])
    return now == load(facts["recipe"], facts["set"])


def failures(results: Path, wave: str) -> list[dict[str, Any]]:
    """What run.json says of the jobs that did not end, and `why`, in the program's own words."""
    found = []
    for file in sorted((results / wave).glob("*/run.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        if facts["status"] != "done":
            said = file.with_name("job.log")
            lines = said.read_text(encoding="utf-8").splitlines() if said.is_file() else []
            why = re.search(r"diverged in epoch \d+", lines[-1]) if lines else None
            found.append(facts | {"why": why[0] if why else facts["status"]})
    return found
