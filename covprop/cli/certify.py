"""`covprop certify`: a run or a checkpoint in, a certification log out."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covprop.cli import options

if TYPE_CHECKING:
    from torch import Tensor

    from covprop.certify import Certificate
    from covprop.certify.rows import Row

DELTA = 0.05


def certify(
    run: options.RunArgument,
    sigma: options.Sigma = None,
    n0: Annotated[int, typer.Option("--n0", help="Samples to guess the class.")] = 100,
    n: options.Samples = 100_000,
    alpha: options.Alpha = 0.001,
    skip: options.Skip = None,
    most: options.Max = None,
    split: options.Split = "test",
    sequential: Annotated[
        bool, typer.Option("--sequential", help="Stop sampling as soon as the answer is known.")
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(help="Sequential: know the radius to within this.", show_default=str(DELTA)),
    ] = None,
    at_least: Annotated[
        list[float] | None,
        typer.Option(
            help="Sequential: know whether the radius reaches this. Repeatable.",
            show_default=False,
        ),
    ] = None,
    soft: Annotated[
        bool,
        typer.Option("--soft", help="Certify the mean probability (empirical Bernstein)."),
    ] = False,
    skip_wrong: Annotated[
        bool,
        typer.Option("--skip-wrong", help="No samples to bound a guess that is not the label."),
    ] = False,
    bf16: options.Bf16 = False,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    batch: options.Batch = None,
    fast: options.Fast = None,
    compiled: options.Compiled = None,
    data: options.Data = None,
    out: Annotated[
        Path | None, typer.Option(help="The log.", show_default="RUN/certify_sigma_S.tsv")
    ] = None,
    restart: options.Restart = False,
    arch: options.Arch = None,
    dataset: options.Dataset = None,
    normalize: options.Normalized = None,
) -> None:
    """Certify the predictions of a smoothed classifier.

    \b
    covprop certify runs/digits/radius-linearized-0.25     with N = 100,000
    covprop certify RUN --n 10000 --max 100          a quick look
    covprop certify RUN --restart                    anew; the log so far is kept
    covprop certify RUN --sequential --delta 0.05    the radius to within 0.05
    covprop certify RUN --at-least 0.5               only: is it at least 0.5?
    covprop certify RUN --at-least .25 --at-least .5 --at-least .75
    covprop certify RUN --skip-wrong                 the same table for less
    torchrun --nproc-per-node=8 -m -- covprop certify RUN --n 10000
    covprop certify net.pth --arch cifar_resnet110 --dataset cifar10 --sigma 0.25

    Rows go one by one to RUN/certify_sigma_S.tsv (idx, label, predict, radius,
    correct, time; predict -1 abstains) and, in full precision, to
    certify_sigma_S.rows.jsonl. Killed at any moment, the same command goes on
    where it was. An image meets the same noise whatever the batch size, the
    number of processes or the order: in float32 on the CPU rows are identical,
    elsewhere equal up to rounding in the network.

    --skip-wrong: an image whose class, guessed from the N0 samples, is not its
    label is logged with that guess, radius 0 and correct 0, and gets no further
    samples. ACR and certified accuracies are those of the full run; how many of
    the wrong images would have abstained stays unknown.
    """
    import torch

    from covprop.certify import SampleWarning, certify_each
    from covprop.certify.inputs import check_options
    from covprop.certify.noise import block_size
    from covprop.certify.rows import Row
    from covprop.cli.filling import fill_log
    from covprop.cli.trained import open_trained
    from covprop.device import choose_device

    radii = tuple(at_least) if at_least else None
    if sequential and delta is None and radii is None:
        delta = DELTA
    trained = open_trained(run, arch=arch, dataset=dataset, normalize=normalize)
    level = trained.choose_sigma(sigma)
    where = choose_device(device)
    step = block_size(trained.image_shape)
    check_options(level, n0, n, alpha, soft=soft, delta=delta, at_least=radii, step=step)
    _check_samples(n, alpha, level, soft=soft)
    images = trained.load_images(split, data)
    positions = trained.choose_positions(images, skip, most)
    asked: dict[str, Any] = {"sigma": level, "n0": n0, "n": n, "alpha": alpha, "seed": seed}
    precision = "bfloat16" if bf16 else "float32"
    settings = trained.settings(
        split, images, **asked, mode=_mode(soft, delta, radii), precision=precision
    )
    if skip_wrong:
        settings["skip_wrong"] = True
    settings |= _unfinished(trained.epochs)
    model = trained.model.to(where)

    def evaluate(
        source: "Iterator[tuple[int, Tensor]]", labels: list[int]
    ) -> "Iterator[tuple[list[int], Certificate]]":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SampleWarning)
            yield from certify_each(
                model,
                source,
                len(labels),
                num_classes=trained.num_classes,
                batch_size=batch,
                device=where,
                dtype=torch.bfloat16 if bf16 else None,
                soft=soft,
                delta=delta,
                at_least=radii,
                labels=labels if skip_wrong else None,
                skip_wrong=skip_wrong,
                fast=fast,
                compiled=compiled,
                **asked,
            )

    path = out or trained.log_path("certify", level)
    rows = fill_log(
        path,
        settings,
        Row,
        images,
        positions,
        device=where,
        evaluate=evaluate,
        restart=restart,
    )
    if rows is not None:
        typer.echo(f"{summary(rows, radii)}\n{path}")


def _check_samples(n: int, alpha: float, sigma: float, *, soft: bool) -> None:
    """Too few to certify any image are refused here: a log of them has no use."""
    from covprop.certify.bounds import fewest_samples, sample_warning
    from covprop.cli.trained import warn
    from covprop.errors import InvalidInput

    if n < (fewest := fewest_samples(alpha, soft=soft)):
        raise InvalidInput(
            f"with --n {n} every image abstains at alpha = {alpha:g}, even if all samples agree; "
            f"{fewest} is the smallest --n that can certify."
        )
    if message := sample_warning(n, alpha, sigma, soft=soft):
        warn(message)


def _unfinished(epochs: tuple[int, int] | None) -> dict[str, int]:
    """What the log's .json says of a run that is not trained to its end; said here, too."""
    from covprop.cli.trained import warn

    if epochs is None or epochs[0] >= epochs[1]:
        return {}
    warn(
        f"no more than {epochs[0]} of {epochs[1]} epochs are trained; the log is of the model as "
        "it is now, and once that is trained further it takes --restart to certify it."
    )
    return {"epochs": epochs[0], "epochs_planned": epochs[1]}


def _mode(soft: bool, delta: float | None, at_least: Sequence[float] | None) -> str:
    parts = ["soft" if soft else "hard"]
    if delta is not None:
        parts.append(f"sequential to within {delta:.12g}")
    if at_least is not None:
        parts.append(f"sequential, at least {', '.join(f'{r:.12g}' for r in at_least)}")
    return ", ".join(parts)


def summary(rows: "list[Row]", at_least: Sequence[float] | None = None) -> str:
    """ACR, certified accuracy at 0, 0.25, …, abstentions, samples, seconds, and NaN if any.

    Of images that were not bounded (n = 0) nobody knows whether they would have abstained.

    Where only "at least r?" was asked the radii are no more than what that took, so ACR and the
    accuracy at other radii would mean nothing.
    """
    from covprop.report.summary import radii_up_to

    count = len(rows)
    largest = max(row.radius * row.correct for row in rows)
    radii = radii_up_to(largest) if at_least is None else at_least
    shares = [sum(row.correct and row.radius >= r for row in rows) / count for r in radii]
    table = "  ".join(f"{r:g}: {share:.3f}" for r, share in zip(radii, shares, strict=True))
    acr = sum(row.correct * row.radius for row in rows) / count
    skipped = sum(row.n == 0 for row in rows)
    unbounded = f"wrong guesses not bounded {skipped / count:.1%}, " if skipped else ""
    lines = [
        f"{count} images" + (f", ACR {acr:.3f}" if at_least is None else ""),
        f"certified accuracy at radius  {table}",
        f"abstained {sum(row.predict == -1 for row in rows) / count:.1%}, {unbounded}"
        f"mean samples {sum(row.n for row in rows) / count:.0f}, "
        f"{sum(row.seconds for row in rows):.1f} s",
    ]
    broken = sum(row.nan > 0 for row in rows)
    if broken:
        lines.append(f"the model returned NaN on {broken} images; such samples count for no class")
    return "\n".join(lines)
