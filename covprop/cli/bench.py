"""`covprop bench`: what a step, a pass or a certificate costs, measured side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covprop.cli import benching, options

app = typer.Typer(
    help="Measure training steps, propagation passes, certification and estimators.",
    no_args_is_help=True,
)


@app.command("step")
def step(
    model: benching.Model = "preact_resnet18",
    width: benching.Width = None,
    norm: benching.Norm = None,
    image: benching.Image = None,
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
    device: options.Device = "auto",
    threads: benching.Threads = None,
    rounds: benching.Rounds = None,
    quick: benching.Quick = False,
    json: benching.Json = None,
    save: benching.Save = False,
    out: benching.Out = None,
) -> None:
    """One training step (forward, loss, backward, SGD) of every method over a plain one.

    \b
    covprop bench step                              on the GPU if there is one
    covprop bench step --batch 256 --method shared --method macer
    covprop bench step --image 224 --batch 256      the ImageNet stem
    covprop bench step --model lenet --batch 128 --threads 2
    covprop bench step --save                       into results/bench

    Methods: plain, consistency, macer, shared (gradient through Σ),
    shared-detached, calibrated, linearized. Every method gets the same
    tricks, and every ratio is over the fastest plain step, which runs in turn
    with it. On a GPU in bfloat16 and channels last, on the CPU in float32.
    """
    from covprop.bench import machine
    from covprop.bench.report import Report
    from covprop.bench.step import METHODS, Cell, measure
    from covprop.bench.step_report import file_name, step_report
    from covprop.bench.subject import subject as subject_of
    from covprop.bench.tricks import available

    where, console = benching.start(device, threads)
    subject = subject_of(model, where, width=width, norm=norm, image=image)
    effort = benching.effort(rounds, quick)
    tricks = trick or available(where)
    facts = machine.facts(where)
    chosen = list(dict.fromkeys(["plain", *(method or list(METHODS))]))
    batches = batch or ([4] if quick else [64, 256, 1024])
    name = file_name(subject, chosen, batches)
    cells: list[Cell] = []

    def report() -> Report:
        return step_report(cells, subject, tricks, effort, facts, name)

    def say(cell: Cell) -> None:
        cells.append(cell)
        shown = f"{1000 * cell.time.median:8.2f} ms" if cell.time else cell.note
        if cell.time and cell.method != "plain":
            shown += f", {cell.ratio:.3f} times plain"
        what = f"batch {cell.batch:5d}  {cell.method:15s} {cell.trick:18s}"
        console.print(f"{what} {shown}", highlight=False, soft_wrap=True)
        # A run that is cut short leaves what it has measured.
        benching.write(report(), json, save, out, figures=False)

    measure(subject, chosen, batches, tricks, effort, say)
    benching.finish(report(), console, json, save, out)


@app.command("layers")
def layers(
    model: benching.Model = "preact_resnet18",
    width: benching.Width = None,
    norm: benching.Norm = None,
    image: benching.Image = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Repeatable.", show_default="64 and 256")
    ] = None,
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="Also the covariance pass layer by layer.")
    ] = False,
    depth: Annotated[
        bool, typer.Option(help="Also the covariance pass of PreActResNet-18, 34, 50 and 101.")
    ] = True,
    device: options.Device = "auto",
    threads: benching.Threads = None,
    rounds: benching.Rounds = None,
    quick: benching.Quick = False,
    json: benching.Json = None,
    save: benching.Save = False,
    out: benching.Out = None,
) -> None:
    """The passes of the propagation over a plain forward pass, memory, and cost by depth.

    \b
    covprop bench layers                          PreActResNet-18, batch 64 and 256
    covprop bench layers --norm none --by-layer
    covprop bench layers --model lenet --no-depth

    The covariance pass does not depend on the images; "mean pass, Σ cached"
    is what inference costs inside `with prop.frozen()`.
    """
    from covprop.bench import layers as bench
    from covprop.bench import machine
    from covprop.bench.layers_report import layers_report
    from covprop.bench.subject import subject as subject_of

    where, console = benching.start(device, threads)
    subject = subject_of(model, where, width=width, norm=norm, image=image)
    effort = benching.effort(rounds, quick)
    facts = machine.facts(where)
    batches = batch or ([4] if quick else [64, 256])
    found, bytes_by_batch = [], {}
    for size in batches:
        console.print(f"passes and memory at batch {size} …", highlight=False)
        found.append(bench.passes(subject, size, effort))
        bytes_by_batch[size] = bench.memory_ratio(subject, size)
    names = bench.DEPTHS[:2] if quick else bench.DEPTHS
    # The networks of the family, with this one's image, width and norm.
    family = subject if model in bench.DEPTHS else subject.but(channels=3, image=32, width=None)
    console.print("covariance pass by depth and by layer …", highlight=False)
    depths = bench.depth(family, names, effort) if depth else []
    each = bench.by_layer(subject, effort) if by_layer else []
    report = layers_report(found, bytes_by_batch, depths, each, subject, facts)
    benching.finish(report, console, json, save, out)


@app.command("certify")
def certify(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="A run folder; without it an untrained model.", show_default=False
        ),
    ] = None,
    model: benching.Model = "preact_resnet18",
    width: benching.Width = None,
    norm: benching.Norm = None,
    image: benching.Image = None,
    n: Annotated[
        int | None, typer.Option("--n", help="Samples an image.", show_default="100000; CPU: 2000")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            help="Images certified sequentially.", show_default="a run's: 500; else 16; CPU: 4"
        ),
    ] = None,
    few: Annotated[
        int, typer.Option(help="Images certified by the usual loop, which is slow.")
    ] = 2,
    batch: Annotated[
        int | None,
        typer.Option(help="Samples in one forward pass on a GPU.", show_default="32 px: 2112"),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also compiled passes, on a GPU.")
    ] = True,
    device: options.Device = "auto",
    threads: benching.Threads = None,
    rounds: benching.Rounds = None,
    data: options.Data = None,
    quick: benching.Quick = False,
    json: benching.Json = None,
    save: benching.Save = False,
    out: benching.Out = None,
) -> None:
    """Certification against the usual loop (Cohen's: batch 1,000, float32).

    \b
    covprop bench certify                     PreActResNet-18, untrained
    covprop bench certify runs/cifar          sequential needs a trained one
    covprop bench certify --model lenet --n 1000 --images 1

    With the share of what the machine reaches in a large matrix product,
    measured in the same run, and what 500 and 2,000 images would take.
    """
    from covprop.bench import certify as bench
    from covprop.bench import machine
    from covprop.bench.certify_report import certify_report
    from covprop.bench.subject import SIGMA
    from covprop.bench.subject import subject as subject_of

    where, console = benching.start(device, threads)
    subject = subject_of(model, where, width=width, norm=norm, image=image)
    effort = benching.effort(rounds or (None if quick else 3), quick)
    facts = machine.facts(where)
    cuda = where.type == "cuda"
    samples = n or (200 if quick else 100_000 if cuda else 2000)
    if run is None:
        name, sigma, classes = subject.name, SIGMA, subject.classes
        count, weights = images or (16 if cuda else 4), "untrained, random images"
        network, x = subject.build().eval(), subject.batch(count)[0]
    else:
        count, weights = images or (500 if cuda else 4), f"of {run}, test images"
        name, sigma, classes, network, x = benching.trained(run, where, data, count)
    task = bench.Task(
        network, x, sigma, classes, n=samples, batch=batch, few=few, compiling=compiled
    )

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    sides = bench.measure(task, effort, 256 if quick else None, say)
    benching.finish(certify_report(sides, task, name, weights, facts), console, json, save, out)


@app.command("truth")
def truth(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    images: Annotated[int, typer.Option(help="How many test images.")] = 64,
    samples: Annotated[int, typer.Option(help="Monte Carlo samples an image.")] = 1000,
    sigma: Annotated[
        float | None, typer.Option(help="Noise level.", show_default="as trained")
    ] = None,
    device: options.Device = "auto",
    threads: benching.Threads = None,
    data: options.Data = None,
    json: benching.Json = None,
    save: benching.Save = False,
    out: benching.Out = None,
) -> None:
    """How true the five estimators are on a trained network.

    \b
    covprop bench truth runs/digits/radius-linearized-0.25
    covprop bench truth RUN --images 200 --samples 5000 --save

    Quantiles over test images of predicted over Monte Carlo variance of the
    margin, and the correlation of their logarithms. The dense estimator is
    asked only where the network is small.
    """
    from covprop.bench import machine
    from covprop.bench.truth_report import truth_report
    from covprop.estimate.truth import estimator_table

    where, console = benching.start(device, threads)
    name, trained_with, _, network, x = benching.trained(run, where, data, images)
    level = trained_with if sigma is None else sigma
    console.print(f"{len(x)} images, {samples:,} samples each …", highlight=False)
    rows = estimator_table(network, x, level, samples)
    report = truth_report(rows, name, level, samples, machine.facts(where))
    benching.finish(report, console, json, save, out)
