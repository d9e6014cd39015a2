"""`covprop inspect`: the paper's figures and layer tables, on one's own network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covprop.cli import options
from covprop.errors import InvalidInput, UnsupportedModel

if TYPE_CHECKING:
    from covprop.inspect import Exhibit

SHOW = "layers, distribution, last-layer, toy, cost, margin-map"


def inspect(
    run: options.RunArgument,
    layers: Annotated[
        str,
        typer.Option(help='Layers by number or name ("1,5,9"), all, or paper: five evenly spaced.'),
    ] = "all",
    n: Annotated[int, typer.Option("--n", help="Noisy copies of each image.")] = 1000,
    most: Annotated[int, typer.Option("--max", help="Images to average over.")] = 16,
    images: Annotated[
        str | None,
        typer.Option(
            help="Test images shown singly, by number in the data set: 0,12,40.",
            show_default="four, from small to large estimated radius",
        ),
    ] = None,
    channels: Annotated[
        str | None,
        typer.Option(
            help="The two channels of the distribution figure: 0,3.",
            show_default="the noisiest two",
        ),
    ] = None,
    certify_n: Annotated[
        int, typer.Option(help="Samples for the certificates of the images shown singly.")
    ] = 10_000,
    r_max: Annotated[
        str,
        typer.Option(
            help="Largest correlation that is assumed between pixels, in [0, 1]; or estimated: "
            "measured layer by layer."
        ),
    ] = "0.2",
    show: Annotated[str, typer.Option(help="What to make, with commas between.")] = SHOW,
    out: Annotated[
        Path | None, typer.Option(help="Where it goes.", show_default="RUN/inspect")
    ] = None,
    sigma: options.Sigma = None,
    split: options.Split = "test",
    seed: options.Seed = 0,
    device: options.Device = "auto",
    data: options.Data = None,
    arch: options.Arch = None,
    dataset: options.Dataset = None,
    normalize: options.Normalized = None,
) -> None:
    """See what the noise does inside a network, layer by layer.

    \b
    covprop inspect runs/digits/radius-linearized-0.25
    covprop inspect RUN --layers paper --n 1000       the paper's layer table
    covprop inspect RUN --images 3,17 --channels 0,5  chosen images and channels
    covprop inspect RUN --show layers                 the layer table alone

    Prints the layer table and writes to RUN/inspect: every figure as PNG and SVG with
    its data as CSV, and inspect.html, one page that explains them. Layers are numbered
    along the longest chain: PreActResNet-18 has convolutions 1 to 17.
    """
    import torch

    from covprop.cli.trained import groups, open_trained
    from covprop.device import choose_device
    from covprop.inspect import exhibits, write
    from covprop.propagate.settings import PAPER

    trained = open_trained(run, arch=arch, dataset=dataset, normalize=normalize)
    level = trained.choose_sigma(sigma)
    where = choose_device(device)
    pictures = trained.load_images(split, data)
    wanted = _numbers(images, "--images")
    positions = trained.choose_positions(pictures, None, most)
    positions += [i for i in wanted if i not in positions and 0 <= i < len(pictures)]
    missing = [i for i in wanted if i not in positions]
    if missing:
        raise InvalidInput(
            f"--images names {missing[0]}, but there are {len(pictures)} images, from 0 on."
        )
    pair = _numbers(channels, "--channels")
    if channels is not None and len(pair) != 2:
        raise InvalidInput(f'--channels is "{channels}": give two numbers, such as 0,3.')
    ((batch, _),) = groups(pictures, positions, len(positions), where)
    torch.manual_seed(seed)
    try:
        shown = exhibits(
            trained.model.to(where),
            batch.x,
            batch.y.tolist(),
            level,
            settings=PAPER.but(r_max=_correlation(r_max)),
            chosen=layers,
            images=[positions.index(i) for i in wanted] or None,
            channels=(pair[0], pair[1]) if pair else None,
            classes=pictures.classes,
            indices=positions,
            samples=n,
            n=certify_n,
            seed=seed,
            parts=[part.strip() for part in show.split(",")],
        )
    except UnsupportedModel as error:
        raise InvalidInput(
            f"{error}\nAs it is, `covprop explore` and `covprop estimate` take this network."
        ) from error
    _print_layers(shown)
    folder = out or trained.folder / f"{trained.stem}inspect"
    title = f"Inside {trained.arch} on {trained.dataset}, σ = {level:g}"
    typer.echo(str(write(shown, folder, title)[-1]))


def _numbers(text: str | None, option: str) -> list[int]:
    """ "0,12,40" as numbers."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdigit() for word in words):
        raise InvalidInput(f'{option} is "{text}": give numbers with commas between, such as 0,12.')
    return [int(word) for word in words]


def _correlation(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _print_layers(shown: "list[Exhibit]") -> None:
    from rich.table import Table

    from covprop.cli.console import wide_console
    from covprop.inspect.page import text

    for exhibit in shown:
        if exhibit.name != "layers":
            continue
        table = Table()
        for column in exhibit.columns:
            table.add_column(column, justify="left" if column == "name" else "right")
        for row in exhibit.rows:
            table.add_row(*(text(cell) for cell in row))
        wide_console().print(table)
