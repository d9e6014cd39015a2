"""`covprop estimate`: closed-form radii beside the certified ones, to see how true they are."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from covprop.cli import options

if TYPE_CHECKING:
    import torch

    from covprop.data import FolderImages, Images

SAMPLED = ("calibrated", "linearized", "sampled")
DEFAULT = ("shared", "calibrated", "linearized:4")


def estimate(
    run: options.RunArgument,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            help="shared, calibrated, linearized, dense or sampled, with its number of noisy "
            "samples if any: linearized:4. May be given many times.",
            show_default=" ".join(DEFAULT),
        ),
    ] = None,
    sigma: options.Sigma = None,
    skip: options.Skip = None,
    most: options.Max = None,
    split: options.Split = "test",
    seed: options.Seed = 0,
    device: options.Device = "auto",
    batch: Annotated[int, typer.Option(help="Images in one pass.")] = 100,
    data: options.Data = None,
    arch: options.Arch = None,
    dataset: options.Dataset = None,
    normalize: options.Normalized = None,
) -> None:
    """Estimate the radius of every image in closed form.

    \b
    covprop estimate runs/digits/radius-0.25
    covprop estimate RUN --estimator linearized --estimator sampled:200 --max 100

    The radii go to RUN/estimated.tsv (idx, estimator, radius), in place of earlier ones:
    estimates from the moments of the logits, no certificates. `covprop report RUN` then
    shows them beside the certified radii of the same images, with their correlation, where
    σ, split and weights, which RUN/estimated.json keeps, are the same.

    linearized:4 takes the gradient at four noisy points, linearized at the clean image. A
    network that was trained on noise need not know clean images.
    """
    import torch

    from covprop.cli.subject import open_subject, warn
    from covprop.device import choose_device
    from covprop.errors import InvalidInput, UnsupportedModel
    from covprop.files import write

    subject = open_subject(run, arch=arch, dataset=dataset, normalize=normalize)
    level = subject.choose_sigma(sigma)
    where = choose_device(device)
    images = subject.load_images(split, data)
    positions = subject.choose_positions(images, skip, most)
    model = subject.model.to(where)
    lines = ["idx\testimator\tradius"]
    for name in estimator or DEFAULT:
        torch.manual_seed(seed)
        try:
            radii = _radii(model, images, positions, name, level, batch, where)
        except UnsupportedModel as error:
            warn(f"{name} was left out: {error}")
            continue
        typer.echo(f"{name}: mean estimated radius {sum(radii) / len(radii):.3f}")
        lines += [f"{i}\t{name}\t{r:.6g}" for i, r in zip(positions, radii, strict=True)]
    path = subject.folder / f"{subject.stem}estimated.tsv"
    if len(lines) == 1:
        raise InvalidInput(
            f"No estimator that was asked for goes with this model, so {path} is as it was; "
            "linearized and sampled go with any."
        )
    facts = path.with_suffix(".json")
    facts.unlink(missing_ok=True)  # killed in between, the new radii must not have the old facts
    write(path, ("\n".join(lines) + "\n").encode())
    write(facts, (json.dumps(subject.settings(split, sigma=level), indent=2) + "\n").encode())
    typer.echo(str(path))


def _radii(
    model: "torch.nn.Module",
    images: "Images | FolderImages",
    positions: list[int],
    name: str,
    sigma: float,
    batch: int,
    device: "torch.device",
) -> list[float]:
    from covprop.cli.subject import groups
    from covprop.estimate import margin

    estimator, samples = _parts(name)
    radii: list[float] = []
    for group, _ in groups(images, positions, batch, device):
        radii += margin(model, group.x, sigma, estimator, **samples).radius.tolist()
    return radii


def _parts(name: str) -> tuple[str, dict[str, int]]:
    """An estimator and its options: linearized:4 has four samples."""
    from covprop.errors import InvalidInput

    estimator, colon, samples = name.partition(":")
    if not colon:
        return estimator, {}
    if estimator not in SAMPLED or not samples.isdecimal():
        raise InvalidInput(
            f"estimator is {name!r}: a number of samples follows {', '.join(SAMPLED)}, "
            "as in linearized:4."
        )
    return estimator, {"samples": int(samples)}
