"""What a run says: a progress bar or plain lines, metrics.jsonl, TensorBoard on request."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from covprop import files
from covprop.errors import CovpropError, install

Row = dict[str, int | float | None]
PLAIN_EVERY = 30.0
"""Seconds between the lines within an epoch where there is no terminal."""


def sentence(row: Row) -> str:
    """One epoch in words; the radius is called an estimate, since it is one.

    Example:
        >>> sentence({"epoch": 2, "loss": 0.5, "train_accuracy": 0.9, "estimated_radius": None})
        'epoch 2: loss 0.5000, train accuracy 0.900'
    """
    parts = [f"loss {row['loss']:.4f}"]
    for key, form in (
        ("train_accuracy", "train accuracy {:.3f}"),
        ("test_accuracy_noisy", "test accuracy {:.3f} under noise"),
        ("test_accuracy_clean", "{:.3f} clean"),
        ("holdout_accuracy_noisy", "held-out accuracy {:.3f} under noise"),
        ("holdout_accuracy_clean", "{:.3f} clean"),
        ("estimated_radius", "estimated radius {:.3f}"),
        ("lr", "lr {:.3g}"),
        ("images_per_second", "{:.0f} images/s"),
        ("seconds", "{:.1f} s"),
    ):
        if row.get(key) is not None:
            parts.append(form.format(row[key]))
    return f"epoch {row['epoch']}: {', '.join(parts)}"


def span(seconds: float) -> str:
    """A time still to come, no more exact than an estimate is.

    Example:
        >>> span(42.3), span(754), span(8100)
        ('42 s', '13 min', '2 h 15 min')
    """
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Metrics:
    """metrics.jsonl, one row an epoch, in step with the checkpoint."""

    def __init__(self, path: Path, keep: int) -> None:
        """Drop the rows after the first `keep`: the epochs they tell of will be run again."""
        self.path = path
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        self.dropped = max(len(lines) - keep, 0)
        if len(lines) > keep or not path.exists():
            files.write(path, b"".join(lines[:keep]))

    def append(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise files.unwritable(self.path, error) from error


class Display:
    """Progress for the one process that talks; the others get `Display(None, …)` and are silent."""

    def __init__(self, console: Console | None, *, epochs: int, steps: int, done: int) -> None:
        self.console = console
        self.epochs, self.steps = epochs, steps
        self.first: tuple[float, int] | None = None  # when the first steps were over, how many
        self.last = time.monotonic()
        self.bar: Progress | None = None
        self.task = TaskID(0)
        if console is None or not console.is_terminal:
            return
        self.bar = Progress(
            # Narrow enough for 80 columns; the time left is never cut.
            TextColumn("{task.description}"),
            BarColumn(bar_width=4),
            TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(table_column=Column(min_width=7, no_wrap=True)),
            TextColumn("left"),
            console=console,
        )
        self.task = self.bar.add_task("train", total=epochs * steps, completed=done, now="")
        self.bar.start()

    def step(self, done: int, epoch: int, row: Row) -> None:
        """Show the running means of the epoch; `done` steps of the whole run are behind us."""
        if self.bar is None:
            self._plain_step(done, epoch, row)
            return
        now = f"loss {row['loss']:.3f} acc {row['train_accuracy']:.3f}"
        if row["estimated_radius"] is not None:
            now += f" est. radius {row['estimated_radius']:.3f}"
        if self.bar.console.width >= 100:
            now += f" {row['images_per_second']:.0f} images/s"
        where = f"epoch {epoch + 1}/{self.epochs} step {done - epoch * self.steps}/{self.steps}"
        self.bar.update(self.task, completed=done, description=where, now=now)

    def _plain_step(self, done: int, epoch: int, row: Row) -> None:
        """A line now and then within a long epoch; the time left is not by the first steps, which
        warm up."""
        now = time.monotonic()
        self.first = self.first or (now, done)
        step = done - epoch * self.steps
        if now - self.last < PLAIN_EVERY or step == self.steps:  # whose end has a line of its own
            return
        since, before = self.first
        text = f"epoch {epoch + 1} of {self.epochs}, step {step} of {self.steps}: "
        text += f"loss {row['loss']:.4f}, {row['images_per_second']:.0f} images/s"
        if done > before:
            left = (now - since) / (done - before) * (self.epochs * self.steps - done)
            text += f", {span(left)} left"
        self.say(text)

    def say(self, *lines: str) -> None:
        """Lines that stay. Where they cannot be printed any more the run goes on in silence."""
        self.last = time.monotonic()
        for line in lines:
            if self.console is None:
                return
            try:
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)
            except (OSError, SystemExit):  # the latter is rich's answer to a closed pipe
                self.console = None

    def close(self) -> None:
        """Leave the terminal as it was, if it is still there."""
        if self.bar is not None:
            with suppress(OSError):
                self.bar.stop()


class Board:
    """The same numbers for TensorBoard, in RUN/tensorboard."""

    def __init__(self, folder: Path, purge_after: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise CovpropError(
                "train.tensorboard needs the package tensorboard; install it with "
                f"{install('tensorboard')}, or set it to false."
            ) from error
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_after + 1)

    def add(self, row: Row) -> None:
        for key, value in row.items():
            if key != "epoch" and value is not None:
                self.writer.add_scalar(key, value, row["epoch"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
