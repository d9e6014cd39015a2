"""Made-up certifications, written as training and certification leave them on the disk."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROWS = 40


def phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def draw_rows(seed: int, sigma: float) -> list[Row]:
    """Rows as a certifier would make them, whatever the seed of the same images: about a tenth
    wrong, a tenth abstained."""
    rng, images = random.Random(seed), random.Random(0)
    rows = []
    for i in range(ROWS):
        label, _, kind = images.randrange(10), rng.randrange(10), rng.random()
        p_lower = rng.uniform(0.3, 0.5) if kind < 0.1 else 0.5 + 0.4999 * rng.random() ** 0.5
        radius = 0.0
        low, high = 0.0, 4.0
        for _ in range(60):  # invert Φ by bisection
            radius = (low + high) / 2
            low, high = (radius, high) if phi(radius) < p_lower else (low, radius)
        abstains = p_lower < 0.5
        correct = not abstains and kind > 0.2
        predict = -1 if abstains else label if correct else (label + 1) % 10
        rows.append(
            {
                "idx": 20 * i,
                "label": label,
                "predict": predict,
                "radius": 0.0 if abstains else sigma * radius,
                "correct": int(correct),
                "seconds": rng.uniform(1, 20),
                "p_lower": p_lower,
                "count": 900,
                "n": 1000,
                "nan": 0,
            }
        )
    rows[3] |= {"predict": rows[3]["label"], "correct": 1, "radius": 1.23e-05, "p_lower": 0.50001}
    return rows


def clock(seconds: float) -> str:
    micro = round(seconds * 1e6)
    return f"0:{micro // 60_000_000:02d}:{micro // 10**6 % 60:02d}.{micro % 10**6:06d}"


def tsv(rows: list[Row], time: Callable[[float], str] = clock) -> str:
    """A log in Cohen's format."""
    return HEADER + "".join(
        f"{r['idx']}\t{r['label']}\t{r['predict']}\t{r['radius']:.3}\t{r['correct']}"
        f"\t{time(r['seconds'])}\n"
        for r in rows
    )


def plain(seconds: float) -> str:
    return f"{seconds:.3}"


def make_run(folder: Path, seed: int = 1, sigma: float = 0.25, method: str = "gaussian") -> Path:
    """A whole run folder; returns its log."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = draw_rows(seed, sigma)
    (folder / "config.toml").write_text(
        f'[data]\nname = "digits"\n\n[noise]\nsigma = {sigma}\n\n[method]\nname = "{method}"\n'
    )
    epochs = [{"epoch": e, "loss": 1 / e, "seconds": 1.5 * e} for e in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in epochs))
    log = folder / f"certify_sigma_{sigma}.tsv"
    log.write_text(tsv(rows))
    log.with_suffix(".rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    settings = {"sigma": sigma, "n0": 100, "n": 1000, "alpha": 0.001}
    log.with_suffix(".json").write_text(json.dumps(settings))
    return log


def make_planned_run(folder: Path, epochs: object, seed: int = 1, sigma: float = 0.25) -> Path:
    """A run of 3 epochs that was to have so many; returns its log."""
    log = make_run(folder, seed, sigma)
    with (folder / "config.toml").open("a") as file:
        file.write(f"\n[train]\nseed = {seed}\nepochs = {epochs}\n")
    return log


def skip_wrong(log: Path) -> list[Row]:
    """A run's log as it were had wrong guesses not been bounded; its rows.

    Two thirds of the images that abstain are taken to have been guessed wrong.
    """
    rows = [json.loads(line) for line in log.with_suffix(".rows.jsonl").read_text().splitlines()]
    abstained = 0
    for row in rows:
        abstained += row["predict"] == -1
        if not row["correct"] and (row["predict"] >= 0 or abstained % 3):
            wrong = (row["label"] + 1) % 10
            row |= {"predict": wrong, "radius": 0.0, "p_lower": 0.0, "count": 0, "n": 0}
    log.write_text(tsv(rows))
    log.with_suffix(".rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    settings = json.loads(log.with_suffix(".json").read_text())
    settings |= {"skip_wrong": True, "not_bounded": sum(row["n"] == 0 for row in rows)}
    log.with_suffix(".json").write_text(json.dumps(settings))
    return rows


def add_estimates(log: Path, estimates: dict[str, dict[int, float]]) -> None:
    """estimated.tsv beside a log: estimated radii by estimator and image."""
    lines = [
        f"{idx}\t{estimator}\t{radius}\n"
        for estimator, radii in estimates.items()
        for idx, radius in radii.items()
    ]
    log.with_name("estimated.tsv").write_text("idx\testimator\tradius\n" + "".join(lines))


def table(path: Path) -> list[list[str]]:
    """Rows of a log without the time, which differs from run to run."""
    return [line.split("\t")[:5] for line in path.read_text().splitlines()]


def journal(path: Path) -> list[dict[str, float]]:
    """The same in full precision, from beside the log."""
    lines = path.with_suffix(".rows.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
