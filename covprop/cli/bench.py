"""`covprop bench`: what a step, a pass or a certificate costs, measured side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from covprop.bench.report import Report
    from covprop.bench.subject import Subject
    from covprop.bench.timing import Effort

RESULTS = Path("results/bench")
PLAIN_WIDTH = 180  # wide enough for a table when the output is a file or a pipe

app = typer.Typer(
    help="Measure training steps, propagation passes, certification and estimators.",
    no_args_is_help=True,
)

Model = Annotated[str, typer.Option(help="A model's name; see covprop list models.")]
Width = Annotated[
    int | None, typer.Option(help="Channels of the first stage.", show_default="the model's")
]
Norm = Annotated[str | None, typer.Option(help="batch, none or act.", show_default="the model's")]
Image = Annotated[
    int | None,
    typer.Option(help="Pixels a side; above 96 with the ImageNet stem.", show_default="32"),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", show_default="torch's")]
Rounds = Annotated[int | None, typer.Option(help="Samples of every side.", show_default="30")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Only show that it runs: few rounds, figures mean nothing.")
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")
]
Save = Annotated[bool, typer.Option("--save", help=f"Write JSON, Markdown and plots to {RESULTS}.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write them to this folder instead.")]


@app.command("step")
def step(
    model: Model = "preact_resnet18",
    width: Width = None,
    norm: Norm = None,
    image: Image = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Repeatable.", show_default="64, 256 and 1024")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; plain is always there.", show_default="all"),
    ] = None,
    trick: Annotated[
        list[str] | None,
        typer.Option(
            help="eager, compiled, captured, compiled+captured; repeatable.",
            show_default="all on a GPU, eager on the CPU",
        ),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    rounds: Rounds = None,
    quick: Quick = False,
    json: Json = None,
    save: Save = False,
    out: Out = None,
) -> None:
    """One training step (forward, loss, backward, SGD) of every method over a plain one.

    \b
    covprop bench step                                      everything, on the GPU if there is one
    covprop bench step --batch 256 --method shared --method macer
    covprop bench step --image 224 --batch 256              the ImageNet stem
    covprop bench step --model lenet --batch 128 --threads 2
    covprop bench step --save                               into results/bench

    Methods: plain, consistency, macer, shared (gradient through Σ), shared-detached, calibrated,
    linearized. Every method gets the same tricks, and every ratio is over the fastest plain step,
    which runs in turn with it. On a GPU in bfloat16 and channels last, on the CPU in float32.
    """
    from covprop.bench import machine
    from covprop.bench.step import METHODS, Cell, measure
    from covprop.bench.step_report import step_report
    from covprop.bench.tricks import available

    subject, effort, console = _start(model, width, norm, image, device, threads, rounds, quick)
    tricks = trick or available(subject.device)
    facts = machine.facts(subject.device)
    cells: list[Cell] = []

    def say(cell: Cell) -> None:
        cells.append(cell)
        shown = f"{1000 * cell.time.median:8.2f} ms" if cell.time else cell.note
        if cell.time and cell.method != "plain":
            shown += f", {cell.ratio:.3f} times plain"
        name = f"batch {cell.batch:5d}  {cell.method:15s} {cell.trick:18s}"
        console.print(f"{name} {shown}", highlight=False, soft_wrap=True)
        # A run that is cut short leaves what it has measured.
        _write(step_report(cells, subject, tricks, effort, facts), json, save, out, figures=False)

    chosen = ["plain", *(method or list(METHODS))]
    batches = batch or ([4] if quick else [64, 256, 1024])
    measure(subject, list(dict.fromkeys(chosen)), batches, tricks, effort, say)
    _finish(step_report(cells, subject, tricks, effort, facts), console, json, save, out)


@app.command("layers")
def layers(
    model: Model = "preact_resnet18",
    width: Width = None,
    norm: Norm = None,
    image: Image = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Repeatable.", show_default="64 and 256")
    ] = None,
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="Also the covariance pass layer by layer.")
    ] = False,
    depth: Annotated[
        bool, typer.Option(help="Also the covariance pass of PreActResNet-18, 34, 50 and 101.")
    ] = True,
    device: Device = "auto",
    threads: Threads = None,
    rounds: Rounds = None,
    quick: Quick = False,
    json: Json = None,
    save: Save = False,
    out: Out = None,
) -> None:
    """The passes of the propagation over a plain forward pass, memory, and cost by depth.

    \b
    covprop bench layers                          PreActResNet-18, batch 64 and 256
    covprop bench layers --norm none --by-layer
    covprop bench layers --model lenet --no-depth

    The covariance pass does not depend on the images; "mean pass, Σ cached" is what inference
    costs inside `with prop.frozen()`.
    """
    from covprop.bench import layers as bench
    from covprop.bench import machine
    from covprop.bench.layers_report import layers_report

    subject, effort, console = _start(model, width, norm, image, device, threads, rounds, quick)
    facts = machine.facts(subject.device)
    batches = batch or ([4] if quick else [64, 256])
    found = [bench.passes(subject, size, effort) for size in batches]
    bytes_by_batch = {size: bench.memory_ratio(subject, size) for size in batches}
    names = bench.DEPTHS[:2] if quick else bench.DEPTHS
    # The networks of the family, with this one's image, width and norm.
    family = subject if model in bench.DEPTHS else subject.but(channels=3, image=32, width=None)
    depths = bench.depth(family, names, effort) if depth else []
    each = bench.by_layer(subject, effort) if by_layer else []
    report = layers_report(found, bytes_by_batch, depths, each, subject, facts)
    _finish(report, console, json, save, out)


def _start(
    model: str, width: int | None, norm: str | None, image: int | None, device: str,
    threads: int | None, rounds: int | None, quick: bool,
) -> tuple[Subject, Effort, Console]:  # fmt: skip
    """What every verb needs first."""
    import dataclasses

    import torch
    from rich.console import Console

    from covprop.bench.machine import choose_device
    from covprop.bench.subject import subject
    from covprop.bench.timing import QUICK, Effort
    from covprop.errors import InvalidInput

    where = choose_device(device)
    if threads is not None:
        if threads < 1:
            raise InvalidInput(f"--threads is at least 1, not {threads}.")
        torch.set_num_threads(threads)
    if where.type == "cuda":
        torch.backends.cudnn.benchmark = True
    effort = QUICK if quick else Effort()
    if rounds is not None:
        effort = dataclasses.replace(effort, rounds=rounds)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    return subject(model, where, width=width, norm=norm, image=image), effort, console


def _write(
    report: Report, json: Path | None, save: bool, out: Path | None, figures: bool = True
) -> list[Path]:
    from covprop.train import checkpoint

    written = []
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write(json, report.json().encode())
        written.append(json)
    if save or out is not None:
        written += report.save(out or RESULTS, figures)
    return written


def _finish(
    report: Report, console: Console, json: Path | None, save: bool, out: Path | None
) -> None:
    report.print(console)
    for path in _write(report, json, save, out):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
