"""Kill training again and again, and compare the end with a run that was left in peace.

    python benchmarks/kill_training.py --kills 20

Each part runs `covprop train` until it has written something new, and a random moment later gets
SIGKILL. At the end the weights must be equal bit for bit, and the metrics equal but for the times.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TIMES = ("seconds", "images_per_second")


def command(arguments: argparse.Namespace, out: Path) -> list[str]:
    base = [sys.executable, "-m", "covprop", "train", arguments.recipe, "--out", str(out)]
    settings = ["train.checkpoint_minutes=0.002", "train.device=cpu", *arguments.set]
    return base + [word for setting in settings for word in ("--set", setting)]


def stamp(out: Path) -> int:
    """When the checkpoint, or else the config, was last written."""
    for name in ("state.pt", "config.toml"):
        if (out / name).exists():
            return (out / name).stat().st_mtime_ns
    return 0


def rows(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--recipe", default="digits/consistency-0.25")
    parser.add_argument("--set", action="append", default=["train.epochs=120"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--wait", type=float, default=0.5, help="longest wait in seconds")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole", Path(folder) / "parts"
        subprocess.run(command(arguments, whole), check=True, stdout=subprocess.DEVNULL)
        places = []
        while len(places) < arguments.kills:
            before = stamp(parts)
            process = subprocess.Popen(command(arguments, parts), stdout=subprocess.DEVNULL)
            while stamp(parts) == before and process.poll() is None:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, arguments.wait))
            process.kill()
            if process.wait() == 0:
                print(f"finished after {len(places)} kills: give it more epochs")
                return 1
            done = len(rows(parts)) if (parts / "metrics.jsonl").exists() else 0
            places.append(done)
        subprocess.run(command(arguments, parts), check=True, stdout=subprocess.DEVNULL)
        one, two = (out / "model.safetensors" for out in (whole, parts))
        equal = one.read_bytes() == two.read_bytes()
        same_rows = rows(whole) == rows(parts)
    print(f"{len(places)} kills, with these epochs behind them: {places}")
    print(f"weights equal bit for bit: {equal}; metrics equal but for times: {same_rows}")
    return 0 if equal and same_rows else 1


if __name__ == "__main__":
    sys.exit(main())
