"""`covprop export`: the base classifier for other tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covprop.cli import options

if TYPE_CHECKING:
    from covprop.cli.trained import Trained


def export(
    run: options.RunArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The file to write.", show_default="RUN/export.…"),
    ] = None,
    to: Annotated[str, typer.Option(help="safetensors, onnx or cohen.")] = "safetensors",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    arch: options.Arch = None,
    dataset: options.Dataset = None,
    normalize: options.Normalized = None,
) -> None:
    """Write a trained model for other tools.

    \b
    covprop export RUN net.safetensors           tensors under their own names
    covprop export RUN --to onnx net.onnx        pixels in 0..1 to logits
    covprop export RUN --to cohen net.pth.tar    {arch, state_dict}, older tools

    What is written is the base classifier, with its normalisation (in the
    cohen format the reader adds that); noise and voting are the caller's.
    Only ONNX holds the network itself: to read the others, build it with the
    same options. A warning says which are not the defaults.
    """
    from covprop import checkpoints
    from covprop.cli.trained import open_trained, warn
    from covprop.errors import InvalidInput

    end = checkpoints.ending(to)
    trained = open_trained(run, arch=arch, dataset=dataset, normalize=normalize)
    path = file or trained.folder / f"{trained.stem}export{end}"
    checkpoints.check_name(path, to)
    if path.exists() and not force:
        raise InvalidInput(f"{path} is already there; choose another name, or add --force.")
    facts = trained.facts() if to == "cohen" else None
    checkpoints.export(
        trained.model,
        path,
        to=to,
        arch=trained.arch,
        image_shape=trained.image_shape,
        added=(facts.mean or (), facts.std or ()) if facts else None,
    )
    if to != "onnx" and (told := _changed_options(trained)):
        warn(
            f"{path} does not say that {told}; {trained.arch} built with its defaults may be "
            "another network, even where the weights fit."
        )
    typer.echo(f"{path}")


def _changed_options(trained: "Trained") -> str:
    """The model's options that are not its defaults: `width = 16, pool = max`."""
    from covprop.models import find
    from covprop.options import accepted

    defaults = {name: option.default for name, option in accepted(find(trained.arch)).items()}
    changed = {k: v for k, v in trained.options.items() if k not in defaults or defaults[k] != v}
    return ", ".join(f"{key} = {value}" for key, value in changed.items())
