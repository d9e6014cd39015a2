"""What noisy.py leaves beside its runs: the page, the curves, the machine, the archive."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covprop.bench.machine import Facts
from covprop.errors import InvalidInput
from covprop.files import write
from covprop.noisy.report import LAST
from covprop.report.style import line
from covprop.run import Run

KEPT = ("config.toml", "metrics.jsonl", "summary.json")
PUBLISHED = {
    "cifar10": {
        "bootstrap-hard": 0.501,
        "smodel": 0.482,
        "decoupling": 0.488,
        "mentornet": 0.581,
        "coteaching": 0.726,
        "truncated": 0.828,
        "radius-largest": 0.808,
        "radius-paper": 0.808,
    },
    "cifar100": {
        "bootstrap-hard": 0.321,
        "smodel": 0.218,
        "decoupling": 0.261,
        "mentornet": 0.316,
        "coteaching": 0.348,
        "truncated": 0.477,
        "radius-largest": 0.346,
        "radius-paper": 0.346,
    },
}
"""The paper's table, 45 % pair flips. Its Truncated Lq seems to come from another setting.

Its own method is `radius-largest` on the common network and schedule, `radius-paper` on its own.
"""
PUBLISHED_RATE = 0.45
TWO_NETWORKS = ("coteaching", "decoupling")


@dataclass(frozen=True)
class Entry:
    """One finished run: a method's name, a seed, its summary.json and metrics.jsonl."""

    name: str
    seed: int
    data: str
    model: str
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    paper: float | None = None
    """What the paper reports of the method, where the labels are wrong in its way."""

    @property
    def epoch_seconds(self) -> float:
        """Median training seconds of an epoch; the first, which warms up, is left out."""
        steps = np.diff([0.0, *(row["seconds"] for row in self.rows)])
        return float(np.median(steps[1:] if len(steps) > 1 else steps))


def read(folder: Path) -> list[Entry]:
    """The finished runs NAME-seedN below a folder, in the order of names and seeds."""
    found = []
    for file in sorted(folder.glob("*/summary.json")):
        match = re.fullmatch(r"(.+)-seed(\d+)", file.parent.name)
        if match is None:
            continue
        run = Run(file.parent)
        summary = json.loads(file.read_text(encoding="utf-8"))
        if summary["test_accuracy_mean"] is None:
            raise InvalidInput(
                f"{file.parent} has no test accuracies to compare; train it with "
                "train.eval_every=1."
            )
        data = str(run.config["data"]["name"])
        model = str(run.config["model"]["name"])
        labels = run.config.get("labels", {})
        alike = (labels.get("name"), labels.get("rate")) == ("pair", PUBLISHED_RATE)
        paper = PUBLISHED.get(data, {}).get(match[1]) if alike else None
        found.append(Entry(match[1], int(match[2]), data, model, summary, run.metrics(), paper))
    if not found:
        raise InvalidInput(f"{folder} holds no finished run called METHOD-seedN.")
    return found


def grouped(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Name -> its seeds, the most accurate first."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.name, []).append(entry)
    return dict(sorted(groups.items(), key=lambda item: -_accuracies(item[1]).mean()))


def _accuracies(group: Sequence[Entry]) -> Any:
    return np.array([entry.summary["test_accuracy_mean"] for entry in group])


def table(entries: Sequence[Entry], timing: Mapping[str, float] | None = None) -> str:
    """Markdown: accuracy over the last ten epochs, what was learned from, seconds, the paper's.

    With several seeds the ± is the standard deviation over the seeds, else over the ten epochs.
    `timing` has seconds of an epoch that were measured alone; without it they are the runs' own,
    which say little where several ran at once.
    """
    where = "s/epoch, side by side" if timing is None else "s/epoch, alone"
    lines = [
        "| method | networks | test accuracy | seeds | label precision "
        f"| suspects: average precision | {where} | paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, group in grouped(entries).items():
        accuracies = _accuracies(group)
        alone = group[0].summary["test_accuracy_std"]
        spread = accuracies.std(ddof=1) if len(group) > 1 else alone
        own = float(np.mean([entry.epoch_seconds for entry in group]))
        seconds = own if timing is None else timing.get(name)
        cells = [
            name,
            "2" if name in TWO_NETWORKS else "1",
            f"{accuracies.mean():.3f} ± {spread:.3f}",
            str(len(group)),
            _mean([entry.summary["label_precision"] for entry in group]),
            _mean([entry.summary["suspects"].get("average_precision") for entry in group]),
            "–" if seconds is None else f"{seconds:.2f}",
            "" if group[0].paper is None else f"{group[0].paper:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "–"


def read_timing(path: Path) -> dict[str, float] | None:
    """Name -> seconds of an epoch alone, from timing.tsv; None where that was not measured."""
    if not path.exists():
        return None
    _, *rows = path.read_text(encoding="utf-8").splitlines()
    return {row.split("\t")[0]: float(row.split("\t")[1]) for row in rows}


def page(
    entries: Sequence[Entry],
    *,
    title: str,
    machine: Mapping[str, Any],
    timing: Mapping[str, float] | None = None,
) -> str:
    """README.md of a folder of runs: how they were made, the table, the curves."""
    epochs = sorted({int(entry.summary["epochs"]) for entry in entries})
    models = ", ".join(sorted({entry.model for entry in entries}))
    made = [machine["device"], f"torch {machine['torch']}", f"Python {machine['python']}"]
    made += [f"CUDA {machine['cuda']}"] if machine.get("cuda") else []
    made += [f"commit {machine['commit'] or 'unknown'}", machine["date"]]
    return f"""# {title}

{", ".join(made)}:

```console
{machine["command"]}
```
{"".join(map(_went_on, machine.get("later", [])))}
Network {models}; {", ".join(map(str, epochs))} epochs. Test accuracy is the mean over the last
{min(LAST, *epochs)} epochs; ± is over the seeds, or over these epochs where there is one seed.
Label precision is the share of right labels among those learned from in the last epoch. *paper* is
what the paper reports for the same share of wrong labels; it does not say after how many epochs.

{table(entries, timing)}
![Test accuracy and label precision by epoch](curves.png)
"""


def _went_on(later: Mapping[str, Any]) -> str:
    made = f"{later['device']}, commit {later['commit'] or 'unknown'}, {later['date']}"
    return f"""
Then, {made}, {", ".join(later["runs"])}:

```console
{later["command"]}
```
"""


def curves(entries: Sequence[Entry]) -> bytes:
    """A PNG: clean test accuracy and label precision by epoch; the band is the seeds' range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=120, layout="constrained")
    panels = figure.subplots(1, 2)
    titles = {"test_accuracy_clean": "test accuracy", "label_precision": "label precision"}
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for number, (name, group) in enumerate(grouped(entries).items()):
            series = [[row.get(key) for row in entry.rows] for entry in group]
            length = min(map(len, series))
            values = np.array([one[:length] for one in series], dtype=float)
            look = line(number)
            dashes = (0, look.dash) if look.dash else "-"
            epochs = np.arange(1, length + 1)
            mean = values.mean(0)
            axes.plot(epochs, mean, color=look.light, linestyle=dashes, label=name, lw=1.3)
            if len(group) > 1:
                low, high = values.min(0), values.max(0)
                axes.fill_between(epochs, low, high, color=look.light, alpha=0.15, lw=0)
        axes.set(xlabel="epoch", title=title)
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def conclude(options: argparse.Namespace) -> None:
    """README.md, curves.png and the archive, from the runs that are finished."""
    if not any(options.out.glob("*/summary.json")):
        return
    entries = read(options.out)
    text = page(
        entries,
        title=f"Noisy labels: {options.dataset}",
        machine=json.loads((options.out / "machine.json").read_text(encoding="utf-8")),
        timing=read_timing(options.out / "timing.tsv"),
    )
    write(options.out / "README.md", text.encode())
    write(options.out / "curves.png", curves(entries))
    if options.archive is None:
        return
    names = ["README.md", "curves.png", "machine.json", "timing.tsv"]
    names += [f"{entry.name}-seed{entry.seed}/{file}" for entry in entries for file in KEPT]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in names:
            if (options.out / name).exists():
                archive.add(options.out / name, f"{options.out.name}/{name}")
    write(options.archive, content.getvalue())


def tell_machine(options: argparse.Namespace, runs: list[str], facts: Facts) -> None:
    """machine.json: where, with what, and by which command; under `later`, what went on with it."""
    path = options.out / "machine.json"
    if path.exists() and not runs:
        return
    found: dict[str, Any] = dict(facts)
    found["command"] = said_without_paths(sys.argv[1:])
    found["commit"] = os.environ.get("COVPROP_COMMIT") or found["commit"]
    if path.exists():
        first = json.loads(path.read_text(encoding="utf-8"))
        kept = {key: found[key] for key in ("device", "commit", "date", "command")}
        kept["runs"] = runs
        found = first | {"later": [*first.get("later", []), kept]}
    write(path, (json.dumps(found, indent=2) + "\n").encode())


def said_without_paths(words: list[str]) -> str:
    """The command, with DATA for the folder after --data and so on: it is published."""
    before = ["", *words]
    said = [
        name.removeprefix("--").upper() if name in ("--data", "--out", "--archive") else word
        for name, word in zip(before, words, strict=False)
    ]
    return shlex.join(["python", "benchmarks/noisy.py", *said])
