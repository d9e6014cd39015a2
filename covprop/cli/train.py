"""`covprop train`: a recipe in, a run folder out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from covprop.cli import options


def _shipped(incomplete: str) -> list[str]:
    """Completes RECIPE in the shell."""
    from covprop.train.recipe import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file, or the name of a shipped recipe.",
        autocompletion=_shipped,
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one value of the recipe; may be given many times. "
        "A plain value for a section sets its name: model=lenet.",
        show_default=False,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Train for N epochs instead, with all phases of the recipe (milestones, from_epoch) "
        "in proportion; --set train.epochs=N leaves them where they are.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The run folder. If it holds an unfinished run of the same recipe, that run is "
        "continued. Without it: runs/RECIPE.",
        show_default=False,
    ),
]
Restart = Annotated[
    bool,
    typer.Option(
        "--restart", help="Start over; a run that is there is kept as RUN.old-1 and so on."
    ),
]


def train(
    recipe: Recipe,
    set_: Set = None,
    epochs: Epochs = None,
    out: Out = None,
    data: options.Data = None,
    restart: Restart = False,
) -> None:
    """Train a classifier by a recipe.

    \b
    covprop list recipes                    what is there
    covprop train digits/radius-linearized-0.25   a minute on a laptop
    covprop train cifar10/radius-0.25 --data ~/data --out runs/first
    covprop train mnist/gaussian-0.50 --epochs 3 --set train.lr=0.1
    covprop train my.toml --set model=my_net.py:build      an own model
    covprop train my.toml --set data=photos.npz            own data
    covprop train my.toml --set train.fast=false           no CUDA graph, no compiler
    torchrun --nproc-per-node=8 -m -- covprop train imagenet/radius-0.50

    The run folder gets config.toml (every value, defaults included; itself a recipe),
    metrics.jsonl (a row an epoch), model.safetensors (the weights) and state.pt (to go on).
    Stopped or killed at any moment, the same command goes on and ends with the same weights;
    after a kill it trains again what came since the last checkpoint.
    """
    from covprop.device import is_first

    folder = train_recipe("train", recipe, set_, out, data, restart, epochs)
    if is_first():
        again = ["covprop", "certify", str(folder), *(["--data", str(data)] if data else [])]
        typer.echo(f"The model is in {folder}; certify it with: {shlex.join(again)}")


def train_recipe(
    verb: str,
    recipe: str,
    set_: list[str] | None,
    out: Path | None,
    data: Path | None,
    restart: bool,
    epochs: int | None,
) -> Path:
    """What every verb that trains does; returns the run folder."""
    from rich.console import Console

    from covprop.device import is_first
    from covprop.errors import CovpropError
    from covprop.train import Interrupted, load
    from covprop.train import train as run
    from covprop.train.length import at_length
    from covprop.train.recipe import find

    folder = out
    try:
        changes = list(set_ or [])
        checked = load(recipe, changes + (at_length(recipe, epochs, changes) if epochs else []))
        folder = out or Path("runs") / _run_name(recipe, find(recipe))
        run(checked, folder, data_root=data, restart=restart, console=Console())
    except Interrupted as stopped:
        if is_first():
            again = ["covprop", verb, recipe]
            again += [word for item in set_ or [] for word in ("--set", item)]
            again += ["--epochs", str(epochs)] if epochs else []
            again += ["--out", str(folder)] + (["--data", str(data)] if data else [])
            typer.echo(f"covprop: {stopped}; to continue: {shlex.join(again)}", err=True)
        raise typer.Exit(128 + stopped.signum) from None
    except CovpropError as error:
        if not is_first():  # the first process says it for all
            raise typer.Exit(2) from None
        if "covprop.fix" in str(error):
            raise CovpropError(f"{error}\n{_how_to_fix(verb)}") from error
        raise
    return folder


def _how_to_fix(verb: str) -> str:
    """What `covprop.fix` means for who has a command line before him."""
    other = ', or take a recipe with method.estimator = "linearized"' if verb == "train" else ""
    return f"Return covprop.fix(net) from the function that model= names{other}."


def _run_name(recipe: str, file: Path) -> str:
    """`digits/radius-0.25` for a shipped recipe, the bare file name for an own one."""
    return file.stem if Path(recipe).expanduser().is_file() else recipe.removesuffix(".toml")
