"""Trains and certifies waves of runs side by side on one machine, within a time limit.

    python benchmarks/results.py benchmarks/waves/cifar10-explore.toml --data DATA \\
        --slots 6 --minutes 9 --archive explore.tar.gz
    python benchmarks/results.py benchmarks/waves/smoke.toml --slots 2
    python benchmarks/results.py benchmarks/waves/cifar10-0.25.toml --list
    python benchmarks/results.py benchmarks/waves/mnist-0.{25,50}.toml --data DATA --slots 6

Each job is `covprop train`, `covprop certify` and `covprop estimate` into RUNS/WAVE/JOB-seedN, with
run.json saying how (commands, seconds, machine, versions, commit) and job.log what was printed. No
job is started that would not end before the limit, unless `--go-on` says that another call follows
on this machine; one that runs into the limit is stopped, and the same command goes on. Jobs
finished here or under results/WAVE are not run again; one that crashed goes on at once, twice at
most; one that failed otherwise, or for good, is kept as a failure (--again tries it once more). The
archive holds all of the finished jobs but their weights: unpack it in results/. Several waves are
one queue, in the order given. `--alone` times the
epochs of one job after the other, since seconds of runs side by side are not comparable, and puts
WAVE/timing.tsv into the archive. `--also` certifies finished runs, whose weights are still here, in
the further ways that the wave names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from alone import time_epochs
from jobs import Job, Pace, Running, read_wave, repeated, total_alone

from covprop.bench import machine
from covprop.device import choose_device
from covprop.errors import CovpropError
from covprop.files import write
from covprop.report.cells import duration

LEFT_OUT = (".safetensors", ".pt", ".lock")
GRACE = 20.0
"""Seconds that a run gets to write its checkpoint when it is stopped."""
SHORT = 60.0
"""With less time than this nothing is started."""
MPS_PIPE = Path("/tmp/nvidia-mps/control")
"""There, unless CUDA_MPS_PIPE_DIRECTORY names another folder, while CUDA's MPS is on."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("waves", type=Path, nargs="+", help="files of jobs, see jobs.py")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--archive", type=Path, help="a .tar.gz, written anew after every job")
    parser.add_argument("--slots", type=int, default=4, help="runs side by side")
    parser.add_argument("--beside", type=int, default=0, help="runs of other commands meanwhile")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="limit of this command")
    parser.add_argument("--startup", type=float, default=45.0, help="seconds until a run trains")
    parser.add_argument("--only", nargs="+", metavar="JOB", help="only jobs of these names")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for every job")
    parser.add_argument("--again", action="store_true", help="retry jobs that failed")
    parser.add_argument("--go-on", action="store_true", help="start also what ends in a later call")
    parser.add_argument("--alone", action="store_true", help="time epochs, one run after another")
    parser.add_argument("--also", action="store_true", help="certify finished runs further")
    parser.add_argument("--list", action="store_true", help="show what is left and run nothing")
    return parser.parse_args()


class Queue:
    """The jobs of one wave or several, being run."""

    def __init__(self, options: argparse.Namespace, jobs: list[Job]) -> None:
        self.options, self.waves = options, sorted({file.stem for file in options.waves})
        options.runs.mkdir(parents=True, exist_ok=True)
        self.waiting = [job for job in jobs if self._wanted(job)]
        if options.also:  # each goes on in the next call where it does not end in this one
            self.waiting = [replace(job, epochs=0, certify_seconds=0.0) for job in self.waiting]
        self.running: list[Running] = []
        self.pace = Pace(options.startup, options.slots)
        self.facts = facts()
        threads = max(1, (os.cpu_count() or 1) // options.slots)
        self.environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.environment["PYTHONUNBUFFERED"] = "1"
        # Each compiler would otherwise start a worker for every core.
        self.environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))

    def _wanted(self, job: Job) -> bool:
        if self.options.alone:  # finished or not
            return True
        if self.options.also:
            return bool(job.also) and (self.options.runs / job.path / "model.safetensors").exists()
        status = ended(job, self.options.runs)
        return not status or (status == "failed" and bool(self.options.again))

    def run(self) -> None:
        """Until all jobs are done, or no more of them fit into the time."""
        try:
            self._run()
        except KeyboardInterrupt:
            self._stop()

    def _run(self) -> None:
        end = time.monotonic() + 60 * self.options.minutes
        while self.waiting or self.running:
            left = end - time.monotonic()
            if left < GRACE + 5 and self.running:
                self._stop()
                break
            while len(self.running) < self.options.slots:
                enough = math.inf if self.options.go_on and left > SHORT else left - GRACE
                place = self.pace.choose(self.waiting, len(self.running), enough)
                if place is None:
                    break
                self._start(self.waiting.pop(place))
            if not self.running:
                break
            time.sleep(0.2)
            for one in list(self.running):
                self._look(one)
        if self.waiting:
            names = ", ".join(job.path for job in self.waiting)
            say(f"not run, for want of time: {names}")

    def _start(self, job: Job) -> None:
        folder = self.options.runs / job.path
        folder.mkdir(parents=True, exist_ok=True)
        data = self.options.data
        if job.data_folder:
            data = folder.parent / "data"
            repeated(self.options.data / job.data_folder, data / job.data_folder, job.repeat)
        commands = (job.also_commands if self.options.also else job.commands)(folder, data)
        one = Running(job, folder, commands, (folder / "job.log").open("ab"))
        one.start(self.environment)
        self.running.append(one)
        say(f"{job.path}: started, about {self.pace.wall(job, len(self.running) - 1):.0f} s")

    def _look(self, one: Running) -> None:
        code = one.step_done(self.environment)
        if code is None:
            return
        if code == 0 and one.commands:
            one.start(self.environment)
            return
        self.running.remove(one)
        one.log.close()
        wall = time.monotonic() - one.began
        if code == 0 and not self.options.also:
            self.pace.finished(one.job, wall)
        self._record(one, "done" if code == 0 else "failed", wall)
        said = (one.folder / "job.log").read_text(encoding="utf-8", errors="replace").splitlines()
        shown = next(
            (line for line in reversed(said) if "ACR" in line), (said or ["no output"])[-1]
        )
        say(f"{one.job.path}: {'' if code == 0 else 'FAILED, '}{shown} ({wall:.0f} s)")
        self.archive()

    def _record(self, one: Running, status: str, wall: float) -> None:
        if self.options.also and status != "done":  # the run itself is none the worse
            return
        record = {
            "status": status,
            **asdict(one.job),
            "commands": [shlex.join(["covprop", *words]) for words in self._public(one.job)],
            "seconds_by_command": one.seconds,
            "wall_seconds": round(wall, 2),
            "restarts": one.restarts,
            "side_by_side": self.options.slots + self.options.beside,
            **self.facts,
        }
        if self.options.also:  # what was done before stands as it was
            before = json.loads((one.folder / "run.json").read_text(encoding="utf-8"))
            new = [words for words in record["commands"] if words not in before["commands"]]
            before["commands"] += new
            before["seconds_by_command"] |= one.seconds
            record = before
        write(one.folder / "run.json", (json.dumps(record, indent=1) + "\n").encode())

    def _public(self, job: Job) -> list[list[str]]:
        """The commands as anyone would give them, without this machine's folders."""
        data = Path("DATA") if self.options.data else None
        run = Path("runs") / job.path
        return (job.also_commands if self.options.also else job.commands)(run, data)

    def _stop(self) -> None:
        """Every run writes a checkpoint and ends; the same command goes on from there."""
        for one in self.running:
            assert one.process is not None
            one.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + GRACE
        for one in self.running:
            assert one.process is not None
            try:
                one.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
            one.log.close()
            say(f"{one.job.path}: stopped by the time limit")

    def archive(self) -> None:
        """All small files of finished jobs as one .tar.gz, whole or not at all."""
        if self.options.archive is None:
            return
        self.options.archive.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.options.archive.with_suffix(".part")
        folders = [self.options.runs / wave for wave in self.waves]
        done = [file.parent for folder in folders for file in sorted(folder.glob("*/run.json"))]
        files = [file for run in done for file in sorted(run.iterdir())]
        files += [file for folder in folders for file in sorted(folder.glob("timing*"))]
        with tarfile.open(temporary, "w:gz") as tar:
            for file in files:
                if file.is_file() and file.suffix not in LEFT_OUT and file.name[0] != ".":
                    tar.add(file, arcname=str(file.relative_to(self.options.runs)))
        os.replace(temporary, self.options.archive)

    def time_alone(self) -> None:
        """Seconds of an epoch of every job, with nothing else of ours on the machine."""
        for wave in self.waves:
            jobs = [job for job in self.waiting if job.wave == wave]
            folder = self.options.runs / wave
            for said in time_epochs(jobs, folder, self.options.data, self.facts):
                say(said)
                self.archive()


def ended(job: Job, runs: Path) -> str:
    """How the job ended, done or failed, here or under results/; "" if it did not yet."""
    for folder in (runs / job.path, Path("results") / job.path):
        file = folder / "run.json"
        if file.exists():
            return str(json.loads(file.read_text(encoding="utf-8"))["status"])
    return ""


def show(jobs: list[Job], runs: Path) -> None:
    """A line a job, and what those that have not ended yet will take."""
    left = [job for job in jobs if not ended(job, runs)]
    for job in jobs:
        when = f"about {duration(job.alone)}" if job in left else ended(job, runs)
        print(f"{job.path:60s} {job.epochs:4d} epochs  {when}")
    print(
        f"{len(left)} of {len(jobs)} jobs left, about {duration(total_alone(left))} of the machine"
    )


def facts() -> machine.Facts:
    """The machine and versions, and whether runs share its GPU through CUDA's MPS."""
    found = machine.facts(choose_device("auto"))
    found.pop("command")  # each run tells its own
    found["mps"] = bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY")) or MPS_PIPE.exists()
    return found


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def main() -> None:
    options = arguments()
    try:
        jobs = [job for file in options.waves for job in read_wave(file, options.set)]
    except CovpropError as error:
        sys.exit(f"results: {error}")
    if options.only:
        jobs = [job for job in jobs if job.name in options.only or job.folder in options.only]
    if options.list:
        show(jobs, options.runs)
        return
    queue = Queue(options, jobs)
    if options.alone:
        queue.time_alone()
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop all runs
        queue.run()
    queue.archive()


if __name__ == "__main__":
    main()
