"""The loop of `certify` and `predict`: images in, rows into a log, progress on the way."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from covprop.cli.trained import groups, warn
from covprop.device import is_first, rank_and_world
from covprop.errors import InvalidInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from covprop.certify.records import Log
    from covprop.certify.rows import AnyRow
    from covprop.data import AnyImages, Batch

Answers = Iterator[tuple[list[int], Any]]
"""Places in a sequence of images, and the Certificate or Prediction of these."""
PLAIN_EVERY = 10.0  # seconds between progress lines where there is no terminal
LOAD = 16  # images read at a time


def fill_log(
    path: Path,
    settings: dict[str, Any],
    kind: "type[AnyRow]",
    images: "AnyImages",
    positions: Sequence[int],
    *,
    device: "torch.device",
    evaluate: "Callable[[Iterator[tuple[int, Tensor]], list[int]], Answers]",
    restart: bool = False,
) -> "list[AnyRow] | None":
    """Add to a log the rows it still lacks; all of them, or None while other processes work.

    `evaluate(images, labels)` answers a sequence of (position, image) in any order: it yields
    places in the sequence, and their Certificate or Prediction.
    """
    from covprop.certify.records import Log
    from covprop.certify.rows import rows_of

    _check_name(path)
    rank, world = rank_and_world()
    filled = Log(path, settings, kind, rank=rank, world=world)
    if restart:
        _begin_anew(filled)
    with filled as log:
        share = positions[rank::world]
        todo = [i for i in share if i not in log.done]
        labels = [int(label) for label in images.labels[todo]] if todo else []
        source = _one_by_one(groups(images, todo, LOAD, device) if todo else iter(()))
        try:
            with progress(len(share), len(share) - len(todo)) as advance:
                lap = _stopwatch()
                for places, found in evaluate(source, labels):
                    index = [todo[p] for p in places]
                    seconds = lap() / len(places)
                    for row in rows_of(kind, index, [labels[p] for p in places], found, seconds):
                        log.append(row)
                    advance(len(places))
        except KeyboardInterrupt:
            left = sum(i not in log.done for i in share)
            same = "the same command without --restart" if restart else "the same command"
            warn(f"stopped with {left} images left; {same} goes on.")
            raise typer.Exit(130) from None
        return log.finish(positions)


def _check_name(path: Path) -> None:
    """Refuse a name by which other verbs, or a report, know another kind of file."""
    if path.suffix != ".tsv":
        raise InvalidInput(f"--out names the log, a file ending in .tsv, not {path}.")
    others = {"estimated.tsv": "estimated radii", "labels.tsv": "the labels of a run"}
    for name, what in others.items():
        if path.name == name or path.name.endswith(f".{name}"):
            raise InvalidInput(
                f"{path} is where {what} are kept, so no log may have that name; give --out "
                f"another one, such as {path.with_name('certify_again.tsv')}."
            )


def _begin_anew(log: "Log[AnyRow]") -> None:
    if not log.alone:
        raise InvalidInput(
            "--restart is for one process, since none knows whether others have begun; give it "
            "once without torchrun (with --max 1, for instance), then go on without it."
        )
    if old := log.set_aside():
        typer.echo(f"The earlier log is kept as {old}.")


def _stopwatch() -> Callable[[], float]:
    """Seconds since the last call."""
    last = time.perf_counter()

    def lap() -> float:
        nonlocal last
        before, last = last, time.perf_counter()
        return last - before

    return lap


def _one_by_one(
    found: Iterator[tuple["Batch", list[int]]],
) -> Iterator[tuple[int, "Tensor"]]:
    for batch, index in found:
        yield from zip(index, batch.x, strict=True)


@contextmanager
def progress(total: int, done: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line now and then elsewhere, nothing from the other processes."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    if not is_first():
        yield lambda size: None
        return
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("images", total=total, completed=done)
            yield lambda size: bar.advance(task, size)
        return
    start = last = time.monotonic()
    count = done

    def advance(size: int) -> None:
        nonlocal last, count
        count += size
        now = time.monotonic()
        if now - last >= PLAIN_EVERY or count == total:
            pace = (now - start) / max(count - done, 1)
            left = pace * (total - count)
            print(f"{count} of {total} images, {left:.0f} s left", file=sys.stderr, flush=True)
            last = now

    yield advance
