"""`covprop demo`: the whole way on embedded data, from training to the report."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

RECIPES = ("digits/gaussian-0.25", "digits/macer-0.25", "digits/radius-linearized-0.25")


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path(
        "runs/demo"
    ),
    n: Annotated[int, typer.Option("--n", help="Samples an image for the certificates.")] = 10_000,
    most: Annotated[int | None, typer.Option("--max", help="Certify at most this many.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Train this long.", show_default="the recipes'")
    ] = None,
) -> None:
    """Train plain, MACER and covprop on digits, certify all three, and write the report.

    \b
    covprop demo                  a few minutes on two cores; what `make demo` runs
    covprop demo --out /tmp/d     the same, elsewhere

    It runs these commands, which you can run yourself:
      covprop train RECIPE --out OUT/NAME
      covprop certify OUT/NAME --n 10000
      covprop estimate OUT/NAME
      covprop report OUT --out OUT/report
    Run again, it goes on where it was.
    """
    from covprop.cli.certify import certify
    from covprop.cli.estimate import estimate
    from covprop.cli.report import report
    from covprop.cli.train import train

    start = time.perf_counter()
    length = ["--epochs", epochs] if epochs else []
    number = ["--max", most] if most is not None else []
    for recipe in RECIPES:
        run = out / recipe.rpartition("/")[2]
        typer.echo()
        _show("train", recipe, *length, "--out", run)
        train(recipe, epochs=epochs, out=run)
        _show("certify", run, "--n", n, *number)
        certify(run, n=n, most=most)
        _show("estimate", run, *number)
        estimate(run, most=most)
    folder = out / "report"
    typer.echo()
    _show("report", out, "--out", folder)
    typer.echo()
    report([out], None, folder)
    typer.echo(f"\nDone in {time.perf_counter() - start:.0f} s. Open {folder / 'report.html'}")


def _show(*words: object) -> None:
    """The command that comes next, to be run by hand as it stands."""
    typer.secho(shlex.join(["covprop", *map(str, words)]), bold=True)
