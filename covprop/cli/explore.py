"""`covprop explore`: a page on this computer to look at a run with."""

from typing import Annotated

import typer

from covprop.cli import options


def explore(
    run: options.RunArgument,
    sigma: options.Sigma = None,
    split: options.Split = "test",
    port: Annotated[int, typer.Option(help="Port.", show_default="a free one")] = 0,
    browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the default browser.")
    ] = False,
    device: options.Device = "auto",
    data: options.Data = None,
    arch: options.Arch = None,
    dataset: options.Dataset = None,
    normalize: options.Normalized = None,
) -> None:
    """Look at one image and one noise level at a time, on a page that this computer serves.

    \b
    covprop explore runs/digits/radius-linearized-0.25           prints an address
    covprop explore runs/digits/radius-linearized-0.25 --open    opens it

    The page shows the image with and without noise, class probabilities, the
    propagated ellipses beside noisy samples, estimated radii and, on request,
    the certified one. It is served to this computer only, to whoever has the
    token in the address. Ctrl-C ends it.
    """
    import webbrowser

    from covprop.cli.trained import open_trained
    from covprop.device import choose_device
    from covprop.explore.compute import Explorer
    from covprop.explore.server import Desk, Server

    trained = open_trained(run, arch=arch, dataset=dataset, normalize=normalize)
    level = trained.choose_sigma(sigma)
    where = choose_device(device)
    images = trained.load_images(split, data)
    explorer = Explorer(trained.model.to(where), images, level, trained=trained.sigma)
    server = Server(Desk(explorer, run.name), port)
    typer.echo(f"{run}: {len(images)} images of {images.name} ({split}), σ = {level:g}")
    typer.echo(f"{server.url}\nCtrl-C ends it.")
    if browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("\nstopped")
    finally:
        server.server_close()
