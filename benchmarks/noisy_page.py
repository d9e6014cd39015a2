"""What noisy.py leaves beside its runs: the page, the curves, the machine, the archive."""

import argparse
import io
import json
import os
import shlex
import sys
import tarfile
from typing import Any

from covprop.bench import machine
from covprop.files import write
from covprop.noisy import compare

KEPT = ("config.toml", "metrics.jsonl", "summary.json")


def conclude(options: argparse.Namespace) -> None:
    """README.md, curves.png and the archive, from the runs that are finished."""
    if not any(options.out.glob("*/summary.json")):
        return
    entries = compare.read(options.out)
    page = compare.page(
        entries,
        title=f"Noisy labels: {options.dataset}",
        machine=json.loads((options.out / "machine.json").read_text(encoding="utf-8")),
        timing=compare.read_timing(options.out / "timing.tsv"),
    )
    write(options.out / "README.md", page.encode())
    write(options.out / "curves.png", compare.curves(entries))
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


def tell_machine(options: argparse.Namespace, runs: list[str], facts: machine.Facts) -> None:
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
