"""The price of an epoch of a job with nothing else of ours on the machine: results.py --alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from jobs import Job

from covprop.bench import machine
from covprop.errors import CovpropError
from covprop.files import write
from covprop.run import Run
from covprop.train import load, train
from covprop.train.length import at_length

CLEAN = 2
"""Epochs timed of each phase, after one that compiles and records."""
FREE = ("train.seed=", "train.epochs=", "train.milestones=")
FREE += ("method.from_epoch=", "weighting.from_epoch=")
"""What does not change the price of an epoch within a phase."""


def price(job: Job) -> Hashable:
    """The same for jobs whose epochs cost the same, also where they are of different length."""
    own = tuple(change for change in job.set if not change.startswith(FREE))
    return job.recipe, own, round(_late(job)[1], 1)


def time_epochs(
    jobs: Sequence[Job], folder: Path, data: Path | None, facts: machine.Facts
) -> Iterator[str]:
    """Time a job of each price into folder/timing.tsv; yields what there is to say of each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["job\tseconds_per_epoch\timages_per_second\tratio_to_first\tdevice"]
    first, seen = 0.0, set()
    for job in jobs:
        if price(job) in seen:
            continue
        seen.add(price(job))
        try:
            seconds, speed = epoch_seconds(job, folder / "alone", data)
        except CovpropError as error:
            yield f"{job.name}: {error}"
            continue
        first = first or seconds
        ratio = seconds / first
        lines.append(f"{job.name}\t{seconds:.4f}\t{speed:.0f}\t{ratio:.3f}\t{facts['device']}")
        write(folder / "timing.tsv", ("\n".join(lines) + "\n").encode())
        write(folder / "timing.json", (json.dumps(facts, indent=1) + "\n").encode())
        yield lines[-1]


def epoch_seconds(job: Job, folder: Path, data: Path | None) -> tuple[float, float]:
    """Seconds of an epoch, the mean over the run as the job divides it, and images a second.

    A part of the method that begins later (`from_epoch`) costs nothing before: both phases are
    timed, each by the median of its epochs without the first, which compiles and records.
    """
    late, share = _late(job)
    phase = CLEAN + 1
    changes = [*job.set, *at_length(job.recipe, 2 * phase if late else phase)]
    changes += ["train.eval_every=0", *(f"{section}.from_epoch={phase}" for section in late)]
    run = folder / job.name
    train(load(job.recipe, changes), run, data_root=data, restart=(run / "state.pt").exists())
    torch.compiler.reset()  # the next job's code is other code
    rows = Run(run).metrics()
    took = [b["seconds"] - a["seconds"] for a, b in itertools.pairwise([{"seconds": 0.0}, *rows])]
    seconds = median(took[-CLEAN:])
    if late:
        seconds = share * median(took[1:phase]) + (1 - share) * seconds
    images = rows[-1]["images_per_second"] * took[-1]
    return seconds, images / seconds


def _late(job: Job) -> tuple[list[str], float]:
    """The sections with a part that begins later, and the share of the run before all have."""
    whole = load(job.recipe, job.set)
    begins = {
        section: options["from_epoch"]
        for section, options in (("method", whole.method), ("weighting", whole.weighting or {}))
        if options.get("from_epoch", 0)
    }
    return list(begins), max(begins.values(), default=0) / whole.train.epochs
