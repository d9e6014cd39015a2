"""Every method for noisy labels on one data set, several runs side by side on one machine.

    python benchmarks/noisy.py cifar10 --data DATA --out results/noisy/cifar10 --jobs 6
    python benchmarks/noisy.py digits --out results/noisy/digits --jobs 2

Runs OUT/METHOD-seedN by `covprop noisy`, so a run that was stopped goes on where it was and a
finished one is kept; then writes OUT/table.md and OUT/curves.png from what is finished. Seconds
of runs side by side are not comparable: `--timing` first trains every method alone for three
epochs and writes OUT/timing.tsv.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from covprop.noisy import compare
from covprop.train import load, shipped
from covprop.train.checkpoint import write

MAIN = ("plain", "coteaching", "truncated", "radius-largest", "radius-smallest", "radius-label")
"""These get every seed, the others the first one."""
SCALED = ("from_epoch", "refresh", "pretrain", "ramp")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("dataset", help="digits, mnist, fashion-mnist, cifar10 or cifar100")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=int, default=4, help="runs side by side")
    parser.add_argument("--methods", nargs="+", help="recipe names without -pair-0.45")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--epochs", type=int, help="shorter runs; every epoch of a schedule shrinks"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--minutes", type=float, help="then stop all runs; the same command goes on"
    )
    parser.add_argument(
        "--timing", action="store_true", help="first every method alone, for the seconds"
    )
    return parser.parse_args()


def shortened(recipe: str, epochs: int | None) -> list[str]:
    """Overrides under which a run of `epochs` goes through its phases in proportion."""
    checked = load(recipe)
    if epochs is None:
        return []
    share = epochs / checked.train.epochs
    changes = [f"train.epochs={epochs}"]
    if checked.train.decay_from:
        changes.append(f"train.decay_from={round(checked.train.decay_from * share)}")
    if checked.train.milestones:
        nearer = {max(1, round(m * share)) for m in checked.train.milestones}
        changes.append(f"train.milestones={sorted(m for m in nearer if m < epochs)}")
    given = {key: checked.method.get(key) for key in SCALED}
    return changes + [
        f"method.{key}={max(1, round(value * share))}" for key, value in given.items() if value
    ]


def command(options: argparse.Namespace, method: str, changes: list[str], out: Path) -> list[str]:
    recipe = f"noisy/{options.dataset}/{method}-pair-0.45"
    words = [sys.executable, "-m", "covprop", "noisy", recipe, "--out", str(out)]
    for change in [*changes, *options.set]:
        words += ["--set", change]
    return words + (["--data", str(options.data)] if options.data else [])


def measure_alone(options: argparse.Namespace, methods: list[str]) -> None:
    """Seconds of an epoch with nothing else on the machine, into timing.tsv."""
    lines = ["method\tseconds_per_epoch\tratio_to_plain"]
    seconds: dict[str, float] = {}
    for method in methods:
        out = options.out / "timing" / f"{method}-seed0"
        # Three epochs hold all of a method's work: its phases begin at once.
        changes = [
            *shortened(f"noisy/{options.dataset}/{method}-pair-0.45", 3),
            "train.eval_every=0",
        ]
        subprocess.run(
            command(options, method, changes, out), check=True, stdout=subprocess.DEVNULL
        )
    for entry in compare.read(options.out / "timing"):
        seconds[entry.name] = entry.epoch_seconds
    for name in methods:
        ratio = seconds[name] / seconds["plain"] if "plain" in seconds else float("nan")
        lines.append(f"{name}\t{seconds[name]:.3f}\t{ratio:.3f}")
    write(options.out / "timing.tsv", ("\n".join(lines) + "\n").encode())
    print("\n".join(lines), flush=True)


def run_all(options: argparse.Namespace, jobs: list[tuple[str, int]]) -> None:
    """All jobs, at most `options.jobs` at a time, each with its share of the cores."""
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    running: dict[str, subprocess.Popen[bytes]] = {}
    while jobs or running:
        while jobs and len(running) < options.jobs and time.monotonic() < end:
            method, seed = jobs.pop(0)
            name = f"{method}-seed{seed}"
            recipe = f"noisy/{options.dataset}/{method}-pair-0.45"
            changes = [*shortened(recipe, options.epochs), f"train.seed={seed}"]
            log = (options.out / f"{name}.log").open("wb")
            words = command(options, method, changes, options.out / name)
            running[name] = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        if time.monotonic() >= end:
            jobs, end = [], float("inf")
            for process in running.values():
                process.send_signal(signal.SIGINT)  # it writes a checkpoint and ends
        time.sleep(0.5)
        for name, process in list(running.items()):
            if process.poll() is not None:
                lines = (options.out / f"{name}.log").read_text(errors="replace").splitlines()
                said = next((line for line in lines if line.startswith("Test accuracy")), "")
                print(f"{name}: {said or (lines or ['no output'])[-1]}", flush=True)
                del running[name]


def main() -> None:
    options = arguments()
    prefix = f"noisy/{options.dataset}/"
    known = [n.removeprefix(prefix).removesuffix("-pair-0.45") for n in shipped() if prefix in n]
    methods = options.methods or known
    if unknown := set(methods) - set(known):
        sys.exit(f"{', '.join(sorted(unknown))}: choose among {', '.join(known) or 'no recipes'}.")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.timing:
        measure_alone(options, methods)
    first, *more = options.seeds
    jobs = [(method, first) for method in methods]
    jobs += [(method, seed) for seed in more for method in methods if method in MAIN]
    run_all(options, jobs)
    entries = compare.read(options.out)
    write(options.out / "table.md", compare.table(entries).encode())
    write(options.out / "curves.png", compare.curves(entries))
    print(compare.table(entries))


if __name__ == "__main__":
    main()
