"""`covprop noisy`: train on labels of which some are wrong, and say which."""

from __future__ import annotations

from typing import Annotated

import typer

from covprop.cli import options
from covprop.cli.train import Epochs, Out, Recipe, Restart, Set, train_recipe


def noisy(
    recipe: Recipe,
    set_: Set = None,
    epochs: Epochs = None,
    out: Out = None,
    data: options.Data = None,
    restart: Restart = False,
    cleanlab: Annotated[
        bool,
        typer.Option(
            "--cleanlab", help="Compare the suspect labels with cleanlab's, if installed."
        ),
    ] = False,
) -> None:
    """Train on labels of which some are wrong, and list the suspects.

    \b
    covprop noisy noisy/digits/coteaching-pair-0.45     seconds on a laptop
    covprop noisy noisy/cifar10/radius-label-pair-0.45 --data ~/data --epochs 15
    covprop noisy my.toml --set labels=none             own labels, of unknown quality
    covprop noisy my.toml --set labels.name=file --set labels.file=given.csv
    covprop list noisy                                  the methods and their options

    The section "labels" of the recipe is pair, symmetric (with a rate), matrix, file, or none.
    Besides what `covprop train` writes, the run folder gets labels.tsv (the labels training saw,
    beside the true ones), suspects.csv (every label, most suspect first, in cleanlab's columns),
    suspects.png (the first of them), predictions.npz and summary.json. Accuracy is the mean over
    the last ten epochs.
    """
    from covprop.errors import InvalidInput
    from covprop.noisy.cleanlab import require
    from covprop.noisy.report import judge, sentences
    from covprop.train import load

    if load(recipe, set_ or []).labels is None:
        raise InvalidInput(
            f"Recipe {recipe} has no [labels]; add --set labels=none for labels of unknown "
            'quality, or name = "pair" and a rate under [labels].'
        )
    if cleanlab:
        require()
    folder = train_recipe("noisy", recipe, set_, out, data, restart, epochs)
    for line in sentences(judge(folder, data, cleanlab=cleanlab)):
        typer.echo(line)
    typer.echo(f"The suspects are in {folder / 'suspects.csv'} and {folder / 'suspects.png'}.")
