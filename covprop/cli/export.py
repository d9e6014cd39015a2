"""`covprop export`: the base classifier for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from covprop.cli import options


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
    Only ONNX holds the network itself; the others say its architecture,
    options and image shape, which covprop reads and other tools do not.
    """
    from covprop import exports
    from covprop.cli.trained import open_trained
    from covprop.errors import InvalidInput

    end = exports.ending(to)
    trained = open_trained(run, arch=arch, dataset=dataset, normalize=normalize)
    path = file or trained.folder / f"{trained.stem}export{end}"
    exports.check_name(path, to)
    sources = [run / "model.safetensors", run / "state.pt"] if run.is_dir() else [run]
    if path.exists() and any(path.samefile(source) for source in sources if source.exists()):
        raise InvalidInput(f"{path} is what is exported; choose another name.")
    if path.exists() and not force:
        raise InvalidInput(f"{path} is already there; choose another name, or add --force.")
    facts = trained.facts() if to == "cohen" else None
    exports.export(
        trained.model,
        path,
        to=to,
        arch=trained.arch,
        options=trained.options,
        image_shape=trained.image_shape,
        added=(facts.mean or (), facts.std or ()) if facts else None,
    )
    typer.echo(f"{path}")
