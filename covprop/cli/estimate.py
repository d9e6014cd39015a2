"""`covprop estimate`: closed-form radii beside the certified ones, to see how true they are."""

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covprop.cli import options

if TYPE_CHECKING:
    import torch

    from covprop.data import AnyImages

SAMPLED = ("calibrated", "linearized", "sampled")
DEFAULT = ("shared", "calibrated", "linearized:4")
HEADER = "idx\testimator\tradius"
ESTIMATORS = 2
"""Goes up when a name comes to mean another estimate, so that two of them do not join in a file."""


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
    covprop estimate runs/digits/radius-linearized-0.25
    covprop estimate RUN --estimator linearized --estimator sampled:200 --max 100

    The radii go to RUN/estimated.tsv (idx, estimator, radius): estimates from the moments of
    the logits, no certificates. They join earlier ones of the same σ, split, weights and seed,
    which RUN/estimated.json keeps, and take the place of others. `covprop report RUN` shows them
    beside certified radii of the same images, σ, split and weights, with their correlation.

    linearized:4 takes the gradient at four noisy points, linearized at the clean image. A
    network that was trained on noise need not know clean images.
    """
    import torch

    from covprop.cli.trained import open_trained, warn
    from covprop.device import choose_device
    from covprop.errors import InvalidInput, UnsupportedModel
    from covprop.files import write

    if batch < 1:
        raise InvalidInput(f"--batch is the number of images in one pass, at least 1, not {batch}.")
    trained = open_trained(run, arch=arch, dataset=dataset, normalize=normalize)
    level = trained.choose_sigma(sigma)
    where = choose_device(device)
    images = trained.load_images(split, data)
    positions = trained.choose_positions(images, skip, most)
    model = trained.model.to(where)
    path = trained.folder / f"{trained.stem}estimated.tsv"
    facts = path.with_suffix(".json")
    _check_writable(path)
    _check_kind(path)
    settings = trained.settings(split, images, sigma=level, estimators=ESTIMATORS, seed=seed)
    new: dict[tuple[str, str], str] = {}
    left_out: dict[str, list[str]] = {}  # estimators by the reason
    if not -(2**63) <= seed < 2**63:
        raise InvalidInput(f"--seed must have 64 bits at most, not {seed}.")
    for name in estimator or DEFAULT:
        torch.manual_seed(seed)
        try:
            radii = _radii(model, images, positions, name, level, batch, where)
        except UnsupportedModel as error:
            left_out.setdefault(str(error), []).append(name)
            continue
        typer.echo(f"{name}: mean estimated radius {sum(radii) / len(radii):.3f}")
        new |= {(str(i), name): f"{r:.6g}" for i, r in zip(positions, radii, strict=True)}
    for reason, names in left_out.items():
        warn(f"left out {' and '.join(names)}: {reason}")
    if not new:
        raise InvalidInput(
            f"No estimator that was asked for goes with this model, so {path} is as it was; "
            "linearized and sampled go with any."
        )
    lines = ["\t".join((*key, radius)) for key, radius in (_earlier(path, settings) | new).items()]
    facts.unlink(missing_ok=True)  # killed in between, the new radii must not have the old facts
    write(path, ("\n".join([HEADER, *lines]) + "\n").encode())
    write(facts, (json.dumps(settings, indent=2) + "\n").encode())
    typer.echo(str(path))


def _check_writable(path: Path) -> None:
    """Find out before the work; there is no other place, as reports look beside the log."""
    from covprop.errors import CovpropError

    trial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise CovpropError(
            f"Cannot write {path} ({error.strerror}), where the estimates of this model belong; "
            f"make {path.parent} writable, or copy the model to a folder that is and estimate "
            "the copy."
        ) from error


def _check_kind(path: Path) -> None:
    """Estimates take the place of estimates only; a log by that name would be lost."""
    from covprop.errors import InvalidInput

    try:
        with path.open("rb") as file:
            first = file.readline()
    except OSError:  # there is none, or writing it will say what is wrong
        return
    if first.strip() and first.strip() != HEADER.encode():
        raise InvalidInput(
            f"{path} holds no estimated radii, which would take its place: it begins with "
            f"{first[:60].decode(errors='replace').strip()!r}; move it and what lies beside it."
        )


def _earlier(path: Path, settings: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Radii by (idx, estimator) that an earlier call with the same settings wrote."""
    from covprop.files import moved

    try:
        made = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if moved(made, settings):
            made["data"] = settings["data"]  # an own set is known by its images, wherever it lies
        if made != settings:
            return {}
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    except (OSError, ValueError, TypeError):  # none, or not ours
        return {}
    return {(row[0], row[1]): row[2] for row in rows if len(row) == 3}


def _radii(
    model: "torch.nn.Module",
    images: "AnyImages",
    positions: list[int],
    name: str,
    sigma: float,
    batch: int,
    device: "torch.device",
) -> list[float]:
    from covprop.cli.trained import groups
    from covprop.estimate import margin

    estimator, samples = _parts(name)
    radii: list[float] = []
    for group, _ in groups(images, positions, batch, device):
        radii += margin(model, group.x, sigma, estimator, **samples).radius.tolist()
    return radii


def _parts(name: str) -> tuple[str, dict[str, Any]]:
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
    if len(samples) > 6:
        raise InvalidInput(
            f"{name} asks for too many samples; a few are enough, as in linearized:4."
        )
    return estimator, {"samples": int(samples)}
