"""What the verbs of `covprop bench` share: their options, how they start and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import Tensor, nn

    from covprop.bench.report import Report
    from covprop.bench.timing import Effort

RESULTS = Path("results/bench")

Model = Annotated[str, typer.Option(help="A model's name; see covprop list models.")]
Width = Annotated[
    int | None, typer.Option(help="Channels of the first stage.", show_default="the model's")
]
Norm = Annotated[str | None, typer.Option(help="batch, none or act.", show_default="the model's")]
Image = Annotated[
    int | None,
    typer.Option(help="Pixels a side; above 96 with the ImageNet stem.", show_default="32"),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", show_default="torch's")]
Rounds = Annotated[
    int | None, typer.Option(help="How often each side is timed.", show_default="30")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Only show that it runs: few rounds, figures mean nothing.")
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")
]
Save = Annotated[bool, typer.Option("--save", help=f"Write JSON, Markdown and plots to {RESULTS}.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write them to this folder instead.")]


def trained(
    folder: Path, device: torch.device, root: Path | None, images: int
) -> tuple[str, float, int, nn.Module, Tensor]:
    """Name, σ, number of classes, model and some test images of a run."""
    from covprop import data
    from covprop.errors import InvalidInput
    from covprop.run import Run

    opened = Run(folder)
    split = opened.load_data("test", root)
    if not 1 <= images <= len(split):
        raise InvalidInput(f"--images is {images}, but {split.name} has {len(split)} test images.")
    batch = next(iter(data.batches(split, images, epoch=0, seed=0, device=device)))
    name = "-".join(folder.resolve().parts[-2:])
    return name, opened.sigma, opened.num_classes, opened.load_model(device), batch.x


def start(device: str, threads: int | None) -> tuple[torch.device, Console]:
    """Where a verb measures, and where it says so."""
    import torch

    from covprop.cli.console import wide_console
    from covprop.device import choose_device
    from covprop.errors import InvalidInput

    where = choose_device(device)
    if threads is not None:
        if threads < 1:
            raise InvalidInput(f"--threads must be at least 1, not {threads}.")
        torch.set_num_threads(threads)
    if where.type == "cuda":
        torch.cuda.set_device(where)
        torch.backends.cudnn.benchmark = True
    return where, wide_console(180)


def effort(rounds: int | None, quick: bool) -> Effort:
    """How long to measure."""
    import dataclasses

    from covprop.bench.timing import QUICK, Effort

    usual = QUICK if quick else Effort()
    return usual if rounds is None else dataclasses.replace(usual, rounds=rounds)


def write(
    report: Report, json: Path | None, save: bool, out: Path | None, figures: bool = True
) -> list[Path]:
    from covprop.files import write as write_file

    written = []
    if json is not None:
        written.append(write_file(json, report.json().encode()))
    if save or out is not None:
        written += report.save(out or RESULTS, figures)
    return written


def finish(
    report: Report, console: Console, json: Path | None, save: bool, out: Path | None
) -> None:
    report.print(console)
    for path in write(report, json, save, out):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
