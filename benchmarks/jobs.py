"""Wave files: which runs are trained and certified side by side, and how long each may take.

A wave is a TOML file of jobs. Keys above the first [[job]] are defaults of all its jobs:

    recipe = "cifar10/minutes/gaussian-0.25"
    set = ["train.lr=0.2"]         # a job's own come after the wave's
    epochs = 20                    # or a list: a run of each length; the recipe's phases scale
    seeds = [0]
    certify = "--n 10000 --bf16"   # words for `covprop certify`; "" certifies nothing
    also = { fixed = "--n 100000" }   # more logs, RUN/certify_fixed.tsv, once asked for by --also
    estimate = ["shared"]          # estimators for `covprop estimate` on the same images
    seconds = 0.7                  # a guess: an epoch with the machine to itself
    certify_seconds = 12           # a guess: certification and estimates, likewise
    folder = "imagenet-sample"     # instead of the recipe's data: a folder below --data …
    repeat = 20                    # … each training image of it linked so many times

    [[job]]
    name = "gaussian"

    [[job]]
    name = "consistency"
    recipe = "cifar10/minutes/consistency-0.25"
    seconds = 1.2

What `set` says stands as it is; only phases that the recipe itself names scale with `epochs`.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from covprop.errors import InvalidInput
from covprop.names import nearest
from covprop.train import load
from covprop.train.length import at_length

KEYS = (
    *("recipe", "set", "epochs", "seeds", "certify", "estimate", "seconds", "certify_seconds"),
    *("also", "folder", "repeat"),
)
REFUSED = 2
"""Exit code of `covprop` where it says what is wrong: a run that diverged, for one."""
RESTARTS = 2
"""How often the commands of a job may crash before it has failed."""


@dataclass(frozen=True)
class Job:
    """One run: trained, certified, estimated."""

    wave: str
    name: str
    recipe: str
    set: tuple[str, ...]
    seed: int
    epochs: int
    certify: tuple[str, ...]
    estimate: tuple[str, ...]
    seconds: float
    certify_seconds: float
    data_folder: str = ""
    repeat: int = 1
    also: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> str:
        return f"{self.name}-seed{self.seed}"

    @property
    def path(self) -> str:
        """Where it goes below the folder of runs, and below results/."""
        return f"{self.wave}/{self.folder}"

    @property
    def alone(self) -> float:
        """Seconds that it keeps the machine busy, without its start."""
        return self.epochs * self.seconds + self.certify_seconds

    def commands(self, run: Path, data: Path | None) -> list[list[str]]:
        """The `covprop` command lines that make the run, in order.

        With a `data_folder` of its own, `data` is the folder in which that lies.
        """
        where = ["--data", str(data)] if data else []
        train = ["train", self.recipe, "--out", str(run), *where]
        own = [f"data.name={(data or Path()) / self.data_folder}"] if self.data_folder else []
        for change in [*own, *self.set]:
            train += ["--set", change]
        commands = [train]
        if self.certify:
            commands.append(["certify", str(run), *where, *self.certify])
        if self.estimate:
            words = ["estimate", str(run), *where, *_same_images(self.certify)]
            for name in self.estimate:
                words += ["--estimator", name]
            commands.append(words)
        return commands

    def also_commands(self, run: Path, data: Path | None) -> list[list[str]]:
        """Command lines that certify the finished run in further ways."""
        where = ["--data", str(data)] if data else []
        return [
            ["certify", str(run), *where, *shlex.split(words), "--out", f"{run}/certify_{name}.tsv"]
            for name, words in self.also
        ]


def read_wave(path: Path, more: Sequence[str] = ()) -> list[Job]:
    """Every job of a wave file, each checked down to its recipe, in the file's order.

    `more` are changes for all of them, after their own.
    """
    try:
        wave = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as a wave of jobs: {error}.") from None
    given = wave.pop("job", [])
    _check_keys(path, wave)
    jobs: list[Job] = []
    for entry in given:
        own = dict(entry)
        if not isinstance(name := own.pop("name", None), str):
            raise InvalidInput(f"{path}: every [[job]] needs a name.")
        _check_keys(path, own)
        changes = [*wave.get("set", []), *own.get("set", []), *more]
        jobs += _expand(name, {**wave, **own, "set": changes}, path)
    folders = [job.folder for job in jobs]
    if twice := sorted({folder for folder in folders if folders.count(folder) > 1}):
        raise InvalidInput(f"{path} holds {', '.join(twice)} more than once; rename a job.")
    return jobs


def _check_keys(path: Path, given: dict[str, Any]) -> None:
    for key in given:
        if key not in KEYS:
            raise InvalidInput(f'{path}: unknown key "{key}"{nearest(key, KEYS)}.')


def _expand(name: str, options: dict[str, Any], path: Path) -> list[Job]:
    if "recipe" not in options:
        raise InvalidInput(f"{path}: job {name} names no recipe.")
    recipe, given = options["recipe"], options.get("epochs")
    several = isinstance(given, list)
    lengths: list[int | None] = given if isinstance(given, list) else [given]
    jobs = []
    for epochs in lengths:
        scaled = [] if epochs is None else at_length(recipe, epochs)
        changes = [*scaled, *options["set"]]
        for seed in options.get("seeds", [0]):
            every = (*changes, f"train.seed={seed}")
            jobs.append(
                Job(
                    wave=path.stem,
                    name=f"{name}-{epochs}epochs" if several else name,
                    recipe=recipe,
                    set=every,
                    seed=seed,
                    epochs=load(recipe, every).train.epochs,
                    certify=tuple(shlex.split(options.get("certify", ""))),
                    estimate=tuple(options.get("estimate", ())),
                    seconds=float(options.get("seconds", 1.0)),
                    certify_seconds=float(options.get("certify_seconds", 0.0)),
                    data_folder=options.get("folder", ""),
                    repeat=options.get("repeat", 1),
                    also=tuple(options.get("also", {}).items()),
                )
            )
    return jobs


def _same_images(certify: Sequence[str]) -> list[str]:
    """The words that choose images, so that estimates are for those that were certified."""
    words: list[str] = []
    for option in ("--split", "--skip", "--max", "--device"):
        if option in certify:
            at = certify.index(option)
            words += certify[at : at + 2]
    return words


def repeated(source: Path, target: Path, times: int) -> None:
    """A class-folder tree with each training image `times` over, as links: a longer epoch."""
    for file in sorted(source.rglob("*.*")):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        many = times if file.relative_to(source).parts[0] == "train" else 1
        for number in range(many):
            link = place.with_name(f"{place.stem}-{number}{place.suffix}")
            if not link.is_symlink():
                link.symlink_to(file.resolve())


class Pace:
    """How long a job takes beside others: its own seconds, stretched by what was seen so far."""

    def __init__(self, startup: float, slots: int) -> None:
        self.startup, self.slots = startup, slots
        self.seen: list[float] = []

    def finished(self, job: Job, wall: float) -> None:
        """Learn from a job that took `wall` seconds beside as many others as there are slots."""
        if job.alone > 0:
            self.seen.append(max(wall - self.startup, 0.0) / job.alone)

    def wall(self, job: Job, running: int) -> float:
        """Seconds until `job` would be done if it started now, beside `running` others.

        Until something is known, runs side by side are taken to share the machine evenly.
        """
        full = sorted(self.seen)[len(self.seen) // 2] if self.seen else float(self.slots)
        share = min(1.0, (running + 1) / self.slots)
        return self.startup + max(1.0, full * share) * job.alone

    def choose(self, jobs: Sequence[Job], running: int, left: float) -> int | None:
        """The first job that will be done in `left` seconds; None if there is none."""
        fits = (i for i, job in enumerate(jobs) if self.wall(job, running) <= left)
        return next(fits, None)


def total_alone(jobs: Sequence[Job]) -> float:
    """Seconds of the machine that a list of jobs takes, as guessed in its wave."""
    return math.fsum(job.alone for job in jobs)


@dataclass
class Running:
    """A job under way: its commands still to come, and what the finished ones took."""

    job: Job
    folder: Path
    commands: list[list[str]]
    log: IO[bytes]
    began: float = field(default_factory=time.monotonic)
    step_began: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0

    def start(self, environment: dict[str, str]) -> None:
        """Start the next command."""
        self.step_began = time.monotonic()
        words = [sys.executable, "-m", "covprop", *self.commands[0]]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, env=environment)

    def step_done(self, environment: dict[str, str]) -> int | None:
        """Exit code of the command under way, once it ended; its seconds are then known.

        One that crashed, as a GPU's failure makes it, is started again: it goes on where it was.
        """
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return None
        verb, *words = self.commands[0]
        if "--out" in words and verb == "certify":
            verb = Path(words[-1]).stem  # one of several
        took = self.seconds.get(verb, 0.0) + time.monotonic() - self.step_began
        self.seconds[verb] = round(took, 2)
        if code not in (0, REFUSED) and self.restarts < RESTARTS:
            self.restarts += 1
            self.start(environment)
            return None
        self.commands.pop(0)
        return code
