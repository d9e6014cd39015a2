"""Made-up runs of a wave under results/, and the rows of a table made from them."""

import json
from pathlib import Path

from certifications import draw_rows, make_run


def add_run(wave: Path, job: str, seed: int, rows: int = 0, **facts: object) -> Path:
    """A finished job as benchmarks/results.py leaves it; `rows` is the seed of its made-up rows."""
    folder = wave / f"{job}-seed{seed}"
    log = make_run(folder, rows or seed + 1)
    config = (folder / "config.toml").read_text().replace("digits", "mnist")
    lr = sum(map(ord, job))  # recipes of different jobs differ
    (folder / "config.toml").write_text(config + f"\n[train]\nlr = {lr}\nseed = {seed}\n")
    record = {"wave": wave.name, "name": job, "status": "done", "epochs": 3}
    record["recipe"] = "imagenet/gaussian-0.50"
    changes = {"set": ["train.epochs=3", "train.lr=0.2", "train.seed=0"], "side_by_side": 3}
    (folder / "run.json").write_text(json.dumps(record | changes | facts))
    return log


def acr(seed: int) -> float:
    rows = draw_rows(seed, 0.25)
    return sum(r["correct"] * r["radius"] for r in rows) / len(rows)


def lines(text: str, start: str) -> list[list[str]]:
    found = [line for line in text.splitlines() if line.startswith(f"| `{start}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]
