"""Every method for noisy labels on one data set, several runs side by side on one machine.

    python benchmarks/noisy.py digits --out results/noisy/digits-pair-0.45 --jobs 2
    python benchmarks/noisy.py cifar10 --data DATA --out runs/cifar10-pair-0.45 --jobs 4 \\
        --epochs 20 --timing --minutes 9 --archive cifar10.tar.gz

Runs OUT/METHOD-seedN as `covprop noisy` does, so a run that was stopped goes on where it was and
a finished one is kept; then writes OUT/README.md and OUT/curves.png from what is finished. Seconds
of runs side by side are not comparable: `--timing` first takes every method alone through a few
dozen steps and writes OUT/timing.tsv. The archive holds all of this but weights, labels and
suspects: unpack it in results/noisy/. Where all runs are finished, the page is written anew from
their files. $COVPROP_COMMIT tells the commit where there is no git.

`--set train.compile=true` is worth it for some dozens of epochs, where "auto" does not yet
compile: a process compiles a method once for all its seeds, and the others find most of it in the
compiler's cache on the disk.
"""

import argparse
import dataclasses
import gc
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from noisy_page import conclude, read_timing, tell_machine
from rich.console import Console

from covprop import data
from covprop.bench import machine
from covprop.device import choose_device
from covprop.files import write
from covprop.noisy import report
from covprop.train import load, shipped, train
from covprop.train.distributed import world
from covprop.train.length import at_length
from covprop.train.loop import Trainer
from covprop.train.setup import with_facts, with_labels

MAIN = ("coteaching", "radius-layer", "radius-label", "truncated", "plain", "radius-largest")
"""These get every seed, the others the first one; the longest begin first."""
TIMED_STEPS = 64
EVALUATED = 1.15
"""What an epoch takes with its evaluation and checkpoint, of what its steps take."""
JUDGED = 30
"""Seconds after the end within which a run that was trained is judged, or is lost."""
RUNS_A_PROCESS = 6
"""Then a fresh one, so that a GPU error cannot spoil all that follow."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("dataset", help="digits, mnist, fashion-mnist, cifar10 or cifar100")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=int, default=4, help="runs side by side")
    parser.add_argument("--methods", nargs="+", help="recipe names without -pair-0.45, in order")
    parser.add_argument("--main", nargs="+", default=MAIN, help="those of them with every seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--epochs", type=int, help="shorter runs; every epoch of a schedule shrinks"
    )
    parser.add_argument(
        "--seconds", type=float, help="as many epochs as fit into this, by what --timing measured"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--minutes", type=float, help="then stop all runs; the same command goes on"
    )
    parser.add_argument(
        "--timing", action="store_true", help="first every method alone, for the seconds"
    )
    parser.add_argument("--archive", type=Path, help="a .tar.gz, written anew after every run")
    return parser.parse_args()


def recipe_of(options: argparse.Namespace, method: str) -> str:
    return f"noisy/{options.dataset}/{method}-pair-0.45"


def measure_alone(options: argparse.Namespace, methods: list[str]) -> None:
    """Seconds of an epoch with nothing else on the machine, into timing.tsv."""
    found = {}
    for method in methods:
        found[method] = epoch_seconds(options, recipe_of(options, method))
        print(f"{method}: {found[method]:.3f} s an epoch alone", flush=True)
    plain = found.get("plain", float("nan"))
    lines = ["method\tseconds_per_epoch\tratio_to_plain"]
    lines += [f"{name}\t{seconds:.3f}\t{seconds / plain:.3f}" for name, seconds in found.items()]
    write(options.out / "timing.tsv", ("\n".join(lines) + "\n").encode())


def epoch_seconds(options: argparse.Namespace, recipe: str) -> float:
    """A whole epoch's seconds, from the third of three short ones: every part of it is at work."""
    checked = load(recipe, [*options.set, *at_length(recipe, 3), "train.eval_every=0"])
    whole, test = (data.load(checked.data.name, split, options.data) for split in ("train", "test"))
    assert isinstance(whole, data.Images)
    assert isinstance(test, data.Images)
    size = checked.train.batch_size
    few = size * min(TIMED_STEPS, len(whole) // size)
    split = dataclasses.replace(whole, images=whole.images[:few], labels=whole.labels[:few])
    test = dataclasses.replace(test, images=test.images[:size], labels=test.labels[:size])
    with tempfile.TemporaryDirectory() as folder, world(checked.train.device) as here:
        checked = with_facts(checked, split)
        noisy, labels = with_labels(checked, split, here)
        Trainer(checked, Path(folder), noisy, test, here, None, labels).fit()
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    gc.collect()  # a trainer holds itself; its memory on the device is for the next one
    _, before, after = (json.loads(line)["seconds"] for line in lines)
    return float(after - before) * (len(whole) // size) / (few // size)


def grid(options: argparse.Namespace, methods: list[str]) -> list[tuple[str, int]]:
    """Methods and seeds in the order of their turn: every method once, then the further seeds."""
    first, *more = options.seeds
    again = [(method, seed) for seed in more for method in methods if method in options.main]
    return [(method, first) for method in methods] + again


def fitting(
    seconds: float, pairs: list[tuple[str, int]], timing: dict[str, float], longest: int
) -> int:
    """Epochs of the whole grid that one device does in so many seconds, ten at least."""
    whole = EVALUATED * sum(timing[method] for method, _ in pairs)
    return min(longest, max(10, int(seconds / whole)))


class Job(NamedTuple):
    """One run, and until when (`time.time`) it may train."""

    recipe: str
    changes: list[str]
    out: Path
    data: Path | None
    end: float


def planned(options: argparse.Namespace, pairs: list[tuple[str, int]], end: float) -> list[Job]:
    """All runs that are not finished."""
    jobs = []
    for method, seed in pairs:
        recipe, out = recipe_of(options, method), options.out / f"{method}-seed{seed}"
        changes = at_length(recipe, options.epochs) if options.epochs else []
        changes += [*options.set, f"train.seed={seed}"]
        if not (out / "summary.json").exists():
            jobs.append(Job(recipe, changes, out, options.data, end))
    return jobs


def work(job: Job) -> str:
    """Train and judge one run; what it came to, in a line. Its words go into OUT.log."""
    if time.time() >= job.end:
        return f"{job.out.name}: not begun"
    if job.end < float("inf"):
        # The trainer takes Ctrl-C as the wish to write a checkpoint and end.
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, job.end - time.time())
    try:
        with job.out.with_suffix(".log").open("a", encoding="utf-8") as log:
            console = Console(file=log, width=120)
            recipe = load(job.recipe, job.changes)
            train(recipe, job.out, data_root=job.data, console=console)
            signal.setitimer(signal.ITIMER_REAL, 0)  # judging takes a moment, and may
            said = report.sentences(report.judge(job.out, job.data))
        return f"{job.out.name}: {said[0]}"
    except (Exception, KeyboardInterrupt) as error:  # the others go on
        return f"{job.out.name}: {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        torch.cuda.empty_cache()


def run_all(options: argparse.Namespace, jobs: list[Job], began: float) -> None:
    """`options.jobs` processes side by side, each doing several runs: starting one takes long."""
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    os.environ["OMP_NUM_THREADS"] = threads
    # Each compiler would otherwise start a worker for every core.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", threads)
    context = multiprocessing.get_context("spawn")
    finished = 0
    with context.Pool(options.jobs, maxtasksperchild=RUNS_A_PROCESS) as pool:
        lines = pool.imap_unordered(work, jobs)
        for job in jobs:
            left = None if job.end == float("inf") else max(0, job.end + JUDGED - time.time())
            try:
                line = lines.next(left)
            except multiprocessing.TimeoutError:
                print("A process died with its run; the same command goes on with it.", flush=True)
                break
            print(f"{time.time() - began:5.0f} s  {line}", flush=True)
            now = len(list(options.out.glob("*/summary.json")))
            if now > finished:  # at the end many are stopped at once, and a picture takes a second
                conclude(options)
            finished = now


def stop(*_: object) -> None:
    """On SIGTERM: at once. What is finished lies in the archive, what is not in checkpoints."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(128 + signal.SIGTERM)


def main() -> None:
    began = time.time()
    options = arguments()
    signal.signal(signal.SIGTERM, stop)
    prefix = f"noisy/{options.dataset}/"
    known = [n.removeprefix(prefix).removesuffix("-pair-0.45") for n in shipped() if prefix in n]
    ordered = [m for m in MAIN if m in known] + [m for m in known if m not in MAIN]
    methods = options.methods or ordered
    if unknown := set(methods) - set(known):
        sys.exit(f"{', '.join(sorted(unknown))}: choose among {', '.join(known) or 'no recipes'}.")
    options.out.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(choose_device("auto"))  # before anything of ours is a load
    if options.timing and not (options.out / "timing.tsv").exists():
        measure_alone(options, methods)
    pairs = grid(options, methods)
    if options.seconds:
        timing = read_timing(options.out / "timing.tsv")
        if timing is None:
            sys.exit("--seconds needs --timing.")
        longest = load(recipe_of(options, methods[0])).train.epochs
        options.epochs = fitting(options.seconds, pairs, timing, longest)
        print(f"{options.epochs} epochs", flush=True)
    end = began + 60 * options.minutes if options.minutes else float("inf")
    jobs = planned(options, pairs, end)
    tell_machine(options, [job.out.name for job in jobs], facts)
    run_all(options, jobs, began)
    conclude(options)
    page = options.out / "README.md"
    print(page.read_text(encoding="utf-8") if page.exists() else "No run is finished yet.")


if __name__ == "__main__":
    main()
