"""Writes the tables and figures of what was measured from the files under results/.

    python docs/make_results.py

What stands between `<!-- results: KIND WAVE -->` and `<!-- end -->` is replaced, in results.md,
searches.md, truth.md and the README; all else is written by hand and stays. A wave that was not run
says so. After the wave of a table or log, names of jobs make it one of these alone; truths have
several waves; an overview has methods instead, and leads have methods, the word over, and other
methods; a time table with "points" lists every point of its curves.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from result_figures import calibration, certified_curves, time_to_acr
from result_overview import best_rows, leads_table, overview_table
from result_points import (
    Point,
    base_name,
    changes,
    failures,
    grid,
    plus_minus,
    points,
    samples,
)
from result_time import curves, first_above
from result_truth import truth_summary, truth_table

from covprop.data import DATASETS
from covprop.report.cells import duration

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
FIGURES = ROOT / "docs" / "figures"
PAGES = (
    *(ROOT / "docs" / name for name in ("results.md", "searches.md", "truth.md")),
    ROOT / "README.md",
)
BLOCK = re.compile(r"(<!-- results: ([\w-]+) ([\w. -]+) -->\n)(.*?)(<!-- end -->)", re.S)
ABSENT = "Not run yet.\n"
THRESHOLDS = (0.45, 0.50, 0.55)
SPREAD = (
    "± is the standard deviation over seeds, "
    "or for one seed half the 95 % interval over the images."
)


def table(wave: str, *only: str) -> str:
    """The rows of a wave with certified accuracies and training time, published ones below."""

    def wanted(name: str) -> bool:
        return not only or name in only

    found = [point for point in points(RESULTS, wave, also=True) if wanted(point.name)]
    if not found:
        return ABSENT
    sigma = found[0].first.certification.sigma or 0.0
    radii = [k * 0.25 for k in range(5)] if sigma < 0.5 else [k * 0.5 for k in range(6)]
    rows = []
    for point in sorted(found, key=lambda p: -p.group.acr[0]):
        c = point.first.certification
        shares = []
        for r in radii:
            reached = [
                (m.certification.rows.correct & (m.certification.rows.radius >= r)).mean()
                for m in point.group.members
            ]
            shares.append(f"{100 * float(np.mean(reached)):.1f}")
        shown = [plus_minus(point), str(point.seeds), *shares, point.training]
        shown += [str(c.epochs), f"{len(c.rows):,}", samples(point)]
        rows.append([f"`{point.name}`{changed(point.facts)}", *shown])
    blank = ["–"] * len(radii)
    for facts in filter(lambda facts: wanted(facts["name"]), failures(RESULTS, wave)):
        ended = [facts["why"], "1", *blank, "–", str(facts["epochs"]), "–", "–"]
        rows.append([f"`{facts['name']}`{changed(facts)}", *ended])
    titles = ["job", "ACR", "seeds", *(f"r = {r:g}" for r in radii), "training", "epochs"]
    titles += ["images", "N"]
    c = found[0].first.certification
    note = (
        f"\nCertified accuracy in %, {c.meta.get('split', 'test')} images, α = "
        f"{c.meta['alpha']:g}. {SPREAD}"
    )
    if any(m.certification.rows.skipped.any() for p in found for m in p.group.members):
        note += (
            " N is the mean over all images; images whose guess was wrong, which "
            "count as 0 whatever follows, got none."
        )
    drawn = [(m, p.name, p.group.members) for m, p in best_rows(points(RESULTS, wave)).items()]
    save(f"results-{wave}.png", lambda: certified_curves(drawn))
    picture = f"\n![certified accuracy, a line a method](figures/results-{wave}.png)\n"
    return grid(titles, rows) + note + "\n" + published(c.data, sigma) + picture


def overview(*methods: str) -> str:
    """ACR by method and data set, the paper's own first; of a method's rows that of most seeds."""
    paper = {
        f"{row['data']}-{row['sigma']:.2f}": f"{row['acr']:.3f}"
        for row in published_rows()
        if row["method"] == "the paper's method"
    }
    return overview_table(RESULTS, methods, paper) + f"\n{SPREAD} – was not run.\n"


def leads(*words: str) -> str:
    """By how much the best of some methods leads others, image by image: `OURS over OTHERS`."""
    ours, _, others = (part.split() for part in " ".join(words).partition(" over "))
    table = leads_table(RESULTS, ours, others)
    return f"{table}\n± is the standard error over images.\n" if table else ABSENT


def changed(facts: dict[str, Any]) -> str:
    """What else a job changed in its recipe, where its name says nothing of it."""
    return f" ({listed(found)})" if (found := changes(facts)) else ""


def listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def published_rows() -> list[dict[str, Any]]:
    text = (RESULTS / "published.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["row"])


def published(data: str, sigma: float) -> str:
    """What others published for that data set and noise, in one sentence."""
    rows = [r for r in published_rows() if (r["data"], r["sigma"]) == (data, sigma)]
    parts = []
    for source, title in (("paper", "the paper's table"), ("field", "the field")):
        for network in dict.fromkeys(r["network"] for r in rows if r["source"] == source):
            same = [r for r in rows if (r["source"], r["network"]) == (source, network)]
            figures = ", ".join(f"{r['method']} {r['acr']:.3f}" for r in same)
            parts.append(f"{title} ({network}): {figures}")
    return f"Published ACR, {'; '.join(parts)}.\n" if parts else ""


def log(wave: str, *only: str) -> str:
    """Everything that was tried, best first, failures last; what all changed stands below."""
    found = sorted(points(RESULTS, wave), key=lambda p: -p.group.acr[0])
    ended = [(point.facts, plus_minus(point), point.training) for point in found]
    ended += [(facts, facts["why"], "–") for facts in failures(RESULTS, wave)]
    ended = [entry for entry in ended if not only or entry[0]["name"] in only]
    if not ended:
        return ABSENT
    made = [changes(facts) for facts, *_ in ended]
    by_all = [change for change in made[0] if all(change in one for one in made)]
    rows = []
    for (facts, *result), one in zip(ended, made, strict=True):
        own = listed(change for change in one if change not in by_all) or "–"
        rows.append([f"`{facts['name']}`", f"`{facts['recipe']}`", own, *result])
    note = f"\nChanged in all of them: {listed(by_all)}.\n" if by_all and len(rows) > 1 else ""
    return grid(["job", "recipe", "changed", "ACR", "training"], rows) + note


def time_table(wave: str, *more: str) -> str:
    """Seconds until the ACR passes each threshold; every point is a finished run, timed alone.

    The runs of the table of CIFAR-10 at σ = 0.25 are points as well, where their recipe is as it
    ships and was timed. Other runs of the wave that were not timed alone are named below, and
    "points" adds a table of all that were.
    """
    own = points(RESULTS, wave)
    shipped: tuple[list[str], ...] = ([], ["train.compile=true"])
    table = points(RESULTS, "cifar10-0.25")
    both = own + [p for p in table if p.alone is not None and changes(p.facts) in shipped]
    found = curves(both)
    shared = listed(point.name for point in own if not point.timed_alone)
    note = f"\nNot timed with the machine to itself, and left out: {shared}.\n" if shared else ""
    if not found:
        return note.lstrip() or ABSENT
    rows = []
    for name, curve in found.items():
        reached = [first_above(curve, t) for t in THRESHOLDS]
        best = max(acr for _, acr in curve)
        rows.append([f"`{name}`", *reached, f"{best:.3f}", duration(max(s for s, _ in curve))])
    save("time-to-acr.png", lambda: time_to_acr(found, THRESHOLDS))
    titles = ["job", *(f"ACR {t:.2f}" for t in THRESHOLDS), "best ACR", "longest run"]
    picture = "\n![ACR against seconds](figures/time-to-acr.png)\n"
    points_below = "\nIts points:\n\n" + point_table(both) if "points" in more else ""
    return grid(titles, rows) + note + picture + points_below


def point_table(found: list[Point]) -> str:
    """A row for every point of the curves, by method and length."""
    rows = []
    for point in sorted(found, key=lambda p: (base_name(p.name), p.seconds or 0.0)):
        if point.timed_alone:
            shown = [str(point.first.certification.epochs), point.training, plus_minus(point)]
            shown += [str(point.seeds), samples(point)]
            rows.append([f"`{base_name(point.name)}`", *shown])
    return grid(["method", "epochs", "training", "ACR", "seeds", "N"], rows)


def truth(wave: str) -> str:
    """Estimated against certified radius of every trained model of a wave."""
    table, models = truth_table(RESULTS, wave)
    if not table:
        return ABSENT
    save(f"calibration-{wave}.png", lambda: calibration(models))
    return f"{table}\n![calibration](figures/calibration-{wave}.png)\n"


def truths(*waves: str) -> str:
    """Estimated over certified radius in short: a row for each of several waves."""
    return truth_summary(RESULTS, waves) or ABSENT


def large(wave: str) -> str:
    """Images a second at 224 pixels, and the time of a full run worked out from it."""
    rows = []
    for point in points(RESULTS, wave):
        facts = point.facts
        data = str(facts["recipe"]).split("/")[0]
        recipe = tomllib.loads((ROOT / "recipes" / f"{facts['recipe']}.toml").read_text())
        lines = point.first.certification.path.with_name("metrics.jsonl").read_text().splitlines()
        speed = float(np.median([json.loads(line)["images_per_second"] for line in lines[1:]]))
        epochs, images = recipe["train"]["epochs"], DATASETS[data].train_size
        full = duration(epochs * images / speed)
        rows.append([f"`{point.name}`", f"{speed:,.0f}", f"{images:,}", str(epochs), full])
    if not rows:
        return ABSENT
    return grid(["job", "images/s", "images of the full set", "epochs", "full run"], rows)


KINDS: dict[str, Callable[..., str]] = {
    "table": table,
    "overview": overview,
    "leads": leads,
    "log": log,
    "time": time_table,
    "truth": truth,
    "truths": truths,
    "large": large,
}


def save(name: str, draw: Callable[[], bytes]) -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / name).write_bytes(draw())


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with its blocks written anew."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        text = BLOCK.sub(lambda m: f"{m[1]}{KINDS[m[2]](*m[3].split())}{m[5]}", text)
        folder = path.parent.relative_to(ROOT).as_posix()
        yield path, text if folder == "docs" else text.replace("](figures/", "](docs/figures/")


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
